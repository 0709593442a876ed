"""A finished step is replayed with the code of its own commit, whatever Rollbook is installed or lies in the worktree.

`data/before_the_move.tar.xz`: code, two finished steps and dvc.lock of a project from when the library was imported as
`pipeline`, made with that code in a commit that `_commit` makes again, hash and all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rollbook.cli.replay import FOLDER
from rollbook.core.errors import RollbookError
from rollbook.project.plan import make_plan
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.replay.programs import TreePrograms
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import read_json, write_json
from tests.e2e.projects import LEFT_BY_RUNS, ROOT, git
from tests.stored_iterations import settings, store
from tests.unit.project.replay.finished_steps import DVC_CONFIG, IGNORED, run_step

BEFORE_THE_MOVE = Path(__file__).parent / "data" / "before_the_move.tar.xz"
OLD_COMMIT = "3b1e88c690ef060b670f19c2a16c4e635182b261"
ADVANTAGES, SCORES = "compute_advantages@i0001", "score_rollouts@i0001"
ADVANTAGE = "centred = inputs.rewards[signal] - group.mean[signal]"
REWARD = "return RewardResult(views[self.mode],"
FLIPPED = {
    "advantages/group.py": (ADVANTAGE, f"centred = -({ADVANTAGE.partition('= ')[2]})"),
    "rewards/numeric_answer.py": (REWARD, REWARD.replace("views", "-views")),
}
"""Lines of components, now and with another sign."""
FINDER = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("rollbook", "pipeline"):
            return importlib.util.spec_from_file_location(name, {file!r}, submodule_search_locations=[])
sys.meta_path.insert(0, Finder())
"""
"""Of an editable install that puts itself before all others."""


def _commit(folder: Path, message: str) -> str:
    """Hash of a commit that is the same whenever it is made."""
    at = {f"GIT_{who}_DATE": "2026-01-01T00:00:00+00:00" for who in ("AUTHOR", "COMMITTER")}
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for words in (["add", "--all"], [*identity, "commit", "--quiet", "-m", message]):
        subprocess.run(["git", *words], cwd=folder, env={**os.environ, **at}, check=True)
    return git(folder, "rev-parse", "HEAD").strip()


def _put_code(folder: Path) -> None:
    """Today's code as that of the project."""
    for name in ("pipeline", "stages"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_BY_RUNS)


def _flip_signs(folder: Path) -> None:
    for name, (line, flipped) in FLIPPED.items():
        file = folder / "pipeline/rollbook/components" / name
        text = file.read_text()
        assert text.count(line) == 1
        file.write_text(text.replace(line, flipped))


@pytest.fixture(scope="module")
def before_the_move(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps that ran before the move, in a project whose code is today's, with other signs."""
    folder = tmp_path_factory.mktemp("old") / "project"
    with tarfile.open(BEFORE_THE_MOVE) as archive:
        archive.extractall(folder, filter="data")
    git(folder, "init", "--quiet")
    lock = (folder / "dvc.lock").rename(folder.parent / "dvc.lock")
    assert _commit(folder, "Before it ran") == OLD_COMMIT
    lock.rename(folder / "dvc.lock")
    _put_code(folder)
    _commit(folder, "Moved")
    _flip_signs(folder)
    return folder


def _score(folder: Path, own_code: bool) -> None:
    """A project whose rollouts were scored, with or without the library's code in it."""
    folder.mkdir()
    with contextlib.chdir(folder):
        with Path("params.yaml").open("w") as stream:
            YAML().dump(settings(), stream)
        Path(".gitignore").write_text(IGNORED)
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text(DVC_CONFIG)
        if own_code:
            _put_code(folder)
        git(folder, "init", "--quiet")
        _commit(folder, "Before it ran")
        store("i0001")
        write_json(make_plan(read_params()), PLAN_FILE)
        run_step("score_rollouts", "i0001")


@pytest.fixture(scope="module")
def since_the_move(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step that ran with the code of a commit, and code in the worktree that gives rewards another sign."""
    folder = tmp_path_factory.mktemp("new") / "project"
    _score(folder, own_code=True)
    _flip_signs(folder)
    return folder


def _replayed(
    folder: Path, *words: str, library: Path = ROOT / "pipeline"
) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict of a replay as a process of its own; `library` is what is installed, as it were."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "rollbook.cli.main", "replay", *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    content = json.loads((folder / FOLDER / f"{words[0]}.json").read_text())
    [step] = content["steps"]
    assert ended.returncode == content["exit_code"], ended.stderr
    return ended.returncode, step


def test_the_archive_is_of_old_names(before_the_move: Path) -> None:
    assert git(before_the_move, "ls-tree", "--name-only", OLD_COMMIT, "pipeline/").splitlines()
    info = read_json(before_the_move / "artifacts/run_info/compute_advantages/i0001.json")
    assert info["command"] == "python -m stages.compute_advantages --iteration i0001"
    assert "pipeline/advantages/group.py" in info["code"]


@pytest.mark.parametrize("step", [ADVANTAGES, SCORES])
def test_a_step_from_before_the_move(before_the_move: Path, step: str) -> None:
    code, found = _replayed(before_the_move, step)
    assert (code, found["outcome"]) == (0, "identical"), found
    assert found["code"] == f"commit {OLD_COMMIT[:8]}"
    assert {each["recorded"] == each["replayed"] for each in found["outputs"]} == {True}


def test_it_is_another_one_with_the_code_of_the_worktree(before_the_move: Path) -> None:
    code, found = _replayed(before_the_move, ADVANTAGES, "--with-code", "worktree")
    assert (code, found["outcome"], found["code"]) == (1, "different", "the worktree"), found
    [table] = [each for each in found["outputs"] if each["path"].startswith("artifacts/advantages")]
    assert ", advantage: " in table["comparison"]["text"]
    code, found = _replayed(before_the_move, ADVANTAGES, "--with-code", "HEAD")
    assert (code, found["outcome"]) == (0, "same content"), found


def test_a_step_since_the_move(since_the_move: Path) -> None:
    code, found = _replayed(since_the_move, SCORES)
    assert (code, found["outcome"]) == (0, "identical"), found
    assert found["code"].startswith("commit ")
    assert "code rollbook/components/rewards/numeric_answer.py: changed" in found["code_since"]
    code, found = _replayed(since_the_move, SCORES, "--with-code", "worktree")
    assert (code, found["outcome"]) == (1, "different"), found


@pytest.mark.parametrize("name", ["before_the_move", "since_the_move"])
def test_code_that_puts_itself_before_all_others_is_refused(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    folder = request.getfixturevalue(name)
    commit = OLD_COMMIT if name == "before_the_move" else "HEAD"
    tree.mkdir()
    packed = subprocess.run(
        ["git", "archive", commit], cwd=folder, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "x"], cwd=tree, input=packed, check=True)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the current folder is not looked into
    assert TreePrograms(tree, "the tree").planned_digest("score_rollouts", "i0001")
    other = tmp_path / "other"
    other.mkdir()
    (other / "elsewhere.py").touch()
    (other / "sitecustomize.py").write_text(FINDER.format(file=str(other / "elsewhere.py")))
    monkeypatch.setenv("PYTHONPATH", str(other))
    with pytest.raises(
        RollbookError, match=r"^Python takes (rollbook|pipeline) from .*elsewhere.py"
    ):
        TreePrograms(tree, "the tree").planned_digest("score_rollouts", "i0001")


def test_another_installed_package_is_named(tmp_path: Path) -> None:
    folder, installed = tmp_path / "project", tmp_path / "installed"
    _score(folder, own_code=False)
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("numeric_answer", "exact_match"))
    code, found = _replayed(folder, SCORES)
    assert (code, found["outcome"]) == (0, "identical"), found
    installed.mkdir()
    _put_code(installed)
    _flip_signs(installed)
    code, found = _replayed(folder, SCORES, library=installed / "pipeline")
    assert (code, found["outcome"]) == (2, "not replayed")
    assert f"{SCORES} ran with rollbook " in found["problem"]
    file = "rollbook/components/rewards/numeric_answer.py"
    assert f"is installed here, where {file} differs" in found["problem"]


def test_folders_of_the_user_are_no_old_code(tmp_path: Path) -> None:
    for name in ("pipeline", "stages"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "stage.py"):
            (tmp_path / name / file).write_text("raise SystemExit('of the project')\n")
    programs = TreePrograms(tmp_path, "the project")
    assert not (programs.has_old_names or programs.has_library)
    with pytest.raises(RollbookError, match=r"compute_advantages(@i0001)?: .*params\.yaml"):
        programs.run_stage("compute_advantages", ["--iteration", "i0001"])
