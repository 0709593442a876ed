"""`rollbook pull` in a workspace: what is missing is put in place, and nothing else is touched."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.errors import RollbookError
from rollbook.dvc.cache import OBJECTS, object_in
from rollbook.dvc.lock import LOCK_FILE, without
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, read_json, write_json
from tests.finished_run import in_cache


def pulled() -> str:
    result = CliRunner().invoke(cli, ["pull"])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.output


def test_missing_tables_are_put_in_place_and_nothing_else_is_touched(run: Path) -> None:
    absent, edited = path_of("scores", "i0002"), path_of("updates", "i0002")
    absent.unlink()
    edited.unlink()
    edited.write_bytes(b"edited by hand, and in no cache")
    not_recorded = path_of("metrics/score_rollouts", "own0002")
    LOCK_FILE.write_text(without(LOCK_FILE.read_text(), {"score_rollouts@own0002"}))
    shutil.rmtree("artifacts/policies")
    write_json({**read_json(PLAN_FILE), "rescores": {}}, PLAN_FILE)
    said = pulled()
    assert absent.samefile(in_cache(absent.as_posix()))
    assert edited.read_bytes() == b"edited by hand, and in no cache"
    assert not_recorded.exists() and not Path("artifacts/policies").exists()
    assert said.startswith("1 outputs put in place, 0 files fetched")
    assert f"left as they are, though not what was recorded: {edited};" in said
    assert "put in place, 0 files" in pulled()


@pytest.mark.parametrize("kinds", ["copy", "reflink,copy"])
def test_files_are_copies_where_dvc_makes_copies(run: Path, kinds: str) -> None:
    config = Path(".dvc/config")
    config.write_text(config.read_text().replace("hardlink,copy", kinds))
    absent = path_of("scores", "i0002")
    absent.unlink()
    assert "left as they are" not in pulled()
    cached = in_cache(absent.as_posix())
    assert absent.read_bytes() == cached.read_bytes() and not absent.samefile(cached)
    absent.write_bytes(b"may be written to")


class Remote:
    """The run as a clone has it: no tables, an empty cache, and a remote with all objects.

    Attributes:
        folder: of the remote.
        md5s: of what a pull gets, by path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folders = ("policies", "optimizers", "values")
        left_out = (*(f"artifacts/{kind}/" for kind in folders), "reports/")
        self.md5s = {path: md5 for path, md5 in Run().md5s.items() if not path.startswith(left_out)}
        shutil.move(".dvc/cache", folder)
        shutil.rmtree("artifacts")
        config = Path(".dvc/config")
        text = config.read_text().replace("[core]", "[core]\n    remote = there")
        config.write_text(f"{text}['remote \"there\"']\n    url = {folder}\n")

    @property
    def objects(self) -> int:
        return len({*self.md5s.values()})

    def object_of(self, path: Path) -> Path:
        return object_in(self.folder / OBJECTS, self.md5s[path.as_posix()])

    def refused(self) -> tuple[str, set[str]]:
        """What a pull says that cannot have everything, and md5s of what it did not put in place."""
        result = CliRunner().invoke(cli, ["pull"])
        assert result.exit_code == 1 and isinstance(result.exception, RollbookError)
        absent = {md5 for path, md5 in self.md5s.items() if not Path(path).exists()}
        return str(result.exception), absent


@pytest.fixture
def remote(run: Path, tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")


def test_an_object_that_is_damaged_in_the_remote_is_told_from_one_it_lacks(remote: Remote) -> None:
    scores = path_of("scores", "i0002")
    damaged = remote.object_of(scores)
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:100])
    damaged.chmod(0o444)  # DVC takes those for whole
    said, absent = remote.refused()
    assert absent == {remote.md5s[scores.as_posix()]}
    assert f"other bytes than were recorded of 1 of {remote.objects} objects: {scores}" in said
    assert f"remove {damaged}, then `dvc push`" in said
    damaged.unlink()
    said, absent = remote.refused()
    assert absent == {remote.md5s[scores.as_posix()]}
    assert f"lacks 1 of 1 objects: {scores}\n  hint: run `dvc push` where they were made" in said


def test_a_remote_that_is_not_there(remote: Remote) -> None:
    remote.folder.rename(remote.folder.with_name("unmounted"))
    said, absent = remote.refused()
    assert "cannot be reached, or nothing was ever pushed to it" in said
    assert absent == {*remote.md5s.values()}
    remote.folder.mkdir()
    assert f"the remote {remote.folder / OBJECTS} cannot be reached" in remote.refused()[0]


def test_a_full_disk_is_called_that(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc_objects.fs.local import LocalFileSystem

    once, room = LocalFileSystem.put_file, remote.objects - 3

    def put_file(self: LocalFileSystem, *arguments: Any, **options: Any) -> Any:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return once(self, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", put_file)
    said, absent = remote.refused()
    assert len(absent) == 3
    asked = f"3 of {remote.objects} objects did not arrive"
    assert said.startswith(f"no space left on the disk: {asked}")
    assert "push" not in said and "free some space" in said
    room = 3
    assert "outputs put in place, 3 files fetched" in pulled()
