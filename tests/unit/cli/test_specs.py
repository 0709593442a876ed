from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.specs import reward_spec
from pipeline.errors import ConfigError

OWN = """from pipeline.rewards.base import Reward


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
        ("format:heavy", "module 'format' cannot be imported"),
    ],
)
def test_what_cannot_be_read(project: Path, text: str, said: str) -> None:
    (project / "own.py").write_text(OWN)
    with pytest.raises(ConfigError) as caught:
        reward_spec(text)
    assert said in str(caught.value)
