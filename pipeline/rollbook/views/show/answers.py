"""The rows of one group in all tables of its iteration, and its answers from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.project.run.iteration import Iteration
from rollbook.project.run.stored import StoredTable
from rollbook.views.show.facts import Answer, Number, RewardValue
from rollbook.views.show.finding import table_of

IDS = ("rollout_id", "group_id", "prompt_id", "iteration")
TRAINING = ("scores", "logprobs", "advantages", "updates")
"""Tables of rollouts beside `rollouts`; `evaluations` holds everything itself."""
SCORED = ("reward", "error", "step_rewards")
REWARD = "reward_"
COMPLETION = (
    *IDS,
    "set",
    "sample_index",
    "greedy",
    "seed",
    "completion_token_ids",
    "loss_mask",
    "completion",
    "text",
    "sampling_logprobs",
    "finish_reason",
    "policy_digest",
)
PROMPT = ("prompt", "reference_answer")
"""Columns about the prompt that an evaluations table has."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AnswerGroup:
    """One group of answers.

    Attributes:
        id: of it.
        iteration: that made them; of an evaluation the one whose policy was asked.
    """

    id: str
    iteration: Iteration

    @property
    def in_training(self) -> bool:
        """Whether it is of a training iteration, and not of an evaluation."""
        return table_of(self.id) == "rollouts"

    @cached_property
    def completions(self) -> StoredTable:
        """The table of its completions.

        Raises:
            ArtifactError: if it is not on disk.
        """
        return self.iteration.table(table_of(self.id))

    @cached_property
    def others(self) -> dict[str, StoredTable]:
        """The tables beside it that are on disk, by kind."""
        kinds = TRAINING if self.in_training else ()
        return {kind: found for kind in kinds if (found := self.iteration.find_table(kind))}

    @cached_property
    def rows(self) -> dict[str, pa.Table]:
        """Its rows by kind of table, whatever is on disk."""
        own = self.completions.places("group_id", self.id)
        found = {"rollouts": self.completions.at(own)}
        for kind, table in self.others.items():
            found[kind] = table.at(table.places("group_id", self.id, beside=own))
        return found

    def row(self, kind: str, rollout_id: str) -> Row:
        """A rollout's row of a table; empty where there is none."""
        rows = self.rows.get(kind)
        if rows is None or not rows.num_rows:
            return {}
        found = rows.filter(pc.equal(rows["rollout_id"], rollout_id)).to_pylist()
        return found[0] if found else {}

    @cached_property
    def scores(self) -> list[Row]:
        """What rewards said, in the order of the answers; empty rows where they are not on disk."""
        if not self.in_training:
            return self._list("rollouts")
        return self._aligned("scores")

    def _aligned(self, kind: str) -> list[Row]:
        by_id = {row["rollout_id"]: row for row in self._list(kind)}
        ids = self.rows["rollouts"]["rollout_id"].to_pylist()
        return [by_id.get(rollout_id, {}) for rollout_id in ids]

    def _list(self, kind: str) -> list[Row]:
        """Rows without their lists of tokens."""
        if kind not in self.rows:
            return []
        rows = self.rows[kind]
        names = [
            name
            for name in rows.column_names
            if name == "step_rewards" or not pa.types.is_list(rows.schema.field(name).type)
        ]
        found: list[Row] = rows.select(names).to_pylist()
        return found

    @cached_property
    def answers(self) -> list[Answer]:
        """All of them, in their order."""
        rollouts = self._list("rollouts")
        lengths = pc.list_value_length(self.rows["rollouts"]["completion_token_ids"]).to_pylist()
        advantages, updates = self._aligned("advantages"), self._aligned("updates")
        places = range(len(rollouts))
        return [
            answer_of(rollouts[at], lengths[at], self.scores[at], advantages[at], updates[at])
            for at in places
        ]


def answer_of(
    rollout: Row, tokens: int, score: Row, advantage: Row | None = None, update: Row | None = None
) -> Answer:
    """An answer from its rows in the tables.

    Args:
        rollout: of rollouts or evaluations.
        tokens: of its completion.
        score: of scores or evaluations.
        advantage, update: of these tables, if there are any.
    """
    advantage, update = advantage or {}, update or {}
    return Answer(
        rollout_id=rollout["rollout_id"],
        greedy=rollout["greedy"],
        text=rollout["text"],
        tokens=tokens,
        finish_reason=rollout["finish_reason"],
        reward=score.get("reward"),
        rewards=reward_values(score),
        error=score.get("error"),
        advantage=advantage.get("advantage"),
        kept=advantage.get("kept"),
        trained=update.get("trained"),
        reason=update.get("reason"),
    )


def reward_values(score: Row) -> dict[str, Number]:
    """What each reward function said, by name."""
    return {
        name.removeprefix(REWARD): value for name, value in score.items() if name.startswith(REWARD)
    }


def rewards_of(
    score: Row, weights: Mapping[str, float]
) -> tuple[list[RewardValue], dict[str, Any]]:
    """Every reward with what it logged, and what was logged by none that can be named.

    A reward logs `<its name>_<what>`, or names of its own.

    Args:
        score: a row of the scores table, or of an evaluation.
        weights: by name of the reward.
    """
    values = reward_values(score)
    skipped = {*IDS, *SCORED, *COMPLETION, *PROMPT}
    logged = {
        name: value
        for name, value in score.items()
        if name not in skipped and not name.startswith(REWARD)
    }
    owners = {name: _owner(name, list(values)) for name in logged}
    rewards = [
        RewardValue(
            name,
            value,
            weights.get(name),
            {column: logged[column] for column, owner in owners.items() if owner == name},
        )
        for name, value in values.items()
    ]
    return rewards, {column: logged[column] for column, owner in owners.items() if not owner}


def _owner(column: str, names: Sequence[str]) -> str:
    """The reward with the longest name that the column begins with; with a single reward it is that one."""
    if len(names) == 1:
        return names[0]
    mine = [name for name in names if column.startswith(f"{name}_")]
    return max(mine, key=len, default="")
