"""What a re-score says of each rollout, and the numbers about it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from rollbook.core.errors import RewardError, RollbookError
from rollbook.rl.rescoring import (
    effective_share,
    group_ranks,
    most_moved,
    rank_correlation,
    rescored,
    summary,
)
from rollbook.rl.scoring import columns
from rollbook.rl.scoring.scorer import Scorer
from rollbook.settings.params import parse_params
from rollbook.settings.recipe import Recipe
from rollbook.tables.schemas.rescores import SCHEMA
from tests.stored_iterations import TEXTS, settings, tables_of

pytestmark = pytest.mark.usefixtures("project")


def _recipe(name: str = "long", **changes: Any) -> Recipe:
    raw = settings()
    raw["recipes"]["other"] = {"extends": name, **changes}
    return parse_params(raw).recipes["other"]


def _asked(recipe: Recipe, tables: dict[str, pa.Table]) -> pa.Table:
    score = recipe.score_rollouts
    with Scorer(score.rewards) as scorer:
        table = rescored(tables, scorer, score, recipe.compute_advantages)
    return SCHEMA.validate(table, "test")


def test_the_same_rewards_say_the_same() -> None:
    table = _asked(_recipe("grpo"), tables_of())
    assert table["reward"].to_pylist() == table["old_reward"].to_pylist()
    assert not any(table["sign_flipped"].to_pylist())
    assert set(table["rank_moved"].to_pylist()) == {0}
    assert table["group_signal"].to_pylist() == ["kept"] * 4 + ["none"] * 4
    numbers = summary(table, "i0000")
    assert numbers["rank_correlation"] == 1.0
    assert numbers["old_reward"] == numbers["reward"] == 0.75


def test_other_rewards_turn_advantages_round() -> None:
    table = _asked(_recipe(), tables_of())
    assert table["reward"].to_pylist() == [1.0, 1.0, 1.0, 11.0, 1.0, 1.0, 1.0, 1.0]
    assert table["reward_longest"].to_pylist() == table["reward"].to_pylist()
    assert np.sign(table["advantage"].to_numpy()).tolist() == [-1, -1, -1, 1, 0, 0, 0, 0]
    assert table["sign_flipped"].to_pylist() == [True, False, True, True] + [False] * 4
    assert table["old_group_rank"].to_pylist() == [1, 3, 1, 3, 1, 1, 1, 1]
    assert table["group_rank"].to_pylist() == [2, 2, 2, 1, 1, 1, 1, 1]
    assert table["rank_moved"].to_pylist() == [-1, 1, -1, 2, 0, 0, 0, 0]
    numbers = summary(table, "i0001")
    assert (numbers["sign_flips"], numbers["sign_flips_share"]) == (3, 3 / 8)
    assert (numbers["on_policy"], numbers["groups_kept"], numbers["groups_none"]) == (0, 1, 1)


def test_groups_gain_and_lose_signal() -> None:
    texts = [["3", "3", "3", "3"], ["5", "5", "5", "long"]]
    table = _asked(_recipe(), tables_of(texts=texts))
    assert table["group_signal"].to_pylist() == ["lost"] * 4 + ["gained"] * 4
    numbers = summary(table, "i0000")
    assert (numbers["groups_gained"], numbers["groups_lost"], numbers["groups"]) == (1, 1, 2)


def test_a_greedy_rollout_is_scored_and_moves_nothing() -> None:
    recipe = _recipe()
    alone, beside = (
        _asked(recipe, tables_of(greedy=greedy, reference=-0.7))
        for greedy in (None, ["a very long one", "1"])
    )
    greedy = beside["greedy"].to_numpy()
    assert beside["reward"].to_numpy()[greedy].tolist() == [15.0, 1.0]
    assert beside["group_rank"].filter(beside["greedy"]).null_count == 2
    for name in ("advantage", "group_rank", "group_signal"):
        assert beside[name].filter(pa.array(~greedy)).to_pylist() == alone[name].to_pylist()
    assert summary(beside, "i0000") == summary(alone, "i0000")
    assert not any(most_moved(beside)["greedy"].to_pylist())


def test_the_order_of_the_tables_changes_nothing() -> None:
    recipe, tables = _recipe(), tables_of(reference=-0.7)
    turned = {
        kind: each if kind == "rollouts" else each.take(list(range(each.num_rows))[::-1])
        for kind, each in tables.items()
    }
    assert _asked(recipe, turned).equals(_asked(recipe, tables))


def test_broken_rewards_are_errors_on_their_rows_and_never_0() -> None:
    rewards = [{"name": "function", "path": "my_rewards.py:sometimes"}]
    strict = _recipe(score_rollouts={"rewards": rewards})
    with pytest.raises(RewardError, match="no such luck"):
        _asked(strict, tables_of())
    allowed = _recipe(score_rollouts={"rewards": rewards, "max_error_share": 1.0})
    table = _asked(allowed, tables_of())
    assert table["reward"].null_count == 8
    assert table["group_rank"].null_count == 8
    numbers = summary(table, "i0000")
    assert (numbers["errors"], numbers["null"]) == (4, 4)
    assert np.isnan(numbers["reward"]) and np.isnan(numbers["rank_correlation"])


def test_effective_size_comes_from_the_log_probs_that_are_stored() -> None:
    recipe = _recipe("grpo")
    nothing = _asked(recipe, tables_of())
    assert nothing["reference_log_weight"].null_count == 8
    assert np.isnan(summary(nothing, "i0001")["effective_share"])
    tables = tables_of(reference=-0.7)
    tokens = [len(text) + 1 for group in TEXTS for text in group]
    log_weights = -0.2 * np.array(tokens)
    table = _asked(recipe, tables)
    np.testing.assert_allclose(table["reference_log_weight"].to_numpy(), log_weights, rtol=1e-6)
    weights = np.exp(log_weights)
    share = weights.sum() ** 2 / 8 / (weights**2).sum()
    assert summary(table, "i0001")["effective_share"] == pytest.approx(share)
    assert summary(_asked(recipe, tables_of(reference=-0.5)), "i0000")["effective_share"] == 1.0


def test_weights_of_few_rows_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(reference=-0.7, greedy=["a very long one", "1"])
    whole = _asked(_recipe("grpo"), tables)["reference_log_weight"]
    assert len(set(whole.to_pylist())) == 3
    monkeypatch.setattr("rollbook.rl.rescoring.WEIGHED_ROWS", 3)
    assert _asked(_recipe("grpo"), tables)["reference_log_weight"].equals(whole)


def test_a_kl_in_the_reward_needs_its_log_probs() -> None:
    recipe = _recipe("grpo", compute_advantages={"kl_coef": 0.1})
    with pytest.raises(RollbookError, match=r"i0001 has no log-probs of the reference policy"):
        _asked(recipe, tables_of())
    plain = _asked(_recipe("grpo"), tables_of(reference=-0.7))
    penalized = _asked(recipe, tables_of(reference=-0.7))
    assert plain["reward"].equals(penalized["reward"])
    assert not plain["advantage"].equals(penalized["advantage"])


def test_most_moved_comes_first_and_what_stayed_is_left_out() -> None:
    table = _asked(_recipe(), tables_of())
    moved = most_moved(table)
    change = np.abs(moved["advantage"].to_numpy() - moved["old_advantage"].to_numpy())
    assert (np.diff(change) <= 0).all() and change[-1] > 0
    assert moved["rollout_id"][0].as_py().endswith("/03")
    assert moved.num_rows == 4
    assert most_moved(table, 2).num_rows == 2


def test_rewards_that_are_only_scaled_move_nothing() -> None:
    """The estimator's eps moves every advantage by about 1e-4, which the table of what moved does not show."""
    rewards = [{"name": "numeric_answer", "weight": 3.0}]
    tables = tables_of()
    before = _asked(_recipe("grpo"), tables)["advantage"]
    moved = tables["advantages"].column_names.index("advantage")
    tables["advantages"] = tables["advantages"].set_column(moved, "advantage", before)
    table = _asked(_recipe("grpo", score_rollouts={"rewards": rewards}), tables)
    change = np.abs(table["advantage"].to_numpy() - table["old_advantage"].to_numpy())
    assert 0 < change.max() < 1e-3
    rows = most_moved(table).to_pylist()
    assert {(row["old_reward"], row["reward"]) for row in rows} == {(1.0, 3.0)}
    assert len(rows) == 6  # in the order of rewards, though the advantages of group 1 differ too


def test_a_failure_has_not_moved() -> None:
    table = _asked(_recipe(), tables_of())
    first, *others = most_moved(table)["rollout_id"].to_pylist()
    errors = ["failed" if each == first else None for each in table["rollout_id"].to_pylist()]
    place = table.column_names.index("error")
    failed = table.set_column(place, "error", pa.array(errors, pa.string()))
    assert most_moved(failed)["rollout_id"].to_pylist() == others


@pytest.mark.parametrize(
    ("old", "new", "moves"),
    [
        (0.9999, 1.0001, False),
        (999.9, 1000.1, False),
        (-0.707, -0.7071, False),
        (0.0, 1e-5, True),
        (1.0, -1.0, True),
        (1.0, 1.01, True),
        (5e-324, 6e-301, True),
        (1e300, 1.0001e300, False),
    ],
)
def test_a_change_is_what_three_digits_show(old: float, new: float, moves: bool) -> None:
    row = dict.fromkeys(("rollout_id", "group_id", "prompt_id", "iteration"), "x")
    values = {"greedy": False, "error": None, "old_reward": None, "reward": None}
    table = pa.Table.from_pylist([{**row, **values, "old_advantage": old, "advantage": new}])
    assert most_moved(table).num_rows == moves
    assert (f"{old:.3g}" != f"{new:.3g}") == moves


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_scipy(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    values, other = (drawn.integers(0, 4, 60).astype(float) for _ in range(2))
    groups = drawn.integers(0, 7, 60)
    values[drawn.random(60) < 0.2] = np.nan
    ranks = group_ranks(values, groups)
    assert np.isnan(ranks[np.isnan(values)]).all()
    for group in np.unique(groups):
        inside = (groups == group) & ~np.isnan(values)
        assert ranks[inside].tolist() == stats.rankdata(-values[inside], "min").tolist()
    known = ~np.isnan(values)
    expected = stats.spearmanr(values[known], other[known]).statistic
    assert rank_correlation(values, other) == pytest.approx(expected)


def test_nothing_to_measure_is_nan() -> None:
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
    assert np.isnan(rank_correlation(np.array([np.nan]), np.array([1.0])))
    assert np.isnan(effective_share(np.array([np.nan, np.nan])))
    assert group_ranks(np.empty(0), np.empty(0, np.int64)).size == 0
    assert effective_share(np.array([-2000.0, 2000.0])) == 0.5


def test_a_reward_cannot_log_under_a_name_of_the_table() -> None:
    assert set(SCHEMA.columns) <= columns.TAKEN


def test_stored_tables_are_not_changed(project: Path) -> None:
    tables = tables_of(reference=-0.7)
    before = {kind: each.to_pylist() for kind, each in tables.items()}
    _asked(_recipe(), tables)
    assert {kind: each.to_pylist() for kind, each in tables.items()} == before
