"""Verdicts of replays on the runs of the iterations that were replayed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.project.replay.marks import FILE, ReplayMark, keep, kept_marks
from rollbook.project.run.run import Run
from rollbook.views.mlflow.replays import send_replays
from rollbook.views.mlflow.sync import bring_up_to_date, start_anew
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project

POLICY = "artifacts/policies/i0002"


def _lock(md5: str = "2" * 32) -> None:
    """A dvc.lock that has what the marks are about."""
    lines = ["schema: '2.0'", "stages:"]
    for key in ("i0000", "i0001", "i0002"):
        path = f"artifacts/policies/{key}"
        value = md5 if path == POLICY else "2" * 32
        lines += [
            f"  update_policy@{key}:",
            "    outs:",
            f"    - path: {path}",
            f"      md5: {value}",
        ]
    Path("dvc.lock").write_text("\n".join(lines) + "\n")


@pytest.fixture
def locked(finished: Project) -> Project:
    _lock()
    return finished


def _mark(key: str, verdict: str, at: int = 1) -> ReplayMark:
    tags = {"verdict": verdict, "first_difference": f"of {key}"}
    outputs = {f"artifacts/policies/{key}": "2" * 32}
    return ReplayMark(key, "update_policy", tags, int(verdict == "different"), at, outputs)


def test_an_iteration_has_its_verdict_and_the_chain_that_of_the_base(locked: Project) -> None:
    bring_up_to_date(Run())
    keep([_mark("i0000", "identical"), _mark("i0002", "different"), _mark("i0009", "identical")])
    assert send_replays(Run()) == {("i0000", "update_policy"), ("i0002", "update_policy")}
    shown = Shown()
    [second] = shown.iterations["i0002"]
    assert second.data.tags["replay.update_policy.verdict"] == "different"
    assert second.data.tags["replay.update_policy.first_difference"] == "of i0002"
    assert second.data.metrics["replay/update_policy/differing_outputs"] == 1
    [chain] = shown.chains
    assert chain.data.tags["replay.update_policy.verdict"] == "identical"
    [first] = shown.iterations["i0001"]
    assert not [name for name in first.data.tags if name.startswith("replay")]

    keep([_mark("i0002", "identical", at=2)])
    send_replays(Run())
    [second] = Shown().iterations["i0002"]
    assert second.data.tags["replay.update_policy.verdict"] == "identical"
    assert second.data.metrics["replay/update_policy/differing_outputs"] == 0


def test_verdicts_of_replays_at_once_are_all_kept(project: Path) -> None:
    keys = [f"i{number:04d}" for number in range(6)]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(lambda key: keep([_mark(key, "identical")]), keys))
    assert [mark.key for mark in kept_marks()] == keys


def test_what_the_store_does_not_have_is_no_failure(locked: Project) -> None:
    keep([_mark("i0001", "identical")])
    assert send_replays(Run()) == set()


def test_a_store_made_anew_shows_the_verdicts_again(locked: Project) -> None:
    bring_up_to_date(Run())
    keep([_mark("i0000", "identical"), _mark("i0002", "different", at=7)])
    send_replays(Run())
    start_anew(Run())
    bring_up_to_date(Run())
    shown = Shown()
    [second] = shown.iterations["i0002"]
    assert second.data.tags["replay.update_policy.verdict"] == "different"
    [point] = shown.client.get_metric_history(
        second.info.run_id, "replay/update_policy/differing_outputs"
    )
    assert (point.value, point.timestamp) == (1, 7)
    assert shown.chains[0].data.tags["replay.update_policy.verdict"] == "identical"


def test_a_verdict_on_what_was_replaced_since_is_not_sent(locked: Project) -> None:
    keep([_mark("i0001", "identical"), _mark("i0002", "identical")])
    _lock(md5="3" * 32)
    bring_up_to_date(Run())
    shown = Shown()
    assert "replay.update_policy.verdict" in shown.iterations["i0001"][0].data.tags
    assert "replay.update_policy.verdict" not in shown.iterations["i0002"][0].data.tags


def test_the_last_verdict_on_a_step_counts(project: Path) -> None:
    keep([_mark("i0001", "different"), _mark("i0002", "identical")])
    keep([_mark("i0001", "identical", at=2)])
    assert [(mark.key, mark.tags["verdict"]) for mark in kept_marks()] == [
        ("i0001", "identical"),
        ("i0002", "identical"),
    ]
    assert Path(".rollbook/.gitignore").read_text() == "*\n"
    FILE.write_text("{")
    assert kept_marks() == []
