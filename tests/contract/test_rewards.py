"""The laws of every reward that is found in `pipeline/rewards`."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.registry import build, menu
from pipeline.rewards.base import Reward, RewardInput, RewardResult
from pipeline.rewards.scoring import outcomes_of
from tests.unit.rewards.rows import row

ROOT = Path(__file__).parents[2]
REWARDS = menu("rewards")
REQUIRED: dict[str, dict[str, Any]] = {
    "function": {"path": "tests.contract.test_rewards:shorter_is_better"},
    "shuffled": {"reward": {"name": "numeric_answer"}},
    "soft_overlong": {"max_completion_tokens": 40, "cache_tokens": 20},
}
"""Options for rewards that cannot be built from their defaults."""
LOOKS_AT_SIBLINGS = {"shuffled"}

TEXTS = (
    "7",
    "The answer is 7",
    "8",
    "",
    "<think>3 and 4</think><answer>7</answer>",
    r"so \boxed{7}",
    "\x00\ud800 ٧ 7" + "9" * 3000,
    "nan",
)
GROUP = [
    row(text, reference_answer="7", index=place, columns={"difficulty": 2})
    for place, text in enumerate(TEXTS)
]
WORKER = """
import pickle, sys
from pipeline.rewards.scoring import outcomes_of
jobs = pickle.load(sys.stdin.buffer)
pickle.dump({name: outcomes_of(*job) for name, job in jobs.items()}, sys.stdout.buffer)
"""


def shorter_is_better(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """A function as TRL users write them."""
    return [1.0 / (1 + len(completion[0]["content"])) for completion in completions]


def built(name: str) -> Reward:
    reward = build("rewards", {"name": name, **REQUIRED.get(name, {})})
    assert isinstance(reward, Reward)
    return reward


def described(results: list[RewardResult]) -> list[Any]:
    return [(result.value, dict(result.log), result.steps, result.error) for result in results]


@cache
def in_a_worker() -> dict[str, list[RewardResult]]:
    """What all rewards say in another process, with another hash seed."""
    jobs = {name: (built(name), GROUP) for name in REWARDS}
    result = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps(jobs),
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    answers: dict[str, list[RewardResult]] = pickle.loads(result.stdout)
    return answers


def test_there_are_rewards() -> None:
    assert {"numeric_answer", "exact_match", "format", "function", "shuffled"} <= set(REWARDS)


@pytest.mark.parametrize("name", REWARDS)
def test_builds_from_its_defaults(name: str) -> None:
    cls = type(built(name))
    required = {field for field, info in cls.model_fields.items() if info.is_required()}
    assert required == set(REQUIRED.get(name, {})), "list required options in REQUIRED above"
    assert built(name).weight == 1.0
    assert built(name).column.startswith("reward_")
    assert built(name).settings()["name"] == name


@pytest.mark.parametrize("name", REWARDS)
def test_is_documented(name: str) -> None:
    cls = type(built(name))
    module = inspect.getdoc(sys.modules[cls.__module__]) or ""
    assert module.startswith(f"{name}: ")
    own = set(cls.model_fields) - set(Reward.model_fields)
    assert all(f"{field}:" in (inspect.getdoc(cls) or "") for field in own)


@pytest.mark.parametrize("name", REWARDS)
def test_gives_finite_numbers_and_never_fails_on_any_text(name: str) -> None:
    for result in outcomes_of(built(name), GROUP):
        assert result.error is None
        assert result.value is not None
        assert math.isfinite(result.value)


@pytest.mark.parametrize("name", REWARDS)
def test_says_the_same_twice_and_in_a_worker(name: str) -> None:
    first = described(outcomes_of(built(name), GROUP))
    assert described(outcomes_of(built(name), GROUP)) == first
    assert described(in_a_worker()[name]) == first


@pytest.mark.parametrize("name", REWARDS)
def test_the_order_of_siblings_does_not_matter(name: str) -> None:
    straight = described(outcomes_of(built(name), GROUP))
    assert described(outcomes_of(built(name), GROUP[::-1])) == straight[::-1]


@pytest.mark.parametrize("name", [name for name in REWARDS if name not in LOOKS_AT_SIBLINGS])
def test_a_group_is_scored_like_its_rows(name: str) -> None:
    reward = built(name)
    alone = [outcomes_of(reward, [each])[0] for each in GROUP]
    assert described(outcomes_of(reward, GROUP)) == described(alone)
    called = [reward(each) for each in GROUP]
    values = [each.value if isinstance(each, RewardResult) else each for each in called]
    assert values == [result.value for result in alone]


@pytest.mark.parametrize("name", REWARDS)
def test_rows_are_not_changed(name: str) -> None:
    before = pickle.dumps(GROUP)
    outcomes_of(built(name), GROUP)
    assert pickle.dumps(GROUP) == before


@pytest.mark.parametrize("name", REWARDS)
def test_no_reference_answer_is_no_error(name: str) -> None:
    group: list[RewardInput] = [row("7", None, index=place) for place in range(2)]
    assert [result.error for result in outcomes_of(built(name), group)] == [None, None]
