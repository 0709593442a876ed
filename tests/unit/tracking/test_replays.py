"""Verdicts of replays on the runs of the iterations that were replayed."""

from pipeline.tracking.replays import ReplayMark, send_replays
from pipeline.tracking.store import exists
from pipeline.tracking.sync import bring_up_to_date
from tests.unit.tracking.conftest import Shown
from tests.unit.tracking.project import Project


def _mark(key: str, verdict: str, at: int = 1) -> ReplayMark:
    tags = {"verdict": verdict, "first_difference": f"of {key}"}
    return ReplayMark(key, "update_policy", tags, int(verdict == "different"), at)


def test_an_iteration_has_its_verdict_and_the_chain_that_of_the_base(finished: Project) -> None:
    assert exists()
    bring_up_to_date(finished.params)
    marks = [_mark("i0000", "identical"), _mark("i0002", "different"), _mark("i0009", "identical")]
    assert send_replays(finished.params, marks) == 2
    shown = Shown()
    [second] = shown.iterations["i0002"]
    assert second.data.tags["replay.update_policy.verdict"] == "different"
    assert second.data.tags["replay.update_policy.first_difference"] == "of i0002"
    assert second.data.metrics["replay/update_policy/differing_outputs"] == 1
    [chain] = shown.chains
    assert chain.data.tags["replay.update_policy.verdict"] == "identical"
    [first] = shown.iterations["i0001"]
    assert not [name for name in first.data.tags if name.startswith("replay")]

    send_replays(finished.params, [_mark("i0002", "identical", at=2)])
    [second] = Shown().iterations["i0002"]
    assert second.data.tags["replay.update_policy.verdict"] == "identical"
    assert second.data.metrics["replay/update_policy/differing_outputs"] == 0


def test_what_the_store_does_not_have_is_no_failure(finished: Project) -> None:
    assert send_replays(finished.params, [_mark("i0001", "identical")]) == 0
