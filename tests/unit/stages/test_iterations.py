"""Whole iterations through the stages' own functions: greedy answers, oversampling, preference, KL in the reward."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollbook.rl.context import Outputs
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, read_table
from tests.in_process import make_base, train
from tests.unit.settings.test_params import shipped

RECIPES: dict[str, dict[str, Any]] = {
    "greedy": {
        "generate_rollouts": {"greedy": True},
        "compute_advantages": {"estimator": {"name": "remax"}},
    },
    "prefer": {
        "prepare_prompts": {"oversample": 1.5, "prefer": "informative", "prefer_among": 2.0}
    },
    "kl": {
        "compute_advantages": {
            "estimator": {"name": "leave_one_out"},
            "kl_coef": {"start": 0.05, "target": 1e-4, "horizon": 100},
        }
    },
}
GROUPS, SIZE = 6, 4


def branch(recipe: str) -> list[str]:
    return [f"{recipe}0001", f"{recipe}0002"]


def settings() -> Params:
    raw = shipped(
        data__train=[{"name": "arithmetic", "below": 6}],
        data__evaluation={},
        policy__base={"name": "tiny", "warm_start_steps": 30, "warm_start_batch": 64},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": GROUPS},
        recipes__grpo__generate_rollouts__group_size=SIZE,
        # an answer that ends in an even digit: a hardly trained policy gives some
        recipes__grpo__score_rollouts__rewards=[
            {"name": "format", "pattern": "regex", "regex": ".*[02468]"}
        ],
        recipes__grpo__update_policy__optimizer_steps=2,
    )
    raw["iterations"] = {}
    for name, changes in RECIPES.items():
        raw["recipes"][name] = {"extends": "grpo", **changes}
        first, second = branch(name)
        steps = ((first, "i0000"), (second, first))
        raw["iterations"] |= {
            key: {"previous": previous, "recipe": name, "reference": "i0000"}
            for key, previous in steps
        }
    return parse_params(raw)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Params, Path]:
    params = settings()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("iterations"))
        make_base(params)
    return params, folder


@pytest.fixture
def run(
    base: tuple[Params, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> dict[str, dict[str, Outputs]]:
    """Both iterations of the recipe that the test is parametrized with."""
    params, folder = base
    monkeypatch.chdir(folder)
    return train(branch(request.param), params)


def stored(kind: str, key: str) -> pa.Table:
    return read_table(path_of(kind, key), kind)[0]


@pytest.mark.parametrize("run", ["greedy"], indirect=True)
def test_greedy_answers_are_the_baseline(run: dict[str, dict[str, Outputs]]) -> None:
    for key, made in run.items():
        rollouts, scores = stored("rollouts", key), stored("scores", key)
        advantages, updates = stored("advantages", key), stored("updates", key)
        assert rollouts.num_rows == GROUPS * (SIZE + 1)
        greedy = rollouts["greedy"].to_numpy()
        reward, advantage = scores["reward"].to_numpy(), advantages["advantage"].to_numpy()
        assert set(reward) == {0.0, 1.0}
        baseline = np.repeat(reward[greedy], SIZE)
        np.testing.assert_array_equal(advantage[~greedy], reward[~greedy] - baseline)
        assert not advantage[greedy].any()
        assert not updates["trained"].to_numpy()[greedy].any()
        assert updates["trained"].to_numpy()[~greedy].any()
        assert made["score_rollouts"].metrics["reward"] == reward[~greedy].mean()
        assert made["score_rollouts"].metrics["reward_greedy"] == reward[greedy].mean()
        assert made["compute_advantages"].metrics["groups"] == GROUPS


@pytest.mark.parametrize("run", ["prefer"], indirect=True)
def test_oversampling_and_preference(run: dict[str, dict[str, Outputs]]) -> None:
    asked = math.ceil(1.5 * GROUPS)
    first, second = branch("prefer")
    for key in run:
        advantages = stored("advantages", key)
        groups = advantages["group_id"].to_pylist()[::SIZE]
        assert groups == stored("prompts", key)["group_id"].to_pylist() and len(groups) == asked
        informative = advantages["informative"].to_numpy()[::SIZE]
        wanted = np.flatnonzero(informative)[:GROUPS]
        kept = advantages["kept"].to_numpy()
        assert np.flatnonzero(kept[::SIZE]).tolist() == wanted.tolist() and len(wanted)
        assert run[key]["compute_advantages"].metrics["kept_groups"] == len(wanted)
        trained = stored("updates", key)["trained"].to_numpy()
        assert not (trained & ~kept).any() and trained.any()
    history = {row["prompt_id"]: row for row in stored("history", second).to_pylist()}
    before = {row["prompt_id"]: row for row in stored("history", first).to_pylist()}
    assert len(before) == asked
    assert sum(row["times_asked"] for row in history.values()) == 2 * asked
    prompts = stored("prompts", second)["prompt_id"].to_pylist()
    flat = [prompt in before and not before[prompt]["last_informative"] for prompt in prompts]
    assert flat == sorted(flat), "flat prompts are asked after all others"
    passed = run[second]["prepare_prompts"].metrics["prompts/passed_over"]
    assert passed > 0
    assert run[first]["prepare_prompts"].metrics["prompts/never_asked_share"] == 1.0


@pytest.mark.parametrize("run", ["kl"], indirect=True)
def test_kl_in_the_reward_follows_its_target(run: dict[str, dict[str, Outputs]]) -> None:
    first, second = branch("kl")
    metrics = {key: made["compute_advantages"].metrics for key, made in run.items()}
    # the policy is the reference at first; a KL of 0 is below the target, so the coefficient shrinks
    assert (metrics[first]["kl"], metrics[first]["kl_coef"]) == (0.0, 0.05)
    rows = GROUPS * SIZE
    assert metrics[second]["kl"] != 0.0
    assert metrics[second]["kl_coef"] == pytest.approx(0.05 * (1 - 0.2 * rows / 100))
    logprobs, scores = stored("logprobs", second), stored("scores", second)
    difference = [
        sum(old) - sum(ref)
        for old, ref in zip(
            logprobs["old_logprobs"].to_pylist(), logprobs["ref_logprobs"].to_pylist(), strict=True
        )
    ]
    rewards = scores["reward"].to_numpy() - metrics[second]["kl_coef"] * np.array(difference)
    groups = rewards.reshape(GROUPS, SIZE)
    expected = (groups - groups.mean(axis=1, keepdims=True)) * SIZE / (SIZE - 1)
    got = stored("advantages", second)["advantage"].to_numpy()
    np.testing.assert_allclose(got, expected.ravel(), atol=1e-6)
    spread = np.ptp(scores["reward"].to_numpy().reshape(GROUPS, SIZE), axis=1) > 0
    assert (
        stored("advantages", second)["informative"].to_numpy()[::SIZE].tolist() == spread.tolist()
    )
