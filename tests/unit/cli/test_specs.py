from pathlib import Path
from typing import Any

import pytest

from rollbook.cli.specs import reward_of, reward_spec
from rollbook.core.errors import ConfigError

OWN = """from rollbook.components.rewards.base import Reward


class Mine(Reward):
    def __call__(self, row):
        return 1.0


def f(completions):
    return [1.0 for _ in completions]
"""


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("format", {"name": "format"}),
        ("format:0.2", {"name": "format", "weight": 0.2}),
        ("format:-1e-2", {"name": "format", "weight": -0.01}),
        ("{name: format, pattern: boxed}", {"name": "format", "pattern": "boxed"}),
        ("own.py:f", {"name": "function", "path": "own.py:f"}),
        ("own.py:f:.5", {"name": "function", "path": "own.py:f", "weight": 0.5}),
        ("own.py:Mine:2", {"path": "own.py:Mine", "weight": 2.0}),
        ("math:sqrt", {"name": "function", "path": "math:sqrt"}),
    ],
)
def test_rewards_as_written(project: Path, text: str, spec: Any) -> None:
    (project / "own.py").write_text(OWN)
    assert reward_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("own.py:g", "own.py has no 'g'"),
        ("none.py:f", "no such file: none.py"),
        ("{name: [", "flow"),
        ("format:heavy", "weight 'heavy' is not a number"),
        ("nowhere:f", "module 'nowhere' cannot be imported"),
        ("own.py", "own.py names no function; write own.py:NAME"),
    ],
)
def test_what_cannot_be_read(project: Path, text: str, said: str) -> None:
    (project / "own.py").write_text(OWN)
    with pytest.raises(ConfigError) as caught:
        reward_spec(text)
    assert said in str(caught.value)


def test_a_reward_is_built_as_written(project: Path) -> None:
    assert reward_of("format:0.2", "test").weight == 0.2
    (project / "own.py").write_text(OWN)
    assert type(reward_of("own.py:Mine", "test")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "length",
            ["REWARD length: needs target_tokens; write '{name: length, target_tokens: …}'"],
        ),
        (
            "{name: length, mode: min}",
            [
                "REWARD length: needs target_tokens; write '{name: length, mode: min, target_tokens: …}'",
                "REWARD length.mode: input should be 'exact' or 'max' (got 'min')",
            ],
        ),
        (
            "judge",
            [
                "REWARD judge: needs base_url and model; write '{name: judge, base_url: …, model: …}'"
            ],
        ),
        (
            "{name: shuffled, reward: {name: length}}",
            ["REWARD shuffled.reward.target_tokens: is required"],
        ),
        ("lenght", ["REWARD: there is no 'lenght' in rewards; did you mean 'length'?"]),
    ],
)
def test_settings_that_are_wrong_are_named_with_the_reward(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError, match="test: ") as caught:
        reward_of(text, "test")
    problems = [str(problem) for problem in caught.value.problems]
    assert [found[: len(wanted)] for found, wanted in zip(problems, said, strict=True)] == said
