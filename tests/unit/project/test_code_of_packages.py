"""Digests of installed code: Rollbook's own wherever it lies, and packages that settings name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rollbook
import rollbook.stages
from rollbook.project.code import (
    COUNTED,
    FRAME,
    LIBRARY,
    _decided_by,
    code_hashes,
    file_of_name,
    is_frame,
    name_of_file,
)
from tests.unit.settings.test_params import SHIPPED_TEXT

ENVIRONMENT = Path(".venv/lib/python3.11/site-packages")
"""Inside of the project, as `uv` and `python -m venv .venv` make it."""
PLANNING = """
import json
from rollbook.settings.params import read_params
from rollbook.project.plan import make_plan, planned
params = read_params()
code = {name: dict(planned(params, name, "i0001").code) for name in ("update_policy", "score_rollouts")}
print(json.dumps({"plan": make_plan(params), "code": code}))
"""
CLIPPED = "(free * advantages).minimum("
"""The pessimistic bound of the clipped loss."""


def _planned(library: Path) -> dict[str, Any]:
    """The plan of the current folder, and names and hashes of code, in a process that finds the library there."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLANNING],
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.fixture
def installed(project: Path) -> Path:
    """A project with an environment inside that holds the library, not editable."""
    Path("params.yaml").write_text(SHIPPED_TEXT)
    for package in (rollbook, rollbook.stages):
        folder = Path(package.__path__[0])
        skipped = shutil.ignore_patterns("__pycache__", "assets")
        shutil.copytree(folder, ENVIRONMENT / package.__name__.replace(".", "/"), ignore=skipped)
    return project / ENVIRONMENT


def test_an_installed_library_is_hashed_as_an_editable_one(installed: Path) -> None:
    editable = _planned(Path(rollbook.__path__[0]).parent)
    assert "rollbook/components/losses/dapo.py" in editable["code"]["update_policy"]
    assert _planned(installed) == editable


def test_a_flipped_sign_in_an_installed_library_is_noticed(installed: Path) -> None:
    before = _planned(installed)
    [loss] = [file for file in installed.rglob("losses/*.py") if CLIPPED in file.read_text()]
    loss.write_text(loss.read_text().replace(CLIPPED, CLIPPED.replace("minimum", "maximum")))
    after = _planned(installed)
    assert _differing(before["plan"]["i0001"], after["plan"]["i0001"]) == {"update_policy"}
    name = loss.relative_to(installed).as_posix()
    assert _differing(before["code"]["update_policy"], after["code"]["update_policy"]) == {name}
    assert before["plan"]["report"] == after["plan"]["report"]


def test_an_edit_of_the_report_makes_it_again_and_trains_nothing(installed: Path) -> None:
    before = _planned(installed)
    with (installed / "rollbook" / "project" / "report.py").open("a") as file:
        file.write("\nOTHER = 1\n")
    assert _differing(before["plan"], _planned(installed)["plan"]) == {"report"}


@pytest.fixture
def rewards(project: Path) -> Path:
    """A package of someone else's in the project's environment."""
    folder = project / ENVIRONMENT / "their_rewards"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "lengths.py").write_text(
        "import other_package\nfrom rollbook.components.rewards.base import Reward\n"
        "from their_rewards.sub import words\n"
    )
    (folder / "sub" / "__init__.py").write_text("LONG = 3\n")
    (folder / "sub" / "words.py").write_text("from . import LONG\nfrom .. import far\n")
    (folder / "far.py").write_text("import json\n")
    (folder / "unused.py").write_text("")
    (folder.parent / "other_package.py").write_text("x = 1\n")
    return folder


def test_a_package_that_settings_name_is_followed_inside_itself(rewards: Path) -> None:
    names = list(code_hashes([rewards / "lengths.py"]))
    assert [name for name in names if not name.startswith("rollbook/")] == [
        "their_rewards/__init__.py",
        "their_rewards/far.py",
        "their_rewards/lengths.py",
        "their_rewards/sub/__init__.py",
        "their_rewards/sub/words.py",
    ]
    assert "rollbook/components/rewards/base.py" in names


def test_an_installed_package_is_named_alike_wherever_it_lies(
    rewards: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    inside = code_hashes([rewards / "lengths.py"])
    for folder in ("venv/lib/python3.12/site-packages", "editable/src"):
        other = tmp_path_factory.mktemp("elsewhere") / folder
        shutil.copytree(rewards, other / rewards.name)
        assert code_hashes([other / rewards.name / "lengths.py"]) == inside


def test_an_installer_may_link_files_to_its_cache(rewards: Path) -> None:
    before = code_hashes([rewards / "lengths.py"])
    for number, file in enumerate([*rewards.rglob("*.py")]):
        kept = Path(f"{number}.kept").absolute()
        file.rename(kept)
        file.symlink_to(kept)
    assert code_hashes([rewards / "lengths.py"]) == before


def test_the_project_does_not_reach_into_other_installed_packages(rewards: Path) -> None:
    Path("mine.py").write_text("import numpy\nfrom their_rewards import lengths\n")
    assert list(code_hashes([Path("mine.py")])) == ["mine.py"]


def test_a_project_below_a_folder_named_site_packages(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project / "site-packages" / "run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    Path("mine.py").write_text("import beside\n")
    Path("beside.py").write_text("")
    assert list(code_hashes([Path("mine.py")])) == ["beside.py", "mine.py"]


def test_two_files_of_one_name_both_count(rewards: Path) -> None:
    own = Path("their_rewards/far.py")
    own.parent.mkdir()
    own.write_text("y = 1\n")
    both = [own, rewards / "far.py"]
    assert list(code_hashes(both)) == ["their_rewards/far.py"]
    hashes = [code_hashes(files)["their_rewards/far.py"] for files in (both, both[:1], both[1:])]
    assert len(set(hashes)) == 3
    assert code_hashes(reversed(both)) == code_hashes(both)


def test_python_itself_and_compiled_modules_have_no_hash(project: Path) -> None:
    Path("fast.so").write_bytes(b"\x7fELF")
    assert code_hashes([Path(json.__file__), Path("fast.so")]) == {}


def test_code_that_does_not_parse_counts_by_its_bytes(project: Path) -> None:
    Path("newer.py").write_text("this is no Python\n")
    before = code_hashes([Path("newer.py")])
    Path("newer.py").write_text("nor is this\n")
    assert before.keys() == {"newer.py"} and code_hashes([Path("newer.py")]) != before


def test_files_and_their_names(
    rewards: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text("")
    monkeypatch.syspath_prepend(project / ENVIRONMENT)
    names = {
        Path(rollbook.stages.__path__[0], "report.py"): "rollbook/stages/report.py",
        Path(
            rollbook.__path__[0], "components", "losses", "dapo.py"
        ): "rollbook/components/losses/dapo.py",
        Path(
            rollbook.__path__[0], "components", "losses", "__init__.py"
        ): "rollbook/components/losses/__init__.py",
        rewards / "lengths.py": "their_rewards/lengths.py",
        project / "mine.py": "mine.py",
    }
    for file, name in names.items():
        assert name_of_file(file) == name
        assert file_of_name(name).samefile(file)
    assert not file_of_name("rollbook/components/losses/gone.py").exists()


def test_every_module_of_the_library_is_frame_or_counts() -> None:
    """A new one is decided on: add it, or its package, to FRAME or to COUNTED."""
    files = [
        file
        for package in (rollbook, rollbook.stages)
        for file in Path(package.__path__[0]).rglob("*.py")
    ]
    decided = {name: _decided_by(name) for name in map(name_of_file, files)}
    assert len(decided) > 400
    assert [name for name, by in decided.items() if by is None] == []
    assert (FRAME | COUNTED) - set(decided.values()) == set(), "names of modules that are gone"
    assert not FRAME & COUNTED


def test_a_module_of_a_frame_package_may_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.project.code.FRAME", {"tables", "core.errors"})
    monkeypatch.setattr("rollbook.project.code.COUNTED", {"tables.schemas", "core.ids"})
    frame = ("tables/reading.py", "tables/__init__.py", "tables/deep/er.py", "core/errors.py")
    counted = ("tables/schemas/data.py", "tables/schemas/__init__.py", "core/ids.py", "core/new.py")
    assert [is_frame(f"{LIBRARY[0]}/{name}") for name in (*frame, *counted)] == [True] * 4 + [
        False
    ] * 4
