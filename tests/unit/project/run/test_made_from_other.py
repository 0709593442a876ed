"""Artifacts that were made from other content than lies beside them."""

from rollbook.project.run.currency import OtherSource, made_from_other
from rollbook.tables.artifacts import Facts

ROLLOUTS = Facts("rollouts", 1, "i0001", "r1")
SCORES = Facts("scores", 1, "i0001", "s1", {"rollouts": "r1", "policies": "p1"})
ADVANTAGES = Facts("advantages", 1, "i0001", "a1", {"rollouts": "r0", "scores": "s1"})


def test_by_the_artifacts_themselves() -> None:
    assert made_from_other([ROLLOUTS, SCORES]) == []
    found = made_from_other([ADVANTAGES, SCORES, ROLLOUTS])
    assert found == [OtherSource(ADVANTAGES, "rollouts", "r0", "r1")]
    assert made_from_other([ADVANTAGES, SCORES]) == []  # no rollouts lie there


def test_by_what_was_found() -> None:
    found = made_from_other([SCORES, ROLLOUTS], {"policies": "p2", "rollouts": "r1"})
    assert found == [OtherSource(SCORES, "policies", "p1", "p2")]
