from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rollbook.core.errors import ArtifactError, RewardError
from rollbook.core.runtime import Runtime
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.recipe_sections import ScoreRollouts
from rollbook.stages.score_rollouts import Settings, score_rollouts
from rollbook.tables.artifacts import schema_of
from tests.builders import prompt_rows, rollout_rows, table, with_greedy

# 1+2, 2+3 and 3+4; the second group is solved
TEXTS = [["3", "it is 3", "4", "5"], ["5", "5", "5", "5"], ["8", "6", "", "7"]]


def tables() -> dict[str, pa.Table]:
    prompts = prompt_rows(3)
    return {
        "prompts": table("prompts", prompts),
        "rollouts": table("rollouts", rollout_rows(prompts, TEXTS)),
    }


def run(tables: dict[str, pa.Table], context: Context | None = None, **options: Any) -> Outputs:
    settings = Settings(score_rollouts=ScoreRollouts.model_validate(options))
    outputs = score_rollouts(settings, Inputs(tables), context or Context("i0001"))
    schema_of("scores").validate(outputs.tables["scores"], "test")
    return outputs


def test_scores_every_rollout_in_its_order() -> None:
    given = tables()
    outputs = run(given, rewards=[{"name": "numeric_answer"}])
    scores = outputs.tables["scores"]
    assert scores["rollout_id"].to_pylist() == given["rollouts"]["rollout_id"].to_pylist()
    assert scores["reward"].to_pylist() == [1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1]
    assert scores["reward_numeric_answer"] == scores["reward"]
    assert scores["numeric_answer_lenient"].to_pylist() == [1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1]


def test_worker_processes_change_nothing() -> None:
    rewards = [{"name": "shuffled", "reward": "numeric_answer"}, {"name": "numeric_answer"}]
    here, there = (
        run(tables(), Context("i0001", Runtime(scoring_processes=processes)), rewards=rewards)
        for processes in (0, 2)
    )
    assert there.tables["scores"].equals(here.tables["scores"])
    assert there.metrics == here.metrics


def test_metrics_have_trls_names() -> None:
    rewards = [{"name": "numeric_answer", "weight": 2.0}, {"name": "format", "label": "layout"}]
    metrics = run(tables(), rewards=rewards).metrics
    # 6 of 12 are right: mean ½, squares 12·¼ = 3 over 11; no text has tags
    assert metrics["rewards/numeric_answer/mean"] == 0.5
    assert metrics["rewards/numeric_answer/std"] == pytest.approx((3 / 11) ** 0.5)
    assert metrics["rewards/layout/mean"] == 0.0
    assert metrics["reward"] == 1.0
    assert metrics["reward_std"] == pytest.approx(2 * (3 / 11) ** 0.5)
    assert metrics["logged/numeric_answer_lenient/mean"] == 7 / 12
    assert (metrics["errors"], metrics["unscorable"]) == (0, 0)


def test_the_order_of_rows_changes_nothing_but_the_order() -> None:
    given, order = tables(), [5, 0, 11, 3, 7, 1, 2, 9, 4, 10, 8, 6]
    mixed = {**given, "rollouts": given["rollouts"].take(order)}
    rewards = [{"name": "shuffled", "reward": "numeric_answer"}, {"name": "numeric_answer"}]
    straight, shuffled = run(given, rewards=rewards), run(mixed, rewards=rewards)
    assert shuffled.tables["scores"] == straight.tables["scores"].take(order)
    assert shuffled.metrics == straight.metrics


def test_rows_nothing_applies_to_are_null_counted_and_told() -> None:
    given = tables()
    answers = pa.array(["3", None, "seven"], pa.string())
    place = given["prompts"].column_names.index("reference_answer")
    given["prompts"] = given["prompts"].set_column(place, "reference_answer", answers)
    context = Context("i0001")
    outputs = run(given, context, rewards=[{"name": "numeric_answer"}])
    assert outputs.tables["scores"]["reward"].to_pylist() == [1, 0, 0, 0] + [None] * 8
    assert outputs.metrics["unscorable"] == 8
    assert outputs.metrics["reward"] == 0.25
    assert "no reward applies to 8 of 12 rollouts" in context.warnings[0]


def test_a_broken_reward_stops_the_stage_unless_its_share_is_allowed(project: Path) -> None:
    (project / "mine.py").write_text(
        "def f(completions):\n"
        "    if any(c[0]['content'] == '' for c in completions):\n"
        "        raise ValueError('empty')\n"
        "    return [1.0 for _ in completions]\n"
    )
    rewards = [{"name": "function", "path": "mine.py:f"}]
    with pytest.raises(RewardError, match="4 of 12 rollouts"):
        run(tables(), rewards=rewards, max_error_share=0.33)
    outputs = run(tables(), rewards=rewards, max_error_share=0.34)
    assert outputs.metrics["errors"] == 4
    assert outputs.metrics["unscorable"] == 0
    assert outputs.tables["scores"]["error"].to_pylist()[8:] == ["f: ValueError: empty"] * 4
    assert outputs.tables["scores"]["reward"].null_count == 4


def test_prompts_of_another_run_are_refused() -> None:
    given = tables()
    given["prompts"] = given["prompts"].slice(1)
    with pytest.raises(ArtifactError, match="prompts of 4 of 12 rollouts are missing"):
        run(given, rewards=[{"name": "numeric_answer"}])


def test_progress_is_counted_in_rollouts() -> None:
    context = Context("i0001")
    run(tables(), context, rewards=[{"name": "numeric_answer"}])
    (bar,) = context.progress_made
    assert (bar.done, bar.total, bar.unit) == (12, 12, "rollouts")


def test_greedy_rollouts_are_scored_and_not_counted() -> None:
    given, prompts = tables(), prompt_rows(3)
    greedy = {**given, "rollouts": table("rollouts", with_greedy(prompts, TEXTS, ["3", "x", "7"]))}
    rewards = [
        {"name": "numeric_answer"},
        {"name": "shuffled", "reward": "numeric_answer", "weight": 0.0},
    ]
    plain, outputs = run(given, rewards=rewards), run(greedy, rewards=rewards)
    sampled = [place for place in range(15) if place % 5 != 4]
    scores = outputs.tables["scores"]
    assert scores.take(sampled) == plain.tables["scores"]
    assert scores["reward"].take([4, 9, 14]).to_pylist() == [1.0, 0.0, 1.0]
    assert scores["reward_shuffled"].take([4, 9, 14]).to_pylist() == [1.0, 0.0, 1.0]
    metrics = dict(outputs.metrics)
    assert metrics.pop("reward_greedy") == pytest.approx(2 / 3)
    assert metrics == plain.metrics


def test_greedy_rows_that_nothing_applies_to_are_not_told() -> None:
    context, prompts = Context("i0001"), prompt_rows(3)
    rows = with_greedy(prompts, TEXTS, ["3", "5", "7"])
    for row in rows[4::5]:
        row["finish_reason"] = "error"
    given = {**tables(), "rollouts": table("rollouts", rows)}
    metrics = run(given, context, rewards=[{"name": "numeric_answer"}]).metrics
    assert (metrics["unscorable"], context.warnings) == (0, [])
    assert metrics["reward_greedy"] != metrics["reward_greedy"]  # NaN: none has a reward


def test_the_first_sampled_row_that_nothing_applies_to_is_named() -> None:
    context, prompts = Context("i0001"), prompt_rows(3)
    rows = with_greedy(prompts, TEXTS, ["3", "5", "7"])
    given = {**tables(), "rollouts": table("rollouts", rows)}
    answers = pa.array(["3", None, None], pa.string())
    place = given["prompts"].column_names.index("reference_answer")
    given["prompts"] = given["prompts"].set_column(place, "reference_answer", answers)
    run(given, context, rewards=[{"name": "numeric_answer"}])
    [warning] = context.warnings
    assert "no reward applies to 8 of 12 rollouts" in warning
    assert f"The first is {rows[5]['rollout_id']}:" in warning
