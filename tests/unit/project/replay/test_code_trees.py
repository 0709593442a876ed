"""Code of a commit with the patch that was recorded against it, and of the worktree."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from rollbook.core.errors import RollbookError
from rollbook.core.hashing import LARGE
from rollbook.core.own_code import OLD_FILES
from rollbook.project.environment import git_state
from rollbook.project.replay.code_trees import CodeTrees, complete
from rollbook.tables.run_info import PATCH_LIMIT_BYTES, GitState
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
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    git(project, "init", "--quiet")
    commit(project, "first")
    return project


def _files(folder: Path) -> dict[str, str]:
    found = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    return {
        name.as_posix(): file.read_text() for name, file in found.items() if name.parts[0] != ".dvc"
    }


def _edited() -> tuple[str, bytes]:
    """Commit and patch of an edit."""
    Path("rewards/mine.py").write_text(REWARD.replace("return 1", "return 10"))
    return _recorded()


def _recorded() -> tuple[str, bytes]:
    """Commit and patch as run_info records them, through JSON."""
    state = GitState(**json.loads(json.dumps(asdict(git_state()), ensure_ascii=False).encode()))
    assert state.dirty
    patch = state.patch_bytes
    assert hashlib.sha256(patch).hexdigest() == state.patch_sha256
    return state.commit, patch


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
    assert b"inner/rewards/mine.py" in patch
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


def test_without_git_the_smaller_files_and_what_is_named(project: Path, tmp_path: Path) -> None:
    for name in ("mine.py", "deep/reward.py", ".hidden/a.py", "venv/pyvenv.cfg", "venv/b.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("A = 1\n")
    for name in ("large.jsonl", "named.jsonl"):
        Path(name).write_bytes(b"x" * LARGE)
    Path("artifacts").mkdir()
    Path("artifacts/plan.json").write_text("{}")
    tree = CodeTrees(tmp_path / ".dvc" / "trees").worktree()
    assert _files(tree.folder) == {"mine.py": "A = 1\n", "deep/reward.py": "A = 1\n"}
    complete(tree, ["named.jsonl", "gone.py"])
    assert _files(tree.folder).keys() == {"mine.py", "deep/reward.py", "named.jsonl"}


def test_patches_were_once_recorded_without_white_space_at_their_end(
    repository: Path, tmp_path: Path
) -> None:
    Path("rewards/mine.py").write_text("A = 1\n\n\n\nB = 2\n")
    commit(repository, "blank lines")
    Path("rewards/mine.py").write_text("A = 10\n\n\n\nB = 2\n")
    head, patch = _recorded()
    assert patch.endswith(b" \n \n \n")
    tree = CodeTrees(tmp_path / ".dvc" / "trees").commit(head, patch.strip())
    assert (tree.folder / "rewards/mine.py").read_text() == "A = 10\n\n\n\nB = 2\n"


CHANGED: Mapping[str, tuple[bytes, bytes]] = {
    "latin.csv": (b"caf\xe9\n", b"caf\xe9s\n"),
    "windows.txt": (b"one\r\ntwo\r\n", b"one\r\nthree\r\n"),
    "table.bin": (bytes(range(256)), bytes(range(255, -1, -1))),
    "bl\u00e4tter/\u00e4.txt": ("ä\n".encode(), "ö\n".encode()),
    "with blank.txt": (b"a", b"a\n"),
    "seen.txt": (b"x\n", b"y\n"),
}
"""Tracked files before and after an edit."""
CONFIGURED = (
    ("diff.noprefix", "true"),
    ("diff.mnemonicPrefix", "true"),
    ("diff.external", "false"),
    ("diff.relative", "true"),
    ("diff.context", "0"),
    ("core.quotePath", "false"),
    ("color.ui", "always"),
    ("diff.shout.textconv", "false"),
)
"""What users tell git about diffs; `false` is a program that fails."""


@pytest.mark.parametrize("configured", [(), CONFIGURED], ids=["plain", "configured"])
@pytest.mark.parametrize("name", CHANGED)
def test_every_kind_of_file_is_as_it_was(
    repository: Path, tmp_path: Path, name: str, configured: Sequence[tuple[str, str]]
) -> None:
    before, after = CHANGED[name]
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(before)
    Path(".gitattributes").write_text("seen.txt diff=shout\n")
    commit(repository, "with it")
    for option in configured:
        git(repository, "config", *option)
    file.write_bytes(after)
    head, patch = _recorded()
    file.write_bytes(b"something else")
    tree = CodeTrees(tmp_path / ".dvc" / "trees").commit(head, patch)
    assert (tree.folder / name).read_bytes() == after
    whole = CodeTrees(tmp_path / ".dvc" / "others").commit(head)
    assert (whole.folder / name).read_bytes() == before


def test_a_long_patch_is_cut_by_its_bytes(repository: Path, tmp_path: Path) -> None:
    Path("rewards/mine.py").write_text("ä" * (PATCH_LIMIT_BYTES // 2 - 500) + "\n")
    _recorded()
    Path("rewards/mine.py").write_text("ä" * (PATCH_LIMIT_BYTES // 2 + 1) + "\n")
    with pytest.raises(RollbookError, match=f"only the first {PATCH_LIMIT_BYTES} bytes"):
        _recorded()


def test_a_patch_that_does_not_apply(repository: Path, tmp_path: Path) -> None:
    patch = b"diff --git a/no.py b/no.py\n--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n"
    head = git(repository, "rev-parse", "HEAD").strip()
    trees = CodeTrees(tmp_path / ".dvc" / "trees")
    for _ in range(2):  # the same for the next step that needs it
        with pytest.raises(RollbookError, match="does not apply"):
            trees.commit(head, patch)


def test_links_that_lead_out_of_the_project(repository: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Path("data").symlink_to(outside)
    Path("near").symlink_to("rewards")
    commit(repository, "links")
    shutil.rmtree("artifacts")
    Path("artifacts").symlink_to("rewards")
    commit(repository, "artifacts elsewhere")
    head = git(repository, "rev-parse", "HEAD").strip()
    tree = CodeTrees(tmp_path / ".dvc" / "trees").commit(head)
    assert not (tree.folder / "data").is_symlink() and (tree.folder / "near/mine.py").exists()
    assert not (tree.folder / "artifacts").exists()
    assert (tree.folder / "rewards/mine.py").exists()
    [note] = tree.notes
    assert (
        note == f"commit {head[:8]} was put together without data, which points out of the project"
    )


def test_what_runs_there_cannot_change_a_large_file_of_the_worktree(
    repository: Path, tmp_path: Path
) -> None:
    Path("large.bin").write_bytes(bytes(9_000_000))
    tree = CodeTrees(tmp_path / ".dvc" / "trees").worktree()
    with (tree.folder / "large.bin").open("r+b") as stream:
        stream.write(b"changed")
    assert Path("large.bin").read_bytes() == bytes(9_000_000)


def test_a_commit_that_is_not_there(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RollbookError, match="git has no commit 12345678"):
        CodeTrees(tmp_path / ".dvc" / "trees").commit("1234567890" * 4)


@pytest.mark.parametrize(
    ("hashing", "depends"),
    [
        ("def _analysed(tree):\n    return ast.unparse(tree)\n", True),
        ("def _analysed(tree):\n    return ast.dump(tree)\n", True),
        ('def _written(tree):\n    """`ast.unparse` and `ast.dump` are not."""\n', False),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_code_that_hashes_by_python_says_so(
    repository: Path, hashing: str, depends: bool, own: bool
) -> None:
    files = {"pipeline/code.py": hashing}
    if own:  # else the folder is the user's, and Rollbook another package
        files |= dict.fromkeys(OLD_FILES, "")
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    tree = CodeTrees(Path("made")).worktree()
    assert tree.hashes_depend_on_python == (depends and own)
