"""What checks read: the metrics, tables and settings of one chain of iterations, each when it is first asked for.

Tables are opened for a look, column by column (`pipeline.showing.tables`): nothing is hashed, no policy is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.advantages.moments import Moments, moments_of
from pipeline.artifacts import path_of, read_json
from pipeline.config import BASE_KEY, Params, Recipe
from pipeline.doctor.statistics import FEWEST_GROUPS
from pipeline.errors import ConfigError, Problem, nearest
from pipeline.estimation import Flags, aligned
from pipeline.plan import ITERATION_STAGES
from pipeline.ragged import IntArray, Ragged
from pipeline.scoring.totals import FloatArray, numbers_in
from pipeline.showing.tables import Stored, stored

COMMAND = "rollbook doctor"
REWARD_PREFIX = "reward_"
"""Columns of the scores that are reward functions begin so; see `pipeline.rewards.base.Reward.column`."""
NGRAM = 3
"""Tokens of what is counted as a repetition."""
AS_RUN = {
    "prepare_prompts": "format",
    "generate_rollouts": "generate",
    "score_rollouts": "score_rollouts",
    "compute_advantages": "compute_advantages",
    "update_policy": "update",
}
"""Where run_info of each stage keeps the section of the recipe that it ran with."""


@dataclass(frozen=True)
class Tables:
    """Stored tables of an iteration; None where they are not on disk."""

    rollouts: Stored
    scores: Stored
    advantages: Stored | None
    prompts: Stored | None


class Rollouts:
    """The sampled rollouts of an iteration, or of several, column by column; greedy ones are left out.

    Args:
        parts: the tables of each iteration.
    """

    def __init__(self, parts: Sequence[Tables]) -> None:
        self.parts = parts

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
        return self._score("reward")

    @cached_property
    def components(self) -> dict[str, FloatArray]:
        """[B] of each reward function by its label; NaN where it does not apply."""
        names = [name for name in self._score_names if name.startswith(REWARD_PREFIX)]
        return {name.removeprefix(REWARD_PREFIX): self._score(name) for name in names}

    def logged(self, name: str) -> FloatArray | None:
        """[B] a number that a reward logged; None if none did."""
        return self._score(name) if name in self._score_names else None

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
        return numbers_in(self._in_order(pa.concat_tables(columns), "advantages")["advantage"])

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

    @cached_property
    def _score_names(self) -> list[str]:
        """Columns that the scores of all iterations have."""
        first, *others = (part.scores.names for part in self.parts)
        return [name for name in first if all(name in names for names in others)]

    def _scored(self, name: str) -> pa.ChunkedArray:
        """A column of the scores in the order of the sampled rollouts."""
        table = pa.concat_tables([part.scores.all(["rollout_id", name]) for part in self.parts])
        return self._in_order(table, "scores")[name]

    def _in_order(self, table: pa.Table, kind: str) -> pa.Table:
        """Rows of another table in the order of the sampled rollouts."""
        return aligned(table, pa.table({"rollout_id": self._ids}), kind).filter(self._mask)

    def _score(self, name: str) -> FloatArray:
        return numbers_in(self._scored(name))


class Reading:
    """One iteration.

    Attributes:
        key: of the iteration.
        keys: of the iterations that its rollouts are looked at together with, itself the last of them.
        recipe_name: in params.yaml.
        reference: the iteration that made its reference policy.
    """

    def __init__(self, key: str, params: Params, keys: Sequence[str] = ()) -> None:
        self.key = key
        self.keys = tuple(keys) or (key,)
        self._params = params
        self.recipe_name = params.every_iteration[key].recipe
        self.reference = params.every_iteration[key].reference

    @property
    def name(self) -> str:
        """Its key, or the first and the last of its keys."""
        return self.key if len(self.keys) == 1 else f"{self.keys[0]}–{self.key}"

    @cached_property
    def recipe(self) -> Recipe:
        """As the iteration ran, by its run_info; as params.yaml has it where that is not on disk or no longer valid.

        Raises:
            ConfigError: if the iteration is sealed and this Rollbook cannot read its recipe any more.
        """
        sections: dict[str, Any] = {}
        for stage, name in AS_RUN.items():
            path = path_of(f"run_info/{stage}", self.key)
            section = read_json(path)["settings"].get(name) if path.exists() else None
            if section is None:
                return self._params.recipe_of(self.key)
            sections[stage] = section
        try:
            return Recipe.model_validate(sections)
        except ValidationError:
            return self._params.recipe_of(self.key)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Of all its stages that are finished; numbers that are null are left out."""
        found: dict[str, float] = {}
        for stage in ITERATION_STAGES:
            path = path_of(f"metrics/{stage}", self.key)
            found |= _numbers(read_json(path)) if path.exists() else {}
        return found

    @cached_property
    def rollouts(self) -> Rollouts | None:
        """None until it is scored, and where its tables are not on disk."""
        parts = []
        for key in self.keys:
            rollouts, scores = stored("rollouts", key), stored("scores", key)
            if rollouts is None or scores is None:
                return None
            parts.append(
                Tables(rollouts, scores, stored("advantages", key), stored("prompts", key))
            )
        return Rollouts(parts)

    @cached_property
    def steps(self) -> dict[str, FloatArray]:
        """Columns of its optimizer steps; empty where they are not on disk."""
        table = stored("optimizer_steps", self.key)
        if table is None:
            return {}
        names = [name for name in table.names if name != "iteration"]
        return {name: numbers_in(table.column(name)) for name in names}

    @cached_property
    def evaluation(self) -> pa.Table | None:
        """Set, prompt, reward, greedy of its evaluation; None where it is not on disk or not evaluated."""
        return evaluation_of(self.key)


class Readings:
    """One chain of iterations, as far as it is finished.

    Attributes:
        params: as the file has them now.
        keys: iterations of the chain that have been started, in order.
    """

    def __init__(self, params: Params, tip: str) -> None:
        self.params = params
        self._chain = params.chain(tip)
        self.keys = [key for key in self._chain if _is_started(key)]

    @cached_property
    def iterations(self) -> list[Reading]:
        """Its iterations, in order."""
        return [Reading(key, self.params) for key in self.keys]

    @cached_property
    def first(self) -> Reading | None:
        """The first iteration of the chain, run or not; None if there is none."""
        return Reading(self._chain[0], self.params) if self._chain else None

    @cached_property
    def scored(self) -> list[tuple[Reading, Rollouts]]:
        """Iterations whose rollouts and scores are on disk, with them.

        Neighbours of one recipe that have fewer than `FEWEST_GROUPS` are looked at together, or chance would decide.
        """
        pools: list[list[Reading]] = []
        for reading in self.iterations:
            if reading.rollouts is None:
                continue
            if pools and reading.recipe_name == pools[-1][-1].recipe_name and _is_small(pools[-1]):
                pools[-1].append(reading)
            else:
                pools.append([reading])
        if len(pools) > 1 and _is_small(pools[-1]) and _recipes(*pools[-2:]) == 1:
            pools[-2:] = [[*pools[-2], *pools[-1]]]
        found = (pool[0] if len(pool) == 1 else self._pooled(pool) for pool in pools)
        return [(reading, reading.rollouts) for reading in found if reading.rollouts is not None]

    def _pooled(self, pool: Sequence[Reading]) -> Reading:
        return Reading(pool[-1].key, self.params, [reading.key for reading in pool])

    def having(self, *metrics: str) -> list[Reading]:
        """Iterations whose metrics hold all of these."""
        return [
            reading
            for reading in self.iterations
            if all(name in reading.metrics for name in metrics)
        ]

    @cached_property
    def base_metrics(self) -> dict[str, float]:
        """Of the evaluation of the base policy; empty where there is none."""
        path = path_of("metrics/evaluate_policy", BASE_KEY)
        return _numbers(read_json(path)) if path.exists() else {}

    @cached_property
    def base_lengths(self) -> IntArray | None:
        """Tokens that the sampled answers of the base policy's evaluation need at least, one more than it has for an
        answer that is cut off; None where they are not on disk."""
        table = stored("evaluations", BASE_KEY)
        if table is None:
            return None
        sampled = pc.invert(table.column("greedy"))
        lengths = pc.list_value_length(table.column("loss_mask").filter(sampled)).to_numpy()
        cut = pc.equal(table.column("finish_reason").filter(sampled), "length").to_numpy()
        needed: IntArray = lengths.astype(np.int64) + cut
        return needed

    @cached_property
    def base_evaluation(self) -> pa.Table | None:
        """As `Reading.evaluation`."""
        return evaluation_of(BASE_KEY)

    @property
    def missing(self) -> list[str]:
        """Paths of rollouts and scores of finished iterations that are not on disk, so that they are not looked at."""
        return [
            path_of(kind, reading.key).as_posix()
            for reading in self.iterations
            for kind, stage in (("rollouts", "generate_rollouts"), ("scores", "score_rollouts"))
            if path_of(f"metrics/{stage}", reading.key).exists()
            and not path_of(kind, reading.key).exists()
        ]


def readings_of(params: Params, chain: str = "") -> Readings:
    """What is stored of a chain.

    Args:
        params: of the project.
        chain: an iteration; its chain is that from the base policy up to it. Default: the last iteration of
            params.yaml that has been started.

    Raises:
        ConfigError: if there is no such iteration.
    """
    known = list(params.every_iteration)
    if chain and chain not in (BASE_KEY, *known):
        what = f"there is no iteration {chain!r}; {nearest(chain, known)}"
        raise ConfigError([Problem("--chain", what)], COMMAND)
    if not known:
        return Readings(params, BASE_KEY)
    started = [key for key in known if _is_started(key)]
    return Readings(params, chain or (started or known)[-1])


def _is_started(key: str) -> bool:
    return any(path_of(f"metrics/{stage}", key).exists() for stage in ITERATION_STAGES)


def evaluation_of(key: str) -> pa.Table | None:
    """Set, prompt, reward and greedy of an evaluation; None where it is not on disk or empty."""
    table = stored("evaluations", key)
    if table is None or not table.rows:
        return None
    return table.all(["set", "prompt_id", "reward", "greedy"])


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _is_small(pool: Sequence[Reading]) -> bool:
    groups = sum(
        len(reading.rollouts.group_ids) for reading in pool if reading.rollouts is not None
    )
    return groups < FEWEST_GROUPS


def _recipes(*pools: Sequence[Reading]) -> int:
    return len({reading.recipe_name for pool in pools for reading in pool})


def first_and_last(items: Sequence[Any], share: float = 1 / 3) -> tuple[list[Any], list[Any]]:
    """The first and the last part of a chain, at least one of each; empty parts if there are not two."""
    if len(items) < 2:
        return [], []
    count = max(1, int(len(items) * share))
    return list(items[:count]), list(items[-count:])
