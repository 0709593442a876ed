"""Starting points: `pipeline/rollbook/settings/examples/<name>.yaml` is a whole params.yaml; `rollbook start` puts it
in place.

A file begins with a comment: what it trains in the first line, then what is good to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollbook.core.errors import ConfigError, Problem, nearest

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """A starting point.

    Attributes:
        name: of its file.
        title: what it trains.
        text: the file.
    """

    name: str
    title: str
    text: str


def examples() -> list[str]:
    """Names of all starting points, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read_example(name: str) -> Example:
    """The starting point in `pipeline/rollbook/settings/examples/<name>.yaml`.

    Raises:
        ConfigError: if there is none of this name; the error lists all.
    """
    if name not in examples():
        problem = Problem("NAME", f"there is no {name!r}; {nearest(name, examples())}")
        raise ConfigError([problem], "rollbook start")
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return Example(name, text.partition("\n")[0].removeprefix("#").strip(), text)
