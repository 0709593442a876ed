from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.core.errors import ArtifactError
from rollbook.project.dependencies import dependencies_of
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.training.optimizer import OptimizerState, optimizer_state_writer
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.stages.compute_advantages import STAGE, Settings, WeightedColumn, compute_advantages
from rollbook.tables.artifacts import path_of, schema_of, write_folder
from tests.builders import history_row, prompt_rows, rollout_rows, table, with_greedy
from tests.unit.components.rewards.rows import reward

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
        "history": schema_of("history").empty(),
    }


def settings(
    group_size: int = 4, wanted: int = 256, oversample: float = 1.0, **compute: Any
) -> Settings:
    return Settings.model_validate(
        {
            "compute_advantages": ComputeAdvantages.model_validate(compute),
            "rewards": [
                reward("format", label="a"),
                reward("format", label="b", weight=0.25),
            ],
            "group_size": group_size,
            "prompts_per_iteration": wanted,
            "oversample": oversample,
        }
    )


def run(
    tables: dict[str, pa.Table],
    given: Settings | None = None,
    context: Context | None = None,
) -> Outputs:
    folders = {"optimizers": path_of("optimizers", "i0000")}
    outputs = compute_advantages(
        given or settings(), Inputs(tables, folders), context or Context("i0001")
    )
    for kind, made in outputs.tables.items():
        schema_of(kind).validate(made, "test")
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
    run(given, settings(estimator=Watching(name="watching")))
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
        (slice(0, 11), r"scores \(11 rows\) and rollouts \(12 rows\).*/03 is not in scores"),
        (slice(1, 12), r"/00 is not in scores"),
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


def test_pairs_are_all_the_same() -> None:
    outputs = run(tables([1.0, 0.0, 0.2, 0.1], group_size=2), settings(group_size=2))
    # whatever the gap: ±1 up to eps
    np.testing.assert_allclose(
        np.abs(outputs.tables["advantages"]["advantage"].to_numpy()), 1.0, atol=3e-3
    )


def test_depends_on_weights_but_not_on_the_code_of_rewards(project: Path) -> None:
    dependencies = dependencies_of(STAGE, settings())
    assert dependencies.settings["rewards"] == [
        {"column": "reward_a", "weight": 1.0},
        {"column": "reward_b", "weight": 0.25},
    ]
    assert "rollbook/components/advantages/group.py" in dependencies.code
    assert "rollbook/components/rewards/format.py" not in dependencies.code


def numbers(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist()
    return values


def greedy_tables(greedy: list[float | None]) -> dict[str, pa.Table]:
    """The groups of `REWARDS`, each with a greedy answer of this reward behind it."""
    prompts = prompt_rows(3)
    rows = with_greedy(prompts, [["x" * (index + 1) for index in range(4)]] * 3, ["yy"] * 3)
    sampled = iter(REWARDS)
    best = iter(greedy)
    rewards = [next(best) if row["greedy"] else next(sampled) for row in rows]
    given = tables([*REWARDS, *[0.0] * 4])  # for the form of the scores
    scores = [
        {**{name: row[name] for name in IDS}, "reward": value, "error": None, "step_rewards": None}
        | {"reward_a": value, "reward_b": value}
        for row, value in zip(rows, rewards, strict=True)
    ]
    return {**given, "rollouts": table("rollouts", rows), "scores": table("scores", scores)}


SAMPLED = [place for place in range(15) if place % 5 != 4]


def test_greedy_rows_are_a_baseline_and_no_members() -> None:
    without, given = run(tables()), greedy_tables([1.0, 0.0, 0.5])
    outputs = run(given)
    advantages = outputs.tables["advantages"]
    assert advantages["rollout_id"] == given["rollouts"]["rollout_id"]
    assert advantages.take(SAMPLED) == without.tables["advantages"]
    assert outputs.metrics == without.metrics
    assert outputs.tables["history"] == without.tables["history"]
    greedy = advantages.take([4, 9, 14])
    assert numbers(greedy, "advantage") == [0.0] * 3
    assert numbers(greedy, "kept") == [False] * 3
    assert numbers(greedy, "informative") == [True, False, True]
    assert numbers(greedy, "group_mean") == numbers(advantages.take([0, 5, 10]), "group_mean")


def test_remax_subtracts_the_reward_of_the_greedy_answer() -> None:
    remax = settings(estimator={"name": "remax"})
    given = greedy_tables([0.3, None, 0.5])
    got = numbers(run(given, remax).tables["advantages"], "advantage")
    np.testing.assert_allclose(got[:5], [0.5, 0.0, 0.3, 0.0, 0.0])
    assert got[5:10] == [0.0] * 5  # the greedy answer has no reward
    assert got[10:] == [0.0, -0.5, 1.5, -0.5, 0.0]
    order = [14, 4, 9, *SAMPLED]
    mixed = {**given, "rollouts": given["rollouts"].take(order)}
    assert numbers(run(mixed, remax).tables["advantages"], "advantage") == [
        got[place] for place in order
    ]


def test_remax_without_greedy_answers_is_refused() -> None:
    with pytest.raises(ArtifactError, match="greedy answer"):
        run(tables(), settings(estimator={"name": "remax"}))


def test_a_group_of_greedy_rows_alone_is_not_of_the_size_asked_for() -> None:
    given = greedy_tables([0.0, 0.0, 0.0])
    kept = [*range(5), 9, *range(10, 15)]
    with pytest.raises(ArtifactError, match=r"1 of 3 groups do not have 4 rollouts .* with 0"):
        run({**given, **{name: given[name].take(kept) for name in ("rollouts", "scores")}})


def test_rewards_are_clipped_before_anything_else() -> None:
    clipped = settings(estimator={"name": "remax"}, reward_clip=(0.25, 0.75))
    outputs = run(greedy_tables([1.0, 0.0, 0.0]), clipped)
    got = numbers(outputs.tables["advantages"], "advantage")
    np.testing.assert_allclose(got[:4], [0.0, -0.45, -0.15, -0.45])  # of .75 .3 .6 .3, less .75
    np.testing.assert_allclose(got[5:9], [0.5] * 4)  # of .75, less .25
    np.testing.assert_allclose(got[11:14], [0.0, 0.5, 0.0])
    # what the history keeps is what was scored
    assert numbers(outputs.tables["history"], "mean_reward")[0] == pytest.approx(0.5)
    assert numbers(outputs.tables["history"], "mean_reward")[1] == 1.0


def with_logprobs(given: dict[str, pa.Table], **values: float) -> dict[str, pa.Table]:
    """A logprobs table with the same number on every token, by column; the others are null."""
    rollouts = given["rollouts"]
    rows = [
        {
            **{name: row[name] for name in IDS},
            **dict.fromkeys(("old_logprobs", "ref_logprobs", "values", "entropies")),
            **{name: [value] * len(row["loss_mask"]) for name, value in values.items()},
        }
        for row in rollouts.to_pylist()
    ]
    return {**given, "logprobs": table("logprobs", rows)}


RLOO = {"estimator": {"name": "leave_one_out"}, "kl_coef": 0.1}


def test_kl_is_taken_off_the_rewards() -> None:
    """k1 = −1 − (−1.5) = 0.5 nats a token; completions have 2, 3, 4, 5 tokens, so 0.1 · 0.5 · n off each reward."""
    outputs = run(with_logprobs(tables(), old_logprobs=-1.0, ref_logprobs=-1.5), settings(**RLOO))
    rewards = np.array([0.8, 0.3, 0.6, 0.3]) - 0.05 * np.arange(2, 6)
    expected = rewards - (rewards.sum() - rewards) / 3
    got = numbers(outputs.tables["advantages"], "advantage")
    np.testing.assert_allclose(got[:4], expected)
    assert outputs.metrics["kl"] == pytest.approx(0.5)
    assert outputs.metrics["kl_coef"] == 0.1
    assert "kl" not in run(tables()).metrics


def test_kl_alone_makes_no_group_informative() -> None:
    given = with_logprobs(tables(), old_logprobs=-1.0, ref_logprobs=-1.5)
    outputs = run(given, settings(**RLOO, drop_zero_signal=True))
    advantages = outputs.tables["advantages"]
    assert numbers(advantages, "informative") == [True] * 4 + [False] * 4 + [True] * 4
    assert numbers(advantages, "kept") == numbers(advantages, "informative")
    assert numbers(outputs.tables["history"], "last_informative") == [True, False, True]


def test_masked_tokens_and_greedy_rows_have_no_part_in_the_kl() -> None:
    given = with_logprobs(greedy_tables([0.0] * 3), old_logprobs=-1.0, ref_logprobs=-1.5)
    masks = [[False, *row["loss_mask"][1:]] for row in given["rollouts"].to_pylist()]
    place = given["rollouts"].column_names.index("loss_mask")
    masked = given["rollouts"].set_column(place, "loss_mask", pa.array(masks))
    logprobs = given["logprobs"].to_pylist()
    for place, row in enumerate(logprobs):
        row["ref_logprobs"][0] = -2.0 - place
    for row in logprobs[4::5]:
        row["ref_logprobs"] = [-9.0] * len(row["ref_logprobs"])
    given |= {"rollouts": masked, "logprobs": table("logprobs", logprobs[::-1])}
    outputs = run(given, settings(**RLOO))
    assert outputs.metrics["kl"] == pytest.approx(0.5)
    rewards = np.array([0.8, 0.3, 0.6, 0.3]) - 0.05 * np.arange(1, 5)
    got = numbers(outputs.tables["advantages"], "advantage")
    np.testing.assert_allclose(got[:4], rewards - (rewards.sum() - rewards) / 3)


def test_the_estimator_sees_what_the_kl_takes_off_each_token() -> None:
    """Rewards to go of a row without reward differences: the penalty of a token and of all later ones."""
    given = with_logprobs(tables([1.0] * 4), old_logprobs=-1.0, ref_logprobs=-1.5)
    plus_plus = settings(estimator={"name": "reinforce_plus_plus"}, kl_coef=0.1)
    advantages = run(given, plus_plus).tables["advantages"]
    last, longest = (
        numbers(advantages, "token_advantages")[0],
        numbers(advantages, "token_advantages")[3],
    )
    assert last == longest[-2:]  # one and two tokens before the end, whatever came before
    np.testing.assert_allclose(np.diff(longest), longest[1] - longest[0], rtol=1e-5)
    assert longest[1] > longest[0]


def test_a_group_without_a_greedy_answer_has_no_baseline() -> None:
    given = greedy_tables([0.0] * 3)
    kept = [place for place in range(15) if place != 4]
    given |= {name: given[name].take(kept) for name in ("rollouts", "scores")}
    got = numbers(
        run(given, settings(estimator={"name": "remax"})).tables["advantages"], "advantage"
    )
    assert got[:4] == [0.0] * 4
    assert got[4:8] == [1.0] * 4


@pytest.mark.parametrize("measured", [{}, {"old_logprobs": -1.0}, {"ref_logprobs": -1.0}])
def test_kl_needs_both_policies_measured(measured: dict[str, float]) -> None:
    missing = "old" if "old_logprobs" not in measured else "ref"
    given = with_logprobs(tables(), **measured) if measured else tables()
    with pytest.raises(ArtifactError, match=f"has no {missing}_logprobs"):
        run(given, settings(**RLOO))


def test_log_probs_must_be_as_long_as_completions() -> None:
    given = with_logprobs(tables(), old_logprobs=-1.0, ref_logprobs=-1.5)
    rows = given["logprobs"].to_pylist()
    rows[2] |= {"old_logprobs": [-1.0], "ref_logprobs": [-1.5]}
    with pytest.raises(ArtifactError, match=r"/02 has 1 items, its completion 4 tokens"):
        run({**given, "logprobs": table("logprobs", rows)}, settings(**RLOO))


def test_an_adaptive_coefficient_is_read_from_the_predecessors_optimizer(project: Path) -> None:
    given = with_logprobs(tables(), old_logprobs=-1.0, ref_logprobs=-1.5)
    adaptive = settings(
        estimator={"name": "leave_one_out"}, kl_coef={"start": 0.2, "target": 6.0, "horizon": 10}
    )
    write_folder(optimizer_state_writer(OptimizerState()), "optimizers", "i0000")
    assert run(given, adaptive).metrics["kl_coef"] == 0.2
    later = OptimizerState(controllers={"reward_kl_coef": 0.3, "kl_coef": 9.0})
    write_folder(optimizer_state_writer(later), "optimizers", "i0000")
    outputs = run(given, adaptive)
    assert (outputs.metrics["kl_coef"], outputs.metrics["kl"]) == (0.3, pytest.approx(0.5))


def test_scores_made_with_other_rewards_are_refused() -> None:
    other = WeightedColumn(column="reward_other", weight=1.0)
    with pytest.raises(ArtifactError, match="no column reward_other: it was made with other"):
        run(tables(), settings().model_copy(update={"rewards": [other]}))


def test_a_group_that_differs_from_its_greedy_answer_is_kept() -> None:
    """All samples are right and the greedy answer is wrong: to remax that is signal, to group it is none."""
    given = greedy_tables([0.0] * 3)
    scores = given["scores"]
    rewards = np.where(given["rollouts"]["greedy"].to_numpy(), 0.0, 1.0)
    place = scores.column_names.index("reward")
    given["scores"] = scores.set_column(place, "reward", pa.array(rewards))
    remax = run(given, settings(estimator={"name": "remax"}, drop_zero_signal=True))
    kept = remax.tables["advantages"]["kept"].to_numpy()
    assert (kept == ~given["rollouts"]["greedy"].to_numpy()).all()
    with pytest.raises(ArtifactError, match="in none of"):
        run(given, settings(estimator={"name": "group"}, drop_zero_signal=True))


def test_token_advantages_of_every_row() -> None:
    given = greedy_tables([0.0] * 3)
    advantages = run(given, settings(estimator={"name": "reinforce_plus_plus"})).tables[
        "advantages"
    ]
    lists = numbers(advantages, "token_advantages")
    masks = numbers(given["rollouts"], "loss_mask")
    assert [len(each) for each in lists] == [len(mask) for mask in masks]
    for place in (4, 9, 14):
        assert lists[place] == [0.0] * 3
    np.testing.assert_allclose(
        [np.mean(each) for each in lists], numbers(advantages, "advantage"), rtol=1e-6, atol=1e-7
    )
    assert lists[0] != lists[1]


def test_step_rewards_reach_the_estimator() -> None:
    """Rewards (1, 0) and (0, 1) of the steps of a pair: advantages 0, −1 and 0, 1 (DeepSeekMath §4.1.3)."""
    given = tables([1.0, 1.0], group_size=2)
    scores = given["scores"].to_pylist()
    steps = [[(0, 1.0), (1, 0.0)], [(0, 0.0), (2, 1.0)]]
    for row, pairs in zip(scores, steps, strict=True):
        row["step_rewards"] = [{"end": end, "value": value} for end, value in pairs]
    process = settings(group_size=2, estimator={"name": "process_supervision"})
    outputs = run({**given, "scores": table("scores", scores)}, process)
    assert numbers(outputs.tables["advantages"], "token_advantages") == [[0, -1], [0, 1, 1]]
    with pytest.raises(ArtifactError, match="add a reward that"):
        run(given, process)


def test_values_reach_the_estimator() -> None:
    gae = settings(estimator={"name": "gae"})
    with pytest.raises(ArtifactError, match="value"):
        run(tables(), gae)
    outputs = run(with_logprobs(tables(), values=0.25), gae)
    assert outputs.tables["advantages"]["token_advantages"].null_count == 0


def test_a_critic_is_told_what_it_should_have_said() -> None:
    """With gamma and lam 1 that is the reward, at every token; nothing for rollouts without one."""
    outputs = run(with_logprobs(tables(), values=0.25), settings(estimator={"name": "gae"}))
    returns = numbers(outputs.tables["advantages"], "token_returns")
    for row, value in enumerate(REWARDS):
        length = 2 + row % 4
        assert returns[row] == (None if value is None else pytest.approx([value] * length))
    assert numbers(run(tables()).tables["advantages"], "token_returns") == [None] * 12


def test_greedy_answers_teach_a_critic_nothing() -> None:
    given = with_logprobs(greedy_tables([0.0] * 3), values=0.25)
    outputs = run(given, settings(estimator={"name": "gae"}))
    returns = numbers(outputs.tables["advantages"], "token_returns")
    greedy = numbers(given["rollouts"], "greedy")
    unscored = [value is None for value in numbers(given["scores"], "reward")]
    assert any(greedy) and any(unscored)
    for each, is_greedy, is_unscored in zip(returns, greedy, unscored, strict=True):
        assert (each is None) == (is_greedy or is_unscored)


INFORMATIVE = [0.0, 1.0, 0.0, 1.0]
SOLVED = [1.0] * 4


def kept_groups(
    groups: list[list[float]], context: Context | None = None, **options: Any
) -> list[bool]:
    given = tables([reward for group in groups for reward in group])
    outputs = run(given, settings(**options), context)
    kept = numbers(outputs.tables["advantages"], "kept")
    by_group = [kept[start : start + 4] for start in range(0, len(kept), 4)]
    assert all(len(set(group)) == 1 for group in by_group)
    assert outputs.metrics["kept_groups"] == sum(group[0] for group in by_group)
    return [group[0] for group in by_group]


def test_groups_without_signal_are_dropped_if_asked() -> None:
    groups = [SOLVED, INFORMATIVE, SOLVED, INFORMATIVE]
    assert kept_groups(groups) == [True] * 4
    quiet = Context("i0001")
    assert kept_groups(groups, quiet, drop_zero_signal=True) == [False, True, False, True]
    assert quiet.warnings == []


def test_the_first_informative_groups_are_kept_up_to_the_number_wanted() -> None:
    groups = [SOLVED, INFORMATIVE, SOLVED, INFORMATIVE, INFORMATIVE]
    context = Context("i0001")
    kept = kept_groups(groups, context, wanted=2, oversample=2.5)
    assert kept == [False, True, False, True, False]
    assert context.warnings == []
    assert kept_groups(groups, wanted=2, drop_zero_signal=True) == [False, True, False, True, True]


def test_too_few_informative_groups_are_said() -> None:
    context = Context("i0001")
    groups = [SOLVED, INFORMATIVE, SOLVED, INFORMATIVE]
    assert kept_groups(groups, context, wanted=3, oversample=1.3) == [False, True, False, True]
    [warning] = context.warnings
    assert "in only 2 of 4 groups do the rewards differ, 3 were wanted" in warning
    assert "raise prepare_prompts.oversample (now 1.3)" in warning


@pytest.mark.parametrize("options", [{"oversample": 2.0}, {"drop_zero_signal": True}])
def test_nothing_to_keep_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="in none of 2 groups do the rewards differ"):
        kept_groups([SOLVED, SOLVED], wanted=1, **options)


def test_the_history_grows_by_what_was_asked() -> None:
    given = tables()
    first, second, third = numbers(given["rollouts"], "prompt_id")[::4]
    given["history"] = table(
        "history", [history_row("f" * 16, iteration="i0000"), history_row(second)]
    )
    history = run(given, context=Context("i0002")).tables["history"].to_pylist()
    assert [row["prompt_id"] for row in history] == ["f" * 16, first, second, third]
    assert {row["iteration"] for row in history} == {"i0002"}
    assert [row["last_iteration"] for row in history] == ["i0001", *["i0002"] * 3]
    assert [row["times_asked"] for row in history] == [1, 1, 2, 1]
    assert [row["times_informative"] for row in history] == [1, 1, 1, 1]
    assert [row["last_informative"] for row in history] == [True, True, False, True]
    assert [row["scored_rollouts"] for row in history] == [4, 4, 8, 3]
    # .5 and 1.0, four times each
    assert [row["mean_reward"] for row in history] == pytest.approx([0.5, 0.5, 0.75, 2 / 3])
    assert [row["last_mean_reward"] for row in history] == pytest.approx([0.5, 0.5, 1.0, 2 / 3])
