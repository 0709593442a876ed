"""Programs run in a tree: its own code and no other, by the names that its modules have."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rollbook.core.errors import RollbookError
from rollbook.core.own_code import has_old_names, source_root

SHOWN_LINES = 12
AT_EXIT = "nanobind: leaked "
"""From here on a library lists what it did not free, after everything else that a program says."""
SAY_ORIGINS = (
    "import sys; from importlib.util import find_spec; "
    "print(*(getattr(find_spec(name), 'origin', None) for name in sys.argv[1:]), sep='\\n')"
)
"""Where Python finds packages."""


@dataclass(frozen=True)
class ModuleNames:
    """What modules are called.

    Attributes:
        library, stages: packages.
        options: of Python, for a stage program.
        settings, plan, replies: modules that read params.yaml, plan a step, and keep judges to what was recorded.
    """

    library: str
    stages: str
    options: Sequence[str]
    settings: str
    plan: str
    replies: str


NAMES = ModuleNames(
    library="rollbook",
    stages="rollbook.stages",
    options=("-P",),
    settings="rollbook.settings.params",
    plan="rollbook.project.plan",
    replies="rollbook.components.rewards.recorded_replies",
)
OLD_NAMES = ModuleNames(
    library="pipeline",
    stages="stages",
    options=(),
    settings="pipeline.params",
    plan="pipeline.plan",
    replies="pipeline.rewards.recorded_replies",
)
"""In commits from before the library was called `rollbook`."""


class TreePrograms:
    """Runs programs of the code in a folder.

    Args:
        folder: the code; a checkout of Rollbook at any commit, or a project that uses the installed one.
        said: what the code is called in errors.
    """

    def __init__(self, folder: Path, said: str) -> None:
        self._folder, self._said = folder, said
        is_old = has_old_names(folder)
        self._names = OLD_NAMES if is_old else NAMES
        self._root = folder.absolute() if is_old else source_root(folder)

    @property
    def has_old_names(self) -> bool:
        """Whether it is code of a commit from before the library was called `rollbook`."""
        return self._names is OLD_NAMES

    @property
    def has_library(self) -> bool:
        """Whether the library's code is part of it; else the installed one runs."""
        return self._root is not None

    def run_stage(self, name: str, arguments: Sequence[str]) -> None:
        """Runs a stage program.

        Raises:
            RollbookError: with what the program said, if it fails.
        """
        module = f"{self._names.stages}.{name}"
        self._python([*self._names.options, "-m", module, *arguments], name)

    def planned_digest(self, *step: str) -> str:
        """The digest that `check` would plan with this code and its params.yaml; of stage, key and re-score."""
        code = (
            f"import sys; sys.path.append(''); from {self._names.settings} import read_params; "
            f"from {self._names.plan} import planned; "
            "print(planned(read_params(), *sys.argv[1:]).digest)"
        )
        return self._python([*self._names.options, "-c", code, *step]).strip()

    @cached_property
    def keeps_replies(self) -> bool:
        """Whether judges of this code can be kept to what was recorded."""
        try:
            self._python([*self._names.options, "-c", f"import {self._names.replies}"])
        except RollbookError:
            return False
        return True

    def _python(self, arguments: Sequence[str], name: str = "") -> str:
        return output_of([sys.executable, *arguments], self._folder, name, self._own_root)

    @cached_property
    def _own_root(self) -> Path | None:
        """The source root, once Python is known to find library and stages below the folder.

        Raises:
            RollbookError: if it finds others, such as those of an editable install that comes first.
        """
        if self._root is None:
            return None
        names = (self._names.library, self._names.stages)
        command = [sys.executable, *self._names.options, "-c", SAY_ORIGINS, *names]
        found = output_of(command, self._folder, root=self._root).splitlines()
        for name, origin in zip(names, found, strict=True):
            if not Path(origin).resolve().is_relative_to(self._folder.resolve()):
                raise RollbookError(
                    f"Python takes {name} from {origin}, and not from {self._said}",
                    "replay in an environment in which nothing puts itself before PYTHONPATH",
                )
        return self._root


def output_of(
    command: Sequence[str], folder: Path, name: str = "", root: Path | None = None
) -> str:
    """What a program prints. It runs in a scratch folder and knows nothing of a DVC around it.

    Args:
        command: the program and its arguments.
        folder: to run it in.
        name: that it puts before its own errors, as `rollbook.core.process.run_program` does; else it has none.
        root: folder that Python looks for modules in before all others.

    Raises:
        RollbookError: with its own error, or the last it said, if it fails.
    """
    variables = {name: text for name, text in os.environ.items() if not name.startswith("DVC_")}
    if root is not None:
        paths = (str(root), variables.get("PYTHONPATH"))
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result = subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=False)
    if result.returncode:
        text = result.stderr.decode(errors="replace").partition(AT_EXIT)[0]
        lines = [line.rpartition("\r")[2].strip() for line in text.split("\n")]
        lines = [line for line in lines if line]
        own = [place for place, line in enumerate(lines) if name and line.startswith(name)]
        shown = lines[own[-1] :][:SHOWN_LINES] if own else lines[-SHOWN_LINES:]
        said = f"it ended with exit code {result.returncode} and said nothing"
        raise RollbookError("\n".join(shown) or said)
    return result.stdout.decode(errors="replace")
