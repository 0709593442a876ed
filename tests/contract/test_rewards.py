"""The laws of every reward that is found in `pipeline/rollbook/components/rewards`."""

from __future__ import annotations

import inspect
import math
import pickle
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.reasoning_tasks import packed
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.outcomes import outcomes_of
from rollbook.core.registry import build, menu
from rollbook.rl.scoring.scorer import score_groups
from tests.unit.components.rewards.judge_server import Answer, JudgeServer
from tests.unit.components.rewards.rows import row
from tests.unit.components.rewards.tiny_reward_model import tiny_reward_model

MODEL_FOLDER = tempfile.TemporaryDirectory(prefix="reward_model")
REWARDS = menu("rewards")
REQUIRED: dict[str, dict[str, Any]] = {
    "function": {"path": "tests.contract.test_rewards:shorter_is_better"},
    "length": {"target_tokens": 40},
    "shuffled": {"reward": {"name": "numeric_answer"}},
    "soft_overlong": {"max_completion_tokens": 40, "cache_tokens": 20},
}
"""Options for rewards that cannot be built from their defaults; see also `required_of`."""
LOOKS_AT_SIBLINGS = {"shuffled"}
BATCHED = {"reward_model"}
"""Siblings go through a model together, which changes the last digits."""

TEXTS = (
    "7",
    "The answer is 7",
    "8",
    "",
    "<think>3 and 4</think><answer>7</answer>",
    r"so \boxed{7}",
    "\x00\ud800 ٧ 7" + "9" * 3000,
    "nan",
    "```python\ndef add(a, b):\n    return a + b\n```",
)
COLUMNS = {
    "difficulty": 2,
    "tests": ["assert add(3, 4) == 7"],
    "reasoning_gym": packed(
        "chain_sum", {}, {"question": "3 + 4 =", "answer": "7", "metadata": {}}
    ),
}
GROUP = [
    row(text, reference_answer="7", index=place, columns=COLUMNS)
    for place, text in enumerate(TEXTS)
]
OTHER = [
    row(text, reference_answer="8", index=place, group_id="other", rollout_id=f"other/{place:02d}")
    for place, text in enumerate(TEXTS)
]


def shorter_is_better(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    """A function as TRL users write them."""
    return [1.0 / (1 + len(completion[0]["content"])) for completion in completions]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a reward keeps goes into this repository."""
    monkeypatch.chdir(tmp_path)


@cache
def required_of(name: str) -> dict[str, Any]:
    """Required options, with a server for the judge and a folder for the reward model that live as long."""
    if name == "judge":
        return {"base_url": JudgeServer(length_as_score).base_url, "model": "m"}
    if name == "reward_model":
        return {
            "model": str(tiny_reward_model(Path(MODEL_FOLDER.name), max_position_embeddings=4096))
        }
    return REQUIRED.get(name, {})


def length_as_score(body: dict[str, Any]) -> Answer:
    return Answer(f"Score: {len(body['messages'][0]['content']) % 11}")


def built(name: str) -> Reward:
    reward = build("rewards", {"name": name, **required_of(name)})
    assert isinstance(reward, Reward)
    return reward


def described(results: list[RewardResult]) -> list[Any]:
    return [(result.value, dict(result.log), result.steps, result.error) for result in results]


@cache
def scored_in(processes: int) -> dict[str, list[Any]]:
    """All columns that all rewards make of two groups, here (0) or in worker processes with other hash seeds."""
    rewards: list[Any] = [
        build("rewards", {"name": name, "label": name, **required_of(name)}) for name in REWARDS
    ]
    columns = score_groups(rewards, [*GROUP, *OTHER], max_error_share=1, processes=processes)
    return {name: column.to_pylist() for name, column in columns.items()}


def test_there_are_rewards() -> None:
    assert {"numeric_answer", "exact_match", "format", "function", "shuffled"} <= set(REWARDS)


@pytest.mark.parametrize("name", REWARDS)
def test_builds_from_its_defaults(name: str) -> None:
    cls = type(built(name))
    required = {field for field, info in cls.model_fields.items() if info.is_required()}
    assert required == set(required_of(name)), "list required options in REQUIRED above"
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
def test_says_the_same_twice(name: str) -> None:
    first = described(outcomes_of(built(name), GROUP))
    assert described(outcomes_of(built(name), GROUP)) == first


@pytest.mark.parametrize("name", REWARDS)
def test_is_built_again_from_its_settings(name: str) -> None:
    assert build("rewards", built(name).settings()) == built(name)


@pytest.mark.parametrize("name", REWARDS)
def test_says_the_same_in_worker_processes(name: str) -> None:
    here, there = scored_in(0), scored_in(2)
    mine = [each for each in here if each == f"reward_{name}" or each.startswith(f"{name}_")]
    assert f"reward_{name}" in mine
    assert {each: there[each] for each in mine} == {each: here[each] for each in mine}


def test_worker_processes_say_nothing_else() -> None:
    assert scored_in(2) == scored_in(0)


@pytest.mark.parametrize("name", REWARDS)
def test_the_order_of_siblings_does_not_matter(name: str) -> None:
    straight = described(outcomes_of(built(name), GROUP))
    assert described(outcomes_of(built(name), GROUP[::-1])) == straight[::-1]


@pytest.mark.parametrize("name", [name for name in REWARDS if name not in LOOKS_AT_SIBLINGS])
def test_a_group_is_scored_like_its_rows(name: str) -> None:
    reward = built(name)
    alone = [outcomes_of(reward, [each])[0] for each in GROUP]
    if name in BATCHED:
        together = [result.value for result in outcomes_of(reward, GROUP)]
        assert together == pytest.approx([result.value for result in alone], abs=1e-6)
        return
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
