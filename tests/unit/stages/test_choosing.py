"""compute_advantages with estimators that choose: what is kept, which pairs are stored, what verify says of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from rollbook.core.errors import ArtifactError, SchemaError
from rollbook.project.verify.links import Ids
from rollbook.project.verify.places import StoredFile, StoredOutput
from rollbook.project.verify.recorded import RecordedOutput
from rollbook.rl.context import Context
from rollbook.rl.estimation import draws_of
from rollbook.tables.artifacts import path_of, read_facts, schema_of, write_table
from tests.unit.stages.test_compute_advantages import run, settings, tables

REWARDS: list[float | None] = [0.8, 0.3, 0.6, 0.3, 1.0, 1.0, 1.0, 1.0, None, 0.0, 2.0, 0.0]
IDS = ("rollout_id", "group_id", "prompt_id", "iteration")


def ends(column: pa.ChunkedArray) -> list[str]:
    return [name[-2:] for name in column.to_pylist()]


def test_pairs_are_stored_with_what_they_are_made_of() -> None:
    given = tables(REWARDS)
    outputs = run(given, settings(estimator="pairs", reward_clip=(0.0, 1.5)))
    pairs, advantages = outputs.tables["pairs"], outputs.tables["advantages"]
    assert ends(pairs["chosen_id"]) == ["00", "02"] and ends(pairs["rejected_id"]) == ["01", "01"]
    assert pairs["chosen_reward"].to_pylist() == [0.8, 1.5], "as the estimator saw them"
    assert pairs["pair_id"][0].as_py() == f"{pairs['chosen_id'][0]}-01"
    assert pairs["group_id"].to_pylist() == given["rollouts"]["group_id"].take([0, 8]).to_pylist()
    kept = [row in (0, 1, 9, 10) for row in range(12)]
    assert advantages["kept"].to_pylist() == kept
    assert advantages["advantage"].to_pylist() == [1, -1, 0, 0, 0, 0, 0, 0, 0, -1, 1, 0]
    assert outputs.metrics["pairs"] == 2
    assert outputs.metrics["pairs/reward_gap"] == pytest.approx((0.5 + 1.5) / 2)
    assert outputs.metrics["kept_groups"] == 2


def test_other_estimators_store_an_empty_table() -> None:
    outputs = run(tables(REWARDS))
    assert outputs.tables["pairs"] == schema_of("pairs").empty()
    assert "pairs" not in outputs.metrics


def test_of_too_many_prompts_the_first_groups_with_pairs_are_kept() -> None:
    outputs = run(tables(REWARDS), settings(wanted=1, oversample=3.0, estimator="pairs"))
    assert outputs.tables["advantages"]["kept"].to_pylist() == [row < 2 for row in range(12)]
    assert outputs.tables["pairs"].num_rows == 1


def test_the_best_are_kept() -> None:
    estimator = {"name": "best", "keep": None, "min_reward": 0.8}
    for options in ({}, {"drop_zero_signal": True}):
        outputs = run(tables(REWARDS), settings(estimator=estimator, **options))
        kept = outputs.tables["advantages"]["kept"].to_pylist()
        assert kept == [row in (0, 4, 5, 6, 7, 10) for row in range(12)]
    assert outputs.tables["history"]["last_informative"].to_pylist() == [True, True, True]


def test_answers_of_one_text_count_once() -> None:
    given = tables(REWARDS)
    place = given["rollouts"].column_names.index("text")
    given["rollouts"] = given["rollouts"].set_column(place, "text", pa.array(["same"] * 12))
    estimator = {"name": "best", "keep": None, "min_reward": 0.8, "distinct": True}
    kept = run(given, settings(estimator=estimator)).tables["advantages"]["kept"].to_pylist()
    assert kept == [row in (0, 4, 10) for row in range(12)]


@pytest.mark.parametrize("estimator", ["pairs", {"name": "best", "min_reward": 9.0}])
def test_nothing_to_choose_is_refused(estimator: Any) -> None:
    with pytest.raises(ArtifactError, match="chose none of 8 rollouts"):
        run(tables([0.5] * 8), settings(estimator=estimator))


def test_random_pairs_follow_from_the_seeds_of_the_rollouts() -> None:
    given = settings(8, estimator={"name": "pairs", "pairing": "best_random"})
    rewards: list[float | None] = [1.0, *[0.0] * 7] * 8
    one, other = (run(tables(rewards, 8), given).tables["pairs"] for _ in range(2))
    assert one == other
    assert len(set(ends(one["rejected_id"]))) > 2


def test_draws_are_spread_over_the_unit_interval() -> None:
    draws = draws_of(pa.chunked_array([pa.array(range(1000), pa.int64())]))
    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.05 and len(set(draws)) == 1000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chosen_reward": [0.3, 2.0]}, "the chosen answer has the higher reward"),
        ({"rejected_id": ["i0001/other/01", "i0001/other/01"]}, "two rollouts of its group"),
        ({"pair_id": ["a", "b"]}, "named after them"),
    ],
)
def test_a_wrong_pair_is_never_written(change: dict[str, Any], said: str) -> None:
    pairs = run(tables(REWARDS), settings(estimator="pairs")).tables["pairs"]
    for name, values in change.items():
        pairs = pairs.set_column(pairs.column_names.index(name), name, pa.array(values))
    with pytest.raises(SchemaError, match=said):
        schema_of("pairs").validate(pairs, "test")


def test_verify_names_pairs_of_rollouts_that_are_not_there(project: Path) -> None:
    given = tables(REWARDS)
    outputs = run(given, settings(estimator="pairs"), Context("i0001"))
    write_table(given["rollouts"], "rollouts", "i0001")
    write_table(outputs.tables["pairs"], "pairs", "i0001")
    assert _findings("rollouts", "pairs") == []
    write_table(given["rollouts"].slice(0, 8), "rollouts", "i0001")
    first, second = _findings("rollouts", "pairs")
    assert "has 1 of 2 chosen_ids that artifacts/rollouts/i0001.parquet lacks" in first
    assert "has 1 of 2 rejected_ids that artifacts/rollouts/i0001.parquet lacks" in second


def _findings(*kinds: str) -> list[str]:
    """What verify finds in the pairs of i0001, given the tables of these kinds."""
    paths = [path_of(kind, "i0001") for kind in kinds]
    stored = {
        path.as_posix(): StoredOutput(
            RecordedOutput(path.as_posix(), "", "compute_advantages@i0001", "dvc.lock"),
            [StoredFile("", "", path, None, None)],
        )
        for path in paths
    }
    ids = Ids(stored, {path.as_posix(): read_facts(path) for path in paths})
    read: Any = SimpleNamespace(
        step=SimpleNamespace(entry=SimpleNamespace(key="i0001"), source="dvc.lock"),
        stage=SimpleNamespace(outputs=[SimpleNamespace(kind="pairs", path=lambda _: paths[1])]),
        info={},
    )
    return [finding.what for finding in ids.findings(read)]
