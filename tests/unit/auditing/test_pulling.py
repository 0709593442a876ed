"""`rollbook pull` in a workspace: what is missing is put in place, and nothing else is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.artifacts import path_of, read_json, write_json
from pipeline.cli.main import rollbook
from pipeline.dvc_lock import LOCK_FILE
from pipeline.lock_text import without
from pipeline.plan import PLAN_FILE
from tests.unit.auditing.finished_run import in_cache


def pulled() -> str:
    result = CliRunner().invoke(rollbook, ["pull"])
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
