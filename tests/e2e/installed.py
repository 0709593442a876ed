"""Rollbook as a user has it: a wheel, installed into an environment of its own, by its path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.projects import LEFT_BY_RUNS, ROOT, run

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "pipeline", "stages")
"""What the wheel is built of."""
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
"""As pip does it without build isolation, which would ask the network for setuptools."""
DVC = "#!{python}\nimport sys\nfrom dvc.cli import main\nsys.exit(main())\n"


def copy_sources(folder: Path) -> Path:
    """What a wheel is built of, to be changed."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_BY_RUNS)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(sources: Path) -> Path:
    """Builds the wheel, beside its sources."""
    for left in (sources / "pipeline").glob("*.egg-info"):  # its list of files is of another build
        shutil.rmtree(left)
    _quiet([sys.executable, "-c", BUILD, str(sources.parent)], sources)
    [wheel] = sources.parent.glob("rollbook-*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """A virtual environment with a wheel of Rollbook in it, not editable.

    Attributes:
        environment: its folder.
    """

    environment: Path

    @property
    def package(self) -> Path:
        """Folder of the installed package."""
        [found] = self.environment.glob("lib/python*/site-packages/rollbook")
        return found

    def run(
        self,
        folder: Path,
        *command: str,
        check: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as after activating the environment."""
        path = f"{self.environment / 'bin'}:{os.environ['PATH']}"
        own = {"PYTHONPATH": "", **(variables or {}), "PATH": path}
        return run(folder, *command, check=check, variables=own)


def install(wheel: Path, folder: Path) -> Installed:
    """Installs a wheel into a new environment, which has all other packages from this one.

    They come by a line of a .pth file each, behind the environment's own, and without what .pth files among them do,
    such as an editable install of a checkout.
    """
    _quiet([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    _quiet([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)])
    found = Installed(folder)
    borrowed = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    (found.package.parent / "borrowed.pth").write_text("\n".join([*borrowed, ""]))
    dvc = folder / "bin" / "dvc"
    dvc.write_text(DVC.format(python=folder / "bin" / "python"))
    dvc.chmod(0o755)
    return found


def _quiet(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
