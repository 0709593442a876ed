"""What git and DVC's cache have of other revisions; real git, a cache as DVC has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.errors import ArtifactError, ConfigError, RollbookError
from rollbook.dvc.cache import cached_path, fetch, is_cached, members
from rollbook.project.run.revisions import commit_of, extract, revision_of
from tests.two_commits import edit, git
from tests.unit.settings.test_params import SHIPPED_TEXT

LOCK = """\
schema: '2.0'
stages:
  evaluate_policy@i0001:
    cmd: true
    outs:
    - path: artifacts/evaluations/i0001.parquet
      hash: md5
      md5: {md5}
      size: 1
"""
MD5S = ["0123456789abcdef" * 2, "f" * 32]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC project below the top of its repository, with a commit `first` and another after it."""
    folder = tmp_path / "below" / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").touch()
    (folder / "params.yaml").write_text(SHIPPED_TEXT)
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "dvc.lock").write_text("of another project")
    monkeypatch.chdir(folder)
    (folder / "sealed").mkdir()
    (folder / "sealed" / "i0001.dvc").touch()
    (folder / "sealed" / "i0001.yaml").write_text(
        LOCK.format(md5=MD5S[1]).replace("1.par", "0.par")
    )
    (folder / "dvc.lock").write_text(LOCK.format(md5=MD5S[0]))
    git("add", "--all")
    git("commit", "--quiet", "-m", "first")
    git("tag", "first")
    shutil.rmtree(folder / "sealed")
    (folder / "dvc.lock").write_text(LOCK.format(md5=MD5S[1]))
    edit(seed=7)
    git("commit", "--quiet", "--all", "-m", "second")
    return folder


def _experiment(name: str, commit: str, baseline: str) -> None:
    git("update-ref", f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}", commit)


def test_a_commit_is_read_as_it_was(project: Path) -> None:
    first = revision_of("first")
    assert first.md5s == {
        "artifacts/evaluations/i0001.parquet": MD5S[0],
        "artifacts/evaluations/i0000.parquet": MD5S[1],
    }
    assert first.shown == f"first ({git('rev-parse', 'first')[:8]})"
    head = revision_of("HEAD")
    assert list(head.md5s.values()) == [MD5S[1]] and head.params.seed == 7
    edit(seed=8)
    workspace = revision_of("workspace")
    assert (workspace.params.seed, workspace.shown, workspace.md5s) == (8, "workspace", head.md5s)
    assert git("status", "--porcelain") == " M below/project/params.yaml\n"


def test_settings_that_cannot_be_read_name_their_revision(project: Path) -> None:
    edit(seeed=1)
    git("commit", "--quiet", "--all", "-m", "wrong")
    with pytest.raises(ConfigError, match=r"params\.yaml of HEAD: 1 problem") as wrong:
        _ = revision_of("HEAD").params
    assert "did you mean 'seed'?" in str(wrong.value)


def test_experiments_by_name(project: Path) -> None:
    first, head = (commit_of(name) for name in ("first", "HEAD"))
    _experiment("mine", first, head)
    assert commit_of("mine") == first
    _experiment("mine", head, first)
    with pytest.raises(RollbookError, match="2 experiments are called 'mine'"):
        commit_of("mine")
    git("branch", "mine")
    assert commit_of("mine") == head
    git("update-ref", "refs/exps/exec/EXEC_BRANCH", first)
    with pytest.raises(RollbookError, match="'EXEC_BRANCH'; experiments: mine"):
        commit_of("EXEC_BRANCH")


def test_only_what_a_commit_has_is_written(project: Path, tmp_path: Path) -> None:
    assert extract("first", ["sealed", "nothing"], tmp_path / "out").names == ["sealed"]
    assert sorted(path.name for path in (tmp_path / "out" / "sealed").iterdir()) == [
        "i0001.dvc",
        "i0001.yaml",
    ]
    assert extract("first", ["nothing"], tmp_path / "empty").names == ()


def test_names_that_git_would_quote_or_take_for_patterns(project: Path, tmp_path: Path) -> None:
    for name in ("blätter/ä.txt", "[ab]*.txt", "a.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    git("add", "--all")
    git("commit", "--quiet", "-m", "names")
    found = extract("HEAD", ["blätter", "[ab]*.txt"], tmp_path / "out")
    assert found.names == ["[ab]*.txt", "blätter"] and not found.left_out
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert sorted(file.name for file in files) == ["[ab]*.txt", "ä.txt"]


def test_outputs_that_were_not_made_or_are_not_here(project: Path) -> None:
    first = revision_of("first")
    with pytest.raises(ArtifactError, match=r"i0009.parquet: first \(.*\) has no such output"):
        first.path("evaluations", "i0009")
    with pytest.raises(ArtifactError, match=rf"md5 {MD5S[0]}\) is not in DVC's cache"):
        first.path("evaluations", "i0001")
    cached = cached_path(MD5S[0])
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"x")
    assert first.path("evaluations", "i0001") == cached
    with pytest.raises(ArtifactError, match="truncated or damaged"):
        first.table("evaluations", "i0001")


@pytest.mark.parametrize(
    ("written", "meant"), [("{tmp}/shared", "shared"), ("../../shared", "below/shared")]
)
def test_the_cache_is_where_dvc_has_it(
    project: Path, tmp_path: Path, written: str, meant: str
) -> None:
    setting = written.format(tmp=tmp_path)
    (project / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {setting}\n")
    assert cached_path(MD5S[0]).resolve() == tmp_path / meant / "files/md5/01" / MD5S[0][2:]


def test_a_folder_is_there_if_all_its_files_are(project: Path) -> None:
    folder = f"{MD5S[0]}.dir"
    assert not is_cached(folder)
    for md5, content in ((folder, json.dumps([{"relpath": "a/b", "md5": MD5S[1]}])), (MD5S[1], "")):
        assert not is_cached(folder)
        cached_path(md5).parent.mkdir(parents=True)
        cached_path(md5).write_text(content)
    assert is_cached(folder) and members(folder) == {"a/b": MD5S[1]}
    cached_path(folder).write_text("[{}]")
    with pytest.raises(ArtifactError, match="damaged"):
        members(folder)


def test_nothing_can_be_fetched_without_a_remote(project: Path) -> None:
    with pytest.raises(RollbookError, match=r"nothing can be fetched: .*no remote specified"):
        fetch([MD5S[0]])
    assert fetch([]) == 0
    pulled = CliRunner().invoke(cli, ["pull"])
    assert isinstance(pulled.exception, RollbookError)
    assert "no remote specified" in str(pulled.exception)
    Path("dvc.lock").unlink()
    pulled = CliRunner().invoke(cli, ["pull"])
    assert "workspace names no outputs in dvc.lock" in str(pulled.exception)


def test_outside_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RollbookError, match="is no DVC project"):
        cached_path(MD5S[0])
    with pytest.raises(RollbookError, match="is no git repository, so there is no 'HEAD'"):
        commit_of("HEAD")
