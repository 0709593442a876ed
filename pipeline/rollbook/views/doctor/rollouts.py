"""The sampled rollouts of an iteration, or of several, as columns of numbers: what most checks count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.advantages.moments import Moments, moments_of
from rollbook.components.rewards.base import Reward
from rollbook.core.ragged import IntArray, Ragged
from rollbook.project.run.stored import StoredTable
from rollbook.rl.estimation import Flags
from rollbook.rl.scoring.totals import FloatArray
from rollbook.tables.columns import aligned, numbers_in
from rollbook.views.doctor.statistics import same_pairs, without_nan

NGRAM = 3
"""Tokens of what is counted as a repetition."""


@dataclass(frozen=True)
class Tables:
    """Stored tables of an iteration; None where they are not on disk."""

    rollouts: StoredTable
    scores: StoredTable
    advantages: StoredTable | None
    prompts: StoredTable | None


class Rollouts:
    """The sampled rollouts of an iteration, or of several, column by column; greedy ones are left out.

    Args:
        parts: the tables of each iteration.
    """

    def __init__(self, parts: Sequence[Tables]) -> None:
        self.parts = parts
        self._numbers: dict[str, FloatArray | None] = {}

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """[B] ids of the rollouts."""
        return self._sampled(self._ids)

    @cached_property
    def group_ids(self) -> list[str]:
        """Ids of the groups, in the order of their labels."""
        return self._encoded.dictionary.to_pylist()

    @cached_property
    def groups(self) -> IntArray:
        """[B] label of each rollout's group, counted from 0 in order of appearance."""
        labels: IntArray = self._encoded.indices.to_numpy().astype(np.int64)
        return labels

    @cached_property
    def group_sizes(self) -> IntArray:
        """Rollouts of each group."""
        return np.bincount(self.groups, minlength=len(self.group_ids))

    @cached_property
    def lengths(self) -> IntArray:
        """[B] tokens of each completion."""
        column = self._sampled(self._column("loss_mask"))
        return pc.list_value_length(column).to_numpy().astype(np.int64)

    @cached_property
    def truncated(self) -> Flags:
        """[B] whether the completion was cut off at the token limit."""
        reasons = self._sampled(self._column("finish_reason"))
        return np.asarray(pc.equal(reasons, "length").to_numpy())

    @cached_property
    def likelihoods(self) -> FloatArray:
        """[B] probability of the whole completion under the policy and temperature that sampled it."""
        tokens = Ragged.from_column(self._sampled(self._column("sampling_logprobs")))
        sums = np.bincount(tokens.row_of, tokens.values.astype(np.float64), len(tokens.lengths))
        return np.exp(sums)

    @property
    def answers(self) -> IntArray:
        """[B] a number for each text; equal texts have equal numbers."""
        return self._answers[0]

    @property
    def empty(self) -> Flags:
        """[B] whether the text is nothing, or nothing but white space."""
        return self._answers[1]

    def text(self, answer: int) -> str:
        """The text that a number of `answers` stands for."""
        return str(self._texts().dictionary[answer].as_py())

    @cached_property
    def completions(self) -> IntArray:
        """[B] a number for each raw completion, special tokens kept."""
        column = self._sampled(self._column("completion"))
        codes = column.combine_chunks().dictionary_encode().indices
        return codes.to_numpy().astype(np.int64)

    @cached_property
    def same_pairs(self) -> FloatArray:
        """[G] share of the pairs of each group's completions that are the same, by label; NaN for groups of one."""
        return same_pairs(self.completions, self.groups)

    @cached_property
    def repetition(self) -> FloatArray:
        """[B] share of the n-grams of a completion's tokens that came before in it, as `repetition_penalty` counts."""
        tokens = Ragged.from_column(self._sampled(self._column("completion_token_ids")))
        count = np.maximum(tokens.lengths - NGRAM + 1, 0)
        rows = np.repeat(np.arange(len(count)), count)
        starts = np.arange(len(rows)) + np.repeat(tokens.starts - (np.cumsum(count) - count), count)
        size = int(tokens.values.max(initial=0)) + 1
        ngrams = np.zeros(len(rows), np.int64)
        for place in range(NGRAM):
            ngrams = ngrams * size + tokens.values[starts + place]
        order = np.lexsort((ngrams, rows))
        again = (np.diff(ngrams[order]) == 0) & (np.diff(rows[order]) == 0)
        repeated = np.bincount(rows[order][1:][again], minlength=len(count))
        return np.where(count > 0, repeated / np.maximum(count, 1), 0.0)

    @cached_property
    def rewards(self) -> FloatArray:
        """[B] total reward; NaN where there is none."""
        return numbers_in(self._scored("reward"))

    @cached_property
    def known_rewards(self) -> FloatArray:
        """Total rewards of the rollouts that have one."""
        return without_nan(self.rewards)

    @cached_property
    def mean_reward(self) -> float:
        """Of the rollouts that have a reward; NaN if none has."""
        return float(self.known_rewards.mean()) if self.known_rewards.size else math.nan

    def component(self, reward: Reward) -> FloatArray | None:
        """[B] of a reward function, not weighted, NaN where it does not apply; None where it was not asked."""
        return self._number(reward.column)

    def logged(self, reward: Reward, name: str) -> FloatArray | None:
        """[B] a number that a reward logged as `<label>_<name>`; None if it did not."""
        return self._number(f"{reward.title}_{name}")

    @cached_property
    def failed(self) -> Flags:
        """[B] whether a reward function failed."""
        return np.asarray(pc.is_valid(self._scored("error")).to_numpy())

    @cached_property
    def advantages(self) -> FloatArray | None:
        """[B] as the update used them; None where they are not on disk, or are of tokens."""
        tables = [part.advantages for part in self.parts]
        if any(table is None for table in tables):
            return None
        columns = [table.all(["rollout_id", "advantage"]) for table in tables if table is not None]
        found = self._in_order(pa.concat_tables(columns), "advantages")["advantage"]
        return numbers_in(found) if found.null_count < len(found) else None

    @cached_property
    def by_group(self) -> Moments:
        """[B] moments of the rewards of each row's group."""
        return moments_of(self.rewards, self.groups, ddof=0)

    @cached_property
    def lead(self) -> FloatArray:
        """[B] reward above the mean of its group."""
        return self.rewards - self.by_group.mean

    @cached_property
    def first_of_group(self) -> IntArray:
        """A row of each group, by label: where statistics [B] of groups are looked up."""
        return np.unique(self.groups, return_index=True)[1]

    @cached_property
    def references(self) -> list[str | None] | None:
        """Reference answer of each group, by label; None where the prompts are not on disk."""
        known: dict[str, str | None] = {}
        for part in self.parts:
            if part.prompts is None:
                return None
            table = part.prompts.all(["group_id", "reference_answer"])
            known |= zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
        return [known.get(group) for group in self.group_ids]

    @cached_property
    def _ids(self) -> pa.ChunkedArray:
        return self._column("rollout_id")

    @cached_property
    def _mask(self) -> pa.ChunkedArray:
        return pc.invert(self._column("greedy"))

    @cached_property
    def _encoded(self) -> pa.DictionaryArray:
        column = self._sampled(self._column("group_id"))
        return column.combine_chunks().dictionary_encode()

    @cached_property
    def _answers(self) -> tuple[IntArray, Flags]:
        """Numbers of the texts, and whether they are empty; the texts of a whole run may not fit into memory."""
        texts = self._texts()
        blank = np.array([not text.strip() for text in texts.dictionary.to_pylist()], bool)
        numbers: IntArray = texts.indices.to_numpy().astype(np.int64)
        return numbers, blank[numbers]

    def _texts(self) -> pa.DictionaryArray:
        return self._sampled(self._column("text")).combine_chunks().dictionary_encode()

    def _sampled(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        return column.filter(self._mask)

    def _column(self, name: str) -> pa.ChunkedArray:
        """A column of the rollouts, greedy ones too."""
        parts = [part.rollouts.column(name) for part in self.parts]
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def _number(self, name: str) -> FloatArray | None:
        """A column of numbers of the scores; None unless all iterations have it."""
        if name not in self._numbers:
            known = all(name in part.scores.names for part in self.parts)
            self._numbers[name] = numbers_in(self._scored(name)) if known else None
        return self._numbers[name]

    def _scored(self, name: str) -> pa.ChunkedArray:
        """A column of the scores in the order of the sampled rollouts."""
        column = pa.chunked_array(
            [chunk for part in self.parts for chunk in part.scores.column(name).chunks]
        )
        return column.take(self._score_rows)

    @cached_property
    def _score_rows(self) -> pa.ChunkedArray:
        """[B] row of each rollout in the scores."""
        ids = [chunk for part in self.parts for chunk in part.scores.column("rollout_id").chunks]
        rows = pa.chunked_array(ids)
        table = pa.table({"rollout_id": rows, "row": pa.array(np.arange(len(rows)))})
        return self._in_order(table, "scores")["row"]

    def _in_order(self, table: pa.Table, kind: str) -> pa.Table:
        """Rows of another table in the order of the sampled rollouts."""
        return aligned(table, pa.table({"rollout_id": self._ids}), kind).filter(self._mask)
