from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.advantages.base import AdvantageEstimator, AdvantageInputs, AdvantageOutputs
from pipeline.artifacts import schema_of
from pipeline.config import ComputeAdvantages
from pipeline.errors import ArtifactError
from pipeline.plan import dependencies_of
from pipeline.stage import Context, Inputs, Outputs
from stages.compute_advantages import STAGE, Settings, compute_advantages
from tests.builders import prompt_rows, rollout_rows, table
from tests.unit.rewards.rows import reward

IDS = ("rollout_id", "group_id", "prompt_id", "iteration")
REWARDS = [0.8, 0.3, 0.6, 0.3, 1.0, 1.0, 1.0, 1.0, None, 0.0, 2.0, 0.0]


def tables(rewards: list[float | None] = REWARDS, group_size: int = 4) -> dict[str, pa.Table]:
    prompts = prompt_rows(len(rewards) // group_size)
    texts = [["x" * (index + 1) for index in range(group_size)] for _ in prompts]
    rows = rollout_rows(prompts, texts)
    scores = [
        {**{name: row[name] for name in IDS}, "reward": value, "error": None, "step_rewards": None}
        | {"reward_a": value, "reward_b": None if value is None else value * 10}
        for row, value in zip(rows, rewards, strict=True)
    ]
    return {
        "rollouts": table("rollouts", rows),
        "scores": table("scores", scores),
        "logprobs": schema_of("logprobs").empty(),
    }


def settings(group_size: int = 4, **estimator: Any) -> Settings:
    return Settings.model_validate(
        {
            "compute_advantages": ComputeAdvantages.model_validate(
                {"estimator": {"name": "group", **estimator}}
            ),
            "rewards": [
                reward("format", label="a"),
                reward("format", label="b", weight=0.25),
            ],
            "group_size": group_size,
        }
    )


def run(
    tables: dict[str, pa.Table],
    given: Settings | None = None,
    context: Context | None = None,
) -> Outputs:
    outputs = compute_advantages(given or settings(), Inputs(tables), context or Context("i0001"))
    schema_of("advantages").validate(outputs.tables["advantages"], "test")
    return outputs


def test_advantages_of_every_rollout() -> None:
    given = tables()
    advantages = run(given).tables["advantages"]
    assert advantages["rollout_id"] == given["rollouts"]["rollout_id"]
    got = advantages["advantage"].to_pylist()
    assert [f"{value:+.2f}" for value in got[:4]] == ["+1.41", "-0.94", "+0.47", "-0.94"]
    assert got[4:9] == [0.0] * 5
    # 0 2 0: mean 2/3, squares 4/9 16/9 4/9 sum to 24/9, over 3: sqrt(8/9)
    np.testing.assert_allclose(got[10], (4 / 3) / (np.sqrt(8 / 9) + 1e-4))
    assert advantages["informative"].to_pylist() == [True] * 4 + [False] * 4 + [True] * 4
    assert advantages["kept"].to_pylist() == [True] * 12
    assert advantages["token_advantages"].null_count == 12
    np.testing.assert_allclose(advantages["group_mean"].to_pylist()[8:], 2 / 3)


def test_undefined_statistics_are_null() -> None:
    advantages = run(tables([None, 0.5, None, None, None, None, None, None])).tables["advantages"]
    assert advantages["advantage"].to_pylist() == [0.0] * 8
    assert advantages["group_mean"].to_pylist() == [0.5] * 4 + [None] * 4
    assert advantages["group_std"].to_pylist() == [None] * 8


def test_metrics() -> None:
    metrics = run(tables()).metrics
    assert metrics["frac_reward_zero_std"] == 4 / 12
    assert metrics["groups"] == 3
    assert metrics["informative_groups"] == 2
    assert metrics["solved_groups_share"] == 0.0  # 1.0 is not the best of the batch
    assert metrics["advantages/absmax"] == pytest.approx(1.4141, abs=1e-3)


def test_scores_in_another_order_are_matched_by_id() -> None:
    given = tables()
    mixed = {**given, "scores": given["scores"].take([11, 3, 7, 0, 1, 2, 4, 5, 6, 8, 9, 10])}
    assert run(mixed).tables["advantages"] == run(given).tables["advantages"]


def test_the_estimator_gets_components_weights_and_trained_lengths() -> None:
    seen: list[AdvantageInputs] = []

    class Watching(AdvantageEstimator):
        def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
            seen.append(inputs)
            zeros = np.zeros(len(inputs.rewards))
            return AdvantageOutputs(zeros, zeros, zeros, zeros > 0)

    given = tables()
    masks = [[True] * (place % 4 + 2) for place in range(12)]
    masks[1] = [False, True, True]
    place = given["rollouts"].column_names.index("loss_mask")
    given["rollouts"] = given["rollouts"].set_column(
        place, "loss_mask", pa.array(masks, pa.list_(pa.bool_()))
    )
    watching = Settings.model_validate(
        {
            "compute_advantages": ComputeAdvantages(estimator=Watching(name="watching")),
            "rewards": settings().rewards,
            "group_size": 4,
        }
    )
    run(given, watching)
    (inputs,) = seen
    # one token per character and a stop token; two of three in row 1
    assert inputs.lengths.tolist() == [2, 2, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5]
    assert inputs.weights.tolist() == [1.0, 0.25]
    assert inputs.components.shape == (12, 2)
    np.testing.assert_array_equal(inputs.components[:, 1], inputs.components[:, 0] * 10)
    assert np.isnan(inputs.components[8]).all()
    assert inputs.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (slice(0, 11), r"scores \(11 rows\) and rollouts \(12 rows\).*/03 has no score"),
        (slice(1, 12), r"/00 has no score"),
    ],
)
def test_scores_of_other_rollouts_are_refused(scores: slice, reason: str) -> None:
    given = tables()
    given["scores"] = given["scores"].take(list(range(12))[scores])
    with pytest.raises(ArtifactError, match=reason):
        run(given)


def test_more_scores_than_rollouts_are_refused() -> None:
    given = tables()
    given["rollouts"] = given["rollouts"].slice(0, 8)
    with pytest.raises(ArtifactError, match=r"scores \(12 rows\) and rollouts \(8 rows\)"):
        run(given)


def test_groups_must_be_of_the_size_asked_for() -> None:
    given = tables()
    given = {name: t.slice(0, 11) if t.num_rows else t for name, t in given.items()}
    with pytest.raises(ArtifactError, match=r"1 of 3 groups do not have 4 rollouts .* with 3"):
        run(given)
    with pytest.raises(ArtifactError, match=r"3 of 3 groups do not have 8 rollouts"):
        run(tables(), settings(group_size=8))


def test_pairs_warn() -> None:
    context = Context("i0001")
    outputs = run(tables([1.0, 0.0, 0.2, 0.1], group_size=2), settings(group_size=2), context)
    # whatever the gap: ±1 up to eps
    np.testing.assert_allclose(
        np.abs(outputs.tables["advantages"]["advantage"].to_numpy()), 1.0, atol=3e-3
    )
    assert "group_size 2" in context.warnings[0]
    quiet = Context("i0001")
    run(tables(), context=quiet)
    assert quiet.warnings == []


def test_depends_on_weights_but_not_on_the_code_of_rewards(project: Path) -> None:
    dependencies = dependencies_of(STAGE, settings())
    assert dependencies.settings["rewards"] == [
        {"column": "reward_a", "weight": 1.0},
        {"column": "reward_b", "weight": 0.25},
    ]
    assert "pipeline/advantages/group.py" in dependencies.code
    assert "pipeline/rewards/format.py" not in dependencies.code
