"""Rollouts of a chain as columns for the browser: every text made visible, a block per iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.page.choosing import (
    CHARACTERS,
    ROLLOUTS,
    TOKENS,
    longest_kept,
    rows_of_groups,
    shares,
    viewed_rows,
)
from pipeline.page.packing import packed
from pipeline.page.run import Run
from pipeline.page.token_views import Views
from pipeline.showing.answers import REWARD
from pipeline.showing.tables import Stored, stored
from pipeline.visible import visible

BESIDE = ("scores", "advantages", "updates")
"""Tables that say more of a rollout."""
COMPLETION = (
    "rollout_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "greedy",
    "completion",
    "finish_reason",
)
TRAINED = "trained"
DIGITS = 6
"""Significant digits of a number on the page."""

Columns = dict[str, Any]
"""What the browser reads: lists of equal length, and lists that these point into."""


@dataclass(frozen=True)
class Limits:
    """What the page holds at most.

    Attributes:
        rollouts: of all iterations.
        characters: of all completions.
        tokens: of all completions that are shown token by token.
    """

    rollouts: int = ROLLOUTS
    characters: int = CHARACTERS
    tokens: int = TOKENS


@dataclass(frozen=True)
class _Iteration:
    """One iteration's rollouts, as far as they are on the page.

    Attributes:
        key: of it.
        table: of its completions.
        rows: places in the table that are on the page.
    """

    key: str
    table: Stored
    rows: Sequence[int]

    @cached_property
    def _indices(self) -> pa.Array:
        return pa.array(self.rows, pa.int64())

    @cached_property
    def rollouts(self) -> pa.Table:
        """COMPLETION and the number of tokens, of the rows."""
        found = self.table.all(COMPLETION).take(self._indices)
        lengths = pc.list_value_length(
            self.table.column("completion_token_ids").take(self._indices)
        )
        return found.append_column("tokens", lengths)

    def beside(self, kind: str) -> dict[str, list[Any]]:
        """Columns without lists of another table, in the order of the rows; none where it is not on disk."""
        table = stored(kind, self.key)
        if table is None:
            return {}
        names = [name for name in table.names if name not in ("group_id", "prompt_id", "iteration")]
        found = table.all([name for name in names if not table.is_nested(name)])
        places = pc.index_in(
            self.rollouts["rollout_id"], value_set=found["rollout_id"].combine_chunks()
        )
        return {name: found[name].take(places).to_pylist() for name in found.column_names}

    @cached_property
    def texts(self) -> list[str]:
        """Completions with all their tokens, made visible."""
        return [visible(text, lines=True) for text in self.rollouts["completion"].to_pylist()]


@dataclass(frozen=True)
class Explored:
    """All that the explorer shows.

    Attributes:
        blocks: packed columns by iteration.
        views: packed tokens by iteration; none where no rollout is shown token by token.
        left_out: what is not on the page, a sentence each.
        missing: iterations whose rollouts are not on disk, with what brings them.
    """

    blocks: Mapping[str, str]
    views: Mapping[str, str]
    left_out: Sequence[str] = field(default_factory=list)
    missing: Sequence[str] = field(default_factory=list)


def explored(run: Run, limits: Limits) -> Explored:
    """Packs the rollouts of a chain.

    Raises:
        ArtifactError: if a table is damaged.
    """
    tables = {key: table for key in run.chain if (table := stored("rollouts", key))}
    counts = {key: table.rows for key, table in tables.items()}
    allowed = shares(counts, limits.rollouts)
    iterations = [
        _Iteration(key, table, rows_of_groups(table.column("group_id").to_pylist(), allowed[key]))
        if allowed[key] < counts[key]
        else _Iteration(key, table, range(counts[key]))
        for key, table in tables.items()
    ]
    most = longest_kept(
        [len(text) for each in iterations for text in each.texts], limits.characters
    )
    room = shares({each.key: _tokens_in(each, most) for each in iterations}, limits.tokens)
    blocks, views, viewed, cut = {}, {}, 0, 0
    for each in iterations:
        whole = [most is None or len(text) <= most for text in each.texts]
        cut += len(whole) - sum(whole)
        tokens = [
            count if complete else 0
            for count, complete in zip(each.rollouts["tokens"].to_pylist(), whole, strict=True)
        ]
        shown = viewed_rows(each.rollouts["group_id"].to_pylist(), tokens, room[each.key])
        viewed += len(shown)
        blocks[each.key] = packed(_columns(each, most))
        if shown:
            places = [each.rows[at] for at in shown]
            views[each.key] = packed(Views(run.stored, each.key, each.table).columns(shown, places))
    on_page = sum(len(each.rows) for each in iterations)
    left_out = list(_left_out(on_page, sum(counts.values()), viewed, cut, most))
    return Explored(blocks, views, left_out, list(_missing(run, tables)))


def _tokens_in(each: _Iteration, most: int | None) -> int:
    pairs = zip(each.texts, each.rollouts["tokens"].to_pylist(), strict=True)
    return sum(count for text, count in pairs if most is None or len(text) <= most)


def _left_out(
    on_page: int, stored_rows: int, viewed: int, cut: int, most: int | None
) -> Iterator[str]:
    if on_page < stored_rows:
        yield (
            f"{on_page:,} of {stored_rows:,} rollouts are on this page, whole groups from every iteration; "
            "`rollbook page --rollouts N` puts more on it."
        )
    if cut:
        yield f"{cut:,} completions are longer than {most:,} characters; their middle is left out."
    if viewed < on_page:
        yield f"{viewed:,} of {on_page:,} are here token by token; `rollbook show ID` has every one."


def _missing(run: Run, tables: Mapping[str, Stored]) -> Iterator[str]:
    for key in run.chain:
        if key not in tables and run.stored.info("generate_rollouts", key):
            path = f"artifacts/rollouts/{key}.parquet"
            yield f"{path} is not on disk: {run.stored.fetch(path)}"


def _columns(each: _Iteration, most: int | None) -> Columns:
    """The block of an iteration."""
    rollouts = each.rollouts
    scores, advantages, updates = (each.beside(kind) for kind in BESIDE)
    names = [name for name in scores if name.startswith(REWARD)]
    prompt_ids = list(dict.fromkeys(rollouts["prompt_id"].to_pylist()))
    place_of = {prompt: place for place, prompt in enumerate(prompt_ids)}
    fates = [
        None if trained is None else TRAINED if trained else reason or "not trained on"
        for trained, reason in zip(
            updates.get("trained", []), updates.get("reason", []), strict=True
        )
    ]
    return {
        "iteration": each.key,
        **_prompts(each.key, prompt_ids),
        "group": [place_of[prompt] for prompt in rollouts["prompt_id"].to_pylist()],
        "sample": [rollout.rpartition("/")[2] for rollout in rollouts["rollout_id"].to_pylist()],
        "greedy": [at for at, greedy in enumerate(rollouts["greedy"].to_pylist()) if greedy],
        "text": [_cut(text, most) for text in each.texts],
        "tokens": rollouts["tokens"].to_pylist(),
        "finish": _coded(rollouts["finish_reason"].to_pylist()),
        "reward": _numbers(scores.get("reward")),
        "rewards": {visible(name.removeprefix(REWARD)): _numbers(scores[name]) for name in names},
        "error": {
            str(at): visible(text) for at, text in enumerate(scores.get("error", [])) if text
        },
        "advantage": _numbers(advantages.get("advantage")),
        "fate": _coded(fates) if fates else None,
        "clipped": _numbers(updates.get("clipped_fraction")),
        "loss_share": _numbers(updates.get("loss_share")),
    }


def _prompts(key: str, prompt_ids: Sequence[str]) -> Columns:
    """Prompts as the policy saw them, in this order; those that are not on disk are null."""
    table, rows = stored("prompts", key), {}
    if table is not None:
        found = table.all(["prompt_id", "prompt", "reference_answer"])
        rows = {row["prompt_id"]: row for row in found.to_pylist()}
    chosen = [rows.get(prompt, {}) for prompt in prompt_ids]
    return {
        "prompt_id": list(prompt_ids),
        "prompt": [_shown(row.get("prompt")) for row in chosen],
        "reference": [_shown(row.get("reference_answer")) for row in chosen],
    }


def _shown(text: str | None) -> str | None:
    return None if text is None else visible(text, lines=True)


def _cut(text: str, most: int | None) -> str:
    """Both ends of a text that is too long: its answer stands at the end."""
    if most is None or len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"


def _coded(values: Sequence[str | None]) -> Columns:
    """Few words, many times: the words, and which of them each is."""
    words = list(dict.fromkeys(values))
    place_of = {word: place for place, word in enumerate(words)}
    return {
        "words": [None if word is None else visible(word) for word in words],
        "codes": [place_of[value] for value in values],
    }


def _numbers(values: Sequence[float | None] | None) -> list[float | None] | None:
    if values is None:
        return None
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
        for value in values
    ]
