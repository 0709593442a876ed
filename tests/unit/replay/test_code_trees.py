"""Code of a commit with the patch that was recorded against it, and of the worktree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import RollbookError
from pipeline.lineage import PATCH_LIMIT_BYTES, environment
from pipeline.replay.code_trees import CodeTrees, complete
from tests.e2e.projects import commit, git

REWARD = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"


@pytest.fixture
def repository(project: Path) -> Path:
    """One commit with a reward, settings and a sealed part."""
    for name, text in {
        "rewards/mine.py": REWARD,
        "params.yaml": "seed: 0\n",
        "sealed/i0001.json": "{}",
        ".gitignore": "/artifacts/\n/.dvc/\n",
        "artifacts/secret.json": "{}",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    git(project, "init", "--quiet")
    commit(project, "first")
    return project


def _files(folder: Path) -> dict[str, str]:
    found = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    return {
        name.as_posix(): file.read_text() for name, file in found.items() if name.parts[0] != ".dvc"
    }


def _edited() -> tuple[str, str]:
    """Commit and patch of an edit whose last line of context is blank, as run_info records it."""
    Path("rewards/mine.py").write_text(REWARD.replace("return 1", "return 10"))
    state = environment()["git"]
    assert state["dirty"] and not state["patch"].endswith("\n")
    return state["commit"], state["patch"]


def test_a_commit_with_its_patch(repository: Path, tmp_path: Path) -> None:
    first, patch = _edited()
    commit(repository, "second")
    Path("rewards/mine.py").write_text("nothing like it\n")
    tree = CodeTrees(tmp_path / ".dvc" / "trees").commit(first, patch)
    assert _files(tree.folder) == {
        "rewards/mine.py": REWARD.replace("return 1", "return 10"),
        ".gitignore": "/artifacts/\n/.dvc/\n",
    }
    assert _files(tree.settings) == {"params.yaml": "seed: 0\n", "sealed/i0001.json": "{}"}
    assert tree.said == f"commit {first[:8]} with the recorded patch"


def test_the_project_may_lie_in_a_folder_of_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "inner"
    (inner / ".dvc").mkdir(parents=True)
    shutil.copytree("rewards", inner / "rewards")
    commit(repository, "a project inside")
    monkeypatch.chdir(inner)
    first, patch = _edited()
    assert "inner/rewards/mine.py" in patch
    tree = CodeTrees(Path(".dvc/trees").resolve()).commit(first, patch)
    assert "return 10" in (tree.folder / "rewards/mine.py").read_text()


def test_the_worktree_as_it_lies_there(repository: Path, tmp_path: Path) -> None:
    Path("rewards/new.py").write_text("NEW = 1\n")
    Path("rewards/mine.py").unlink()
    trees = CodeTrees(tmp_path / ".dvc" / "trees")
    tree = trees.worktree()
    assert _files(tree.folder).keys() == {"rewards/new.py", "params.yaml", ".gitignore"}
    assert trees.worktree() is tree
    (tree.folder / "rewards/new.py").write_text("changed in the tree\n")
    assert Path("rewards/new.py").read_text() == "NEW = 1\n"


def test_without_git_only_what_is_named(project: Path, tmp_path: Path) -> None:
    Path("mine.py").write_text("A = 1\n")
    subprocess.run(["git", "status"], capture_output=True, check=False)
    tree = CodeTrees(tmp_path / ".dvc" / "trees").worktree()
    complete(tree, ["mine.py", "gone.py"])
    assert _files(tree.folder) == {"mine.py": "A = 1\n"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("x" * (PATCH_LIMIT_BYTES + 1), f"only the first {PATCH_LIMIT_BYTES} bytes"),
        (
            "diff --git a/no.py b/no.py\n--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b",
            "does not apply",
        ),
    ],
)
def test_a_patch_that_cannot_be_used(
    repository: Path, tmp_path: Path, patch: str, message: str
) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    with pytest.raises(RollbookError, match=message):
        CodeTrees(tmp_path / ".dvc" / "trees").commit(head, patch)


def test_a_commit_that_is_not_there(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RollbookError, match="git has no commit 12345678"):
        CodeTrees(tmp_path / ".dvc" / "trees").commit("1234567890" * 4)
