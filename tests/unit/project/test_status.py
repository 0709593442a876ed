"""`rollbook status`: done, stale, missing, running and gone, as they come to be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.process import exclusive
from rollbook.dvc.guard import remember
from rollbook.dvc.lock import LOCK_FILE, lock_of, output_md5s, texts_of, without
from rollbook.dvc.running_steps import lock_file_of
from rollbook.project.plan_file import ITERATION_STAGES, PLAN_FILE
from rollbook.project.run.currency import TRACKING_STAGE, State, currency_of
from rollbook.project.run.run import Run
from rollbook.project.status import RunStatus, read_status
from rollbook.tables.artifacts import path_of, read_json, write_json
from tests.finished_run import KEYS, settings, write_settings

STAGES = (*ITERATION_STAGES, TRACKING_STAGE)


def status() -> RunStatus:
    """Of settings that were changed."""
    return read_status(Run())


def unchanged() -> RunStatus:
    """Of settings and code that are as they were planned: hashing the code again takes half a second."""
    run = Run()
    vars(run)["currency"] = currency_of(run, read_json(PLAN_FILE))
    return read_status(run)


def states(found: RunStatus, key: str) -> str:
    """Letters of the states of an iteration's steps: d, s, m, r, g."""
    return "".join(step.state[0] for step in found.steps if step.key == key)


def test_a_finished_run(run: Path) -> None:
    plan = PLAN_FILE.read_bytes()
    found = status()
    assert {key: states(found, key) for key in KEYS} == dict.fromkeys(KEYS, "d" * 8)
    assert states(found, "i0000") == "ddd"
    assert found.seconds_left == 0
    assert found.stale_because == ""
    assert found.rescores == {"other": dict.fromkeys(KEYS, State.DONE)}
    assert PLAN_FILE.read_bytes() == plan
    rollouts = found.of("generate_rollouts", "i0002")
    assert rollouts is not None
    assert (
        rollouts.seconds
        == read_json(path_of("run_info/generate_rollouts", "i0002"))["seconds"]["total"]
    )


def test_a_changed_setting_makes_stale_what_follows(run: Path) -> None:
    raw = settings()
    raw["recipes"]["own"]["update_policy"]["learning_rate"] = 1e-5
    raw["iterations"]["i0002"]["previous"] = "i0000"
    write_settings(raw)
    found = status()
    assert states(found, "i0001") == "d" * 8
    assert states(found, "own0002") == "ddddd" + "sss"
    assert states(found, "i0002") == "s" * 8
    stale = [step for step in found.steps if step.key == "own0002" and step.state == "stale"]
    assert [step.expected for step in stale[:2]] == [step.seconds for step in stale[:2]]
    assert found.stale_because == "settings (draws.0, update_policy.learning_rate)"
    said = CliRunner().invoke(cli, ["status"]).output
    counted = [line for line in said.splitlines() if line.startswith(("to do", "stale", "until"))]
    assert counted[0].startswith("to do: 9 steps, 9 stale, 2 iterations to show in MLflow; ")
    assert found.stale_because in counted[1] and "show, page" in counted[2]


def test_what_never_ran_is_missing_and_takes_as_long_as_the_like_of_it(run: Path) -> None:
    raw = settings()
    raw["iterations"]["i0003"] = {"previous": "i0002", "recipe": "grpo", "reference": "i0000"}
    write_settings(raw)
    for key, seconds in (("i0001", 10.0), ("i0002", 30.0), ("own0002", 500.0)):
        info = path_of("run_info/update_policy", key)
        content = read_json(info)
        content["seconds"]["total"] = seconds
        info.unlink()
        write_json(content, info)
    found = status()
    assert states(found, "i0003") == "m" * 8
    update = found.of("update_policy", "i0003")
    assert update is not None
    assert (update.expected, update.seconds) == (20.0, None)
    assert found.seconds_left is not None
    assert found.seconds_left > 20
    assert found.rescores["other"]["i0003"] is State.MISSING


def test_the_estimate_is_unknown_where_nothing_is_like_it(run: Path) -> None:
    text = without(LOCK_FILE.read_text(), {f"update_policy@{key}" for key in KEYS})
    LOCK_FILE.write_text(text)
    shutil.rmtree("artifacts/run_info/update_policy")
    found = unchanged()
    assert states(found, "i0001") == "dddddm" + "ss"
    assert found.seconds_left is None
    assert "time left unknown" in CliRunner().invoke(cli, ["status"]).output


def test_results_that_are_not_in_the_workspace(run: Path) -> None:
    shutil.rmtree("artifacts/policies/i0001")
    Path("artifacts/scores/own0002.parquet").unlink()
    found = unchanged()
    assert states(found, "i0001") == "dddddg" + "dd"
    assert states(found, "own0002") == "ddgddddd"
    assert found.seconds_left == 0


def test_while_a_stage_runs_and_dvc_writes_its_lock_file(run: Path) -> None:
    remember()
    text = LOCK_FILE.read_text()
    with exclusive(lock_file_of("score_rollouts", "i0002"), "test"):
        for cut in (text[: len(text) // 2], ""):
            LOCK_FILE.write_text(cut)
            found = unchanged()
            assert states(found, "i0001") == "d" * 8
            assert states(found, "i0002") == "ddrdssss"
        shown = CliRunner().invoke(cli, ["status"]).output
    assert "running: score_rollouts@i0002 for " in shown
    assert "●" in shown and "▶" in shown and "◐" in shown


def test_an_older_lock_file_is_believed(run: Path) -> None:
    """As after `git checkout` of a commit with fewer finished steps, some time ago."""
    remember()
    LOCK_FILE.write_text(without(LOCK_FILE.read_text(), {"update_policy@i0002"}))
    os.utime(LOCK_FILE, (1e9, 1e9))
    assert states(unchanged(), "i0002") == "dddddmss"


def test_what_reads_something_that_was_made_again_is_stale(run: Path) -> None:
    """As when `dvc repro` was stopped in between; settings and code are those of then."""
    entries = texts_of(LOCK_FILE.read_text())
    made = entries["score_rollouts@i0002"]
    md5 = output_md5s()["artifacts/scores/i0002.parquet"]
    LOCK_FILE.write_text(
        lock_of({**entries, "score_rollouts@i0002": made.replace(md5, "f" * 32)}.values())
    )
    found = unchanged()
    assert states(found, "i0002") == "dddd" + "ssss"
    assert states(found, "own0002") == "d" * 8
    assert found.rescores["other"] == {**dict.fromkeys(KEYS, State.DONE), "i0002": State.STALE}


def test_a_rescore_that_waits(run: Path) -> None:
    raw = settings()
    raw["recipes"]["own"]["score_rollouts"]["rewards"][0]["weight"] = 2.0
    write_settings(raw)
    with exclusive(lock_file_of("rescore_rollouts", "i0002", "other"), "test"):
        found = status()
    waiting = {"i0001": State.STALE, "i0002": State.RUNNING, "own0002": State.STALE}
    assert found.rescores == {"other": waiting}
    assert found.of("score_rollouts", "i0002") is not None
    assert states(found, "i0002") == "d" * 8


def test_disk_use_counts_each_file_once(run: Path) -> None:
    uses = {use.kind: use for use in unchanged().disk}
    policies = [file for file in Path("artifacts/policies").rglob("*") if file.is_file()]
    distinct = {file.stat().st_ino: file.stat().st_size for file in policies}
    assert uses["artifacts/policies"].size == sum(distinct.values())
    objects = [file for file in Path(".dvc/cache").rglob("*") if file.is_file()]
    assert uses[".dvc/cache"].size < sum(file.stat().st_size for file in objects) / 10


def test_disk_use_finds_the_cache_where_dvc_has_it(run: Path) -> None:
    elsewhere = run.parent / "elsewhere"
    Path(".dvc/cache").rename(elsewhere)
    with Path(".dvc/config").open("a") as config:
        config.write(f"    dir = {elsewhere}\n")
    Path("artifacts/scores/i0002.parquet").unlink()
    uses = {use.kind: use for use in unchanged().disk}
    assert uses[elsewhere.as_posix()].files > 0
    assert ".dvc/cache" not in uses
