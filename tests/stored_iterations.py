"""Iterations on disk, as training left them, in microseconds: two groups of four answers to 1+2= and 2+3=."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollbook.tables.artifacts import write_table
from tests.builders import prompt_rows, rollout_rows, table, with_greedy
from tests.unit.settings.test_params import shipped

TEXTS = [["3", "4", "3", "long answer"], ["5", "5", "5", "5"]]
REWARDS = [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
ADVANTAGES = [[1.0, -1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]]
SCORED = {"error": None, "step_rewards": None}
MEASURED = {"values": None, "entropies": None}
ESTIMATED = {
    **dict.fromkeys(("token_advantages", "token_returns", "group_mean", "group_std")),
    "kept": True,
}
LONGEST = (
    "def longest(completions, **kwargs):\n"
    "    return [float(len(c[0]['content'])) for c in completions]\n"
    "\n\ndef sometimes(completions, **kwargs):\n"
    "    if any('long' in c[0]['content'] for c in completions):\n"
    "        raise ValueError('no such luck')\n"
    "    return [None for _ in completions]\n"
)
"""A reward file that likes long answers, and one that breaks on them and says nothing of others."""


def tables_of(
    key: str = "i0001",
    texts: Sequence[Sequence[str]] = TEXTS,
    reference: float | None = None,
    greedy: Sequence[str] | None = None,
) -> dict[str, pa.Table]:
    """What an iteration stored of rollouts that were rewarded with `REWARDS`.

    Args:
        key: the iteration.
        texts: the answers, by group.
        reference: log-prob of every token under the reference; None: nothing was measured. The policy's own is -0.5.
        greedy: further answers, one per group, made without sampling; rewarded with 1.
    """
    prompts = prompt_rows(len(texts), key)
    rollouts = (
        rollout_rows(prompts, texts) if greedy is None else with_greedy(prompts, texts, greedy)
    )
    ids = [
        {name: row[name] for name in ("rollout_id", "group_id", "prompt_id", "iteration")}
        for row in rollouts
    ]
    extra = [] if greedy is None else [1.0]
    rewards = [reward for group in REWARDS for reward in [*group, *extra]]
    advantages = [value for group in ADVANTAGES for value in [*group, *[0.0] * len(extra)]]
    informative = [len(set(group)) > 1 for group in REWARDS for _ in [*group, *extra]]
    return {
        "prompts": table("prompts", prompts),
        "rollouts": table("rollouts", rollouts),
        "scores": table(
            "scores",
            [
                {**each, **SCORED, "reward": reward, "reward_numeric_answer": reward}
                for each, reward in zip(ids, rewards, strict=True)
            ],
        ),
        "logprobs": table(
            "logprobs",
            []
            if reference is None
            else [
                {
                    **each,
                    **MEASURED,
                    "old_logprobs": row["sampling_logprobs"],
                    "ref_logprobs": [reference] * len(row["sampling_logprobs"]),
                }
                for each, row in zip(ids, rollouts, strict=True)
            ],
        ),
        "advantages": table(
            "advantages",
            [
                {**each, **ESTIMATED, "advantage": value, "informative": signal}
                for each, value, signal in zip(ids, advantages, informative, strict=True)
            ],
        ),
    }


def store(*keys: str, reference: float | None = None) -> None:
    """Writes `tables_of` each iteration below the current directory."""
    for key in keys:
        for kind, stored in tables_of(key, reference=reference).items():
            write_table(stored, kind, key)


def settings(**changes: Any) -> dict[str, Any]:
    """The shipped settings with three iterations and a recipe `long` that rewards long answers of `my_rewards.py`."""
    Path("my_rewards.py").write_text(LONGEST)
    raw = shipped(**changes)
    rewards = [{"name": "function", "path": "my_rewards.py:longest"}]
    raw["recipes"]["long"] = {"extends": "grpo", "score_rollouts": {"rewards": rewards}}
    raw["rescores"] = {"longer": {"recipe": "long"}}
    keys = ["i0000", "i0001", "i0002", "i0003"]
    raw["iterations"] = {
        key: {"previous": previous, "recipe": "grpo", "reference": "i0000"}
        for previous, key in itertools.pairwise(keys)
    }
    return raw
