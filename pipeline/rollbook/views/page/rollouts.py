"""Rollouts and evaluation answers as columns for the browser: every text made visible, in blocks.

A block is what one iteration holds for training, or what its policy answered to one evaluation set. The chain that the
page is about comes first, and is cut where it is too large; others are here whole where there is room, or not at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.ids import BASE_KEY, IdParts
from rollbook.core.text import listed, visible
from rollbook.project.ancestry import span
from rollbook.project.run.run import Run
from rollbook.project.run.stored import StoredTable
from rollbook.views.page.choosing import (
    PageLimits,
    enough,
    longest_kept,
    rows_of_groups,
    shares,
    viewed_rows,
)
from rollbook.views.page.packing import packed
from rollbook.views.page.shown import ShownChain
from rollbook.views.page.token_views import TRAINING, Views
from rollbook.views.show.answers import REWARD

COMPLETION = (
    "rollout_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "greedy",
    "completion",
    "finish_reason",
)
SCORES = ("reward", "error")
"""Of a scores table, beside the columns of single rewards."""
UPDATES = ("trained", "reason", "clipped_fraction", "loss_share")
TRAINED = "trained"
ASIDES_SHARE = 4
"""Prompts, reference answers and errors get a quarter of the room of completions, beside it."""
ROLLOUTS, ANSWERS = "rollouts", "evaluation answers"
"""What a list holds, in words."""
DIGITS = 6
"""Significant digits of a number on the page."""

Columns = dict[str, Any]
"""What the browser reads: lists of equal length, and lists that these point into."""


@dataclass(frozen=True)
class _Block:
    """Rollouts of one iteration, or answers of its policy to one evaluation set.

    Attributes:
        run: that it is part of.
        key: of the iteration.
        table: of the completions.
        evaluation_set: of an evaluation; empty in training.
    """

    run: Run
    key: str
    table: StoredTable
    evaluation_set: str = ""

    @cached_property
    def name(self) -> str:
        """What the ids of its groups begin with."""
        return f"{IdParts(self.evaluation_set, self.key).head}{self.key}"

    @cached_property
    def places(self) -> list[int]:
        """Of its rows in the table."""
        if not self.evaluation_set:
            return list(range(self.table.rows))
        found = pc.equal(self.table.column("set"), self.evaluation_set)
        return pc.indices_nonzero(found).to_pylist()

    def chosen(self, most: int) -> _Chosen:
        """As many of its rows as may be on the page, whole groups, or a part of one where that is too large."""
        if most >= len(self.places):
            return _Chosen(self, self.places)
        taken = self.table.column("group_id").take(pa.array(self.places, pa.int64()))
        groups = taken.to_pylist()
        chosen = rows_of_groups(groups, most)
        is_part = bool(chosen) and len(chosen) < groups.count(groups[chosen[0]])
        return _Chosen(self, [self.places[at] for at in chosen], is_part)


@dataclass(frozen=True)
class _Chosen:
    """A block as far as it is on the page.

    Attributes:
        block: of which.
        rows: places in its table that are on the page.
        is_part: whether they are a part of one group.
    """

    block: _Block
    rows: Sequence[int]
    is_part: bool = False

    @cached_property
    def _indices(self) -> pa.Array:
        return pa.array(self.rows, pa.int64())

    @cached_property
    def rollouts(self) -> pa.Table:
        """COMPLETION and the number of tokens, of the rows."""
        table = self.block.table
        found = table.all(COMPLETION).take(self._indices)
        lengths = pc.list_value_length(table.column("completion_token_ids").take(self._indices))
        return found.append_column("tokens", lengths)

    def beside(self, kind: str, wanted: Sequence[str], prefix: str = "") -> dict[str, list[Any]]:
        """Columns of another table in the order of the rows; none where it is not on disk.

        Args:
            kind: of the table.
            wanted: names of columns; those that it does not have are left out.
            prefix: columns that begin so are wanted too.
        """
        table = self.block.run.find_table(kind, self.block.key)
        if table is None:
            return {}
        names = [
            name
            for name in table.names
            if name in wanted or (prefix and name.startswith(prefix) and not table.is_nested(name))
        ]
        found = table.all(["rollout_id", *names])
        places = pc.index_in(
            self.rollouts["rollout_id"], value_set=found["rollout_id"].combine_chunks()
        )
        return {name: found[name].take(places).to_pylist() for name in names}

    @cached_property
    def scores(self) -> dict[str, list[Any]]:
        """Rewards and errors."""
        return self.beside("evaluations" if self.block.evaluation_set else "scores", SCORES, REWARD)

    @cached_property
    def prompts(self) -> dict[str, tuple[str | None, str | None]]:
        """Prompt and reference answer by id of the prompt, in the order of the rows; None where not on disk."""
        order = dict.fromkeys(self.rollouts["prompt_id"].to_pylist())
        kind = "evaluations" if self.block.evaluation_set else "prompts"
        table, rows = self.block.run.find_table(kind, self.block.key), {}
        if table is not None:
            found = table.all(["prompt_id", "prompt", "reference_answer"])
            if self.block.evaluation_set:
                found = found.take(self._indices)
            rows = {row["prompt_id"]: row for row in found.to_pylist()}
        found_of = ((prompt, rows.get(prompt, {})) for prompt in order)
        return {
            prompt: (_shown(row.get("prompt")), _shown(row.get("reference_answer")))
            for prompt, row in found_of
        }

    @cached_property
    def errors(self) -> dict[str, str]:
        """By place of the row, as JSON has keys."""
        errors = enumerate(self.scores.get("error", []))
        return {str(at): visible(text) for at, text in errors if text}

    @property
    def asides(self) -> list[str]:
        """Its prompts, reference answers and errors."""
        return [
            *(text for pair in self.prompts.values() for text in pair if text),
            *self.errors.values(),
        ]

    @cached_property
    def texts(self) -> list[str]:
        """Completions with all their tokens, made visible."""
        return [visible(text, lines=True) for text in self.rollouts["completion"].to_pylist()]


@dataclass(frozen=True)
class Explored:
    """All that the explorer shows.

    Attributes:
        blocks: packed columns by name of the block, training first.
        views: packed tokens by name of the block; none where no rollout is shown token by token.
        left_out: what is not on the page, a sentence each, by what the list shows then.
        missing: iterations whose rollouts are not on disk and chains that are not here, with what brings them.
        chains: keys of the policies of each chain that is here by the name of the chain, the page's first.
    """

    blocks: Mapping[str, str]
    views: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: Sequence[str] = field(default_factory=list)
    chains: Mapping[str, Sequence[str]] = field(default_factory=dict)


def explored(shown: ShownChain, limits: PageLimits) -> Explored:
    """Packs the rollouts and evaluations of a chain, and of others as far as there is room.

    Raises:
        ArtifactError: if a table is damaged.
    """
    own = _Blocks.of(shown.run, [BASE_KEY, *shown.keys])
    this, *others = shown.branches
    everything, elsewhere, looked_at = own, [], [[BASE_KEY, *shown.keys]]
    chains = {this.name: looked_at[0]}
    for branch in others:
        both = everything + _Blocks.of(shown.run, branch.keys)
        if limits.have_room_for(both.rollouts, both.answers):
            everything = both
            looked_at.append(list(branch.keys))
            chains[branch.name] = [BASE_KEY, *branch.chain.keys]
        else:
            elsewhere.append(
                f"The rollouts of {branch.name} are on a page of their own: `{shown.command(branch.chain.tip)}`."
            )
    more = (
        f"`{shown.command(more=f'--rollouts {enough(own.rollouts, own.answers)}')}` puts all on it"
    )
    beside = limits.of_evaluation(everything.rollouts)
    asked = _packed(everything.training, limits, ROLLOUTS, more)
    judged = _packed(everything.evaluations, beside, ANSWERS, more)
    return Explored(
        {**asked.blocks, **judged.blocks},
        {**asked.views, **judged.views},
        {**asked.left_out, **judged.left_out},
        [*_missing(shown.run, looked_at), *elsewhere],
        chains,
    )


@dataclass(frozen=True)
class _Blocks:
    """Blocks that are on disk.

    Attributes:
        training: of rollouts.
        evaluations: of evaluation answers.
    """

    training: Sequence[_Block]
    evaluations: Sequence[_Block]

    @classmethod
    def of(cls, run: Run, keys: Sequence[str]) -> _Blocks:
        """Those of some policies."""
        return cls(
            [_Block(run, key, table) for key in keys if (table := run.find_table("rollouts", key))],
            [
                _Block(run, key, table, name)
                for key in keys
                if (table := run.find_table("evaluations", key))
                for name in pc.unique(table.column("set")).to_pylist()
            ],
        )

    def __add__(self, other: _Blocks) -> _Blocks:
        return _Blocks([*self.training, *other.training], [*self.evaluations, *other.evaluations])

    @property
    def rollouts(self) -> int:
        """Rows of training."""
        return sum(len(block.places) for block in self.training)

    @property
    def answers(self) -> int:
        """Rows of evaluations."""
        return sum(len(block.places) for block in self.evaluations)


def _packed(blocks: Sequence[_Block], limits: PageLimits, what: str, more: str) -> Explored:
    """Packs blocks of one kind within limits that they share.

    Args:
        blocks: to pack.
        limits: of all together.
        what: they hold, for the sentences about what is left out.
        more: what puts all of them on the page, for the same.
    """
    counts = {block.name: len(block.places) for block in blocks}
    allowed = shares(counts, limits.rollouts)
    chosen = [block.chosen(allowed[block.name]) for block in blocks]
    most = longest_kept([len(text) for each in chosen for text in each.texts], limits.characters)
    asides = [len(text) for each in chosen for text in each.asides]
    most_aside = longest_kept(asides, limits.characters // ASIDES_SHARE)
    room = shares({each.block.name: _tokens_in(each, most) for each in chosen}, limits.tokens)
    packs, views, viewed, cut = {}, {}, 0, 0
    for each in chosen:
        block = each.block
        whole = [most is None or len(text) <= most for text in each.texts]
        cut += len(whole) - sum(whole)
        tokens = [
            count if complete else 0
            for count, complete in zip(each.rollouts["tokens"].to_pylist(), whole, strict=True)
        ]
        shown = viewed_rows(each.rollouts["group_id"].to_pylist(), tokens, room[block.name])
        viewed += len(shown)
        packs[block.name] = packed(_columns(each, most, most_aside))
        if shown:
            kinds = () if block.evaluation_set else TRAINING
            view = Views(block.run, block.key, block.table, kinds)
            views[block.name] = packed(view.columns(shown, [each.rows[at] for at in shown]))
    on_page = sum(len(each.rows) for each in chosen)
    left_out = [
        *_few(what, chosen, sum(counts.values()), more),
        *_too_long("completions", cut, most),
        *_too_long(
            "prompts, reference answers and errors", _longer(asides, most_aside), most_aside
        ),
    ]
    if viewed < on_page:
        left_out.append(
            f"{viewed:,} of {on_page:,} {what} are here token by token; `rollbook show ID` has every one."
        )
    return Explored(packs, views, {what: left_out} if left_out else {})


def _tokens_in(each: _Chosen, most: int | None) -> int:
    pairs = zip(each.texts, each.rollouts["tokens"].to_pylist(), strict=True)
    return sum(count for text, count in pairs if most is None or len(text) <= most)


def _few(what: str, chosen: Sequence[_Chosen], stored_rows: int, more: str) -> Iterator[str]:
    on_page = sum(len(each.rows) for each in chosen)
    if on_page == stored_rows:
        return
    none = [each.block.name for each in chosen if each.block.places and not each.rows]
    parts = [each.block.name for each in chosen if each.is_part]
    how = f"of {listed(parts)} a part of a group" if parts else "whole groups"
    of = f"none of {listed(none)}" if none else "some of every iteration"
    yield f"{on_page:,} of {stored_rows:,} {what} are on this page, {how}, {of}; {more}."


def _too_long(what: str, count: int, most: int | None) -> Iterator[str]:
    if count:
        yield f"{count:,} {what} are longer than {most:,} characters; their middle is left out."


def _longer(lengths: Sequence[int], most: int | None) -> int:
    return 0 if most is None else sum(length > most for length in lengths)


def _missing(run: Run, looked_at: Sequence[Sequence[str]]) -> Iterator[str]:
    for kind, stage in (("rollouts", "generate_rollouts"), ("evaluations", "evaluate_policy")):

        def brings(key: str, kind: str = kind, stage: str = stage) -> str:
            made = run.md5(kind, key) or run.info(stage, key)
            return run.fetch_hint(kind, key) if made and not run.has(kind, key) else ""

        for chain in looked_at:
            for what, keys in itertools.groupby(chain, brings):
                if what:
                    yield f"The {kind} table of {span(list(keys))} is not on disk: {what}."


def _columns(each: _Chosen, most: int | None, most_aside: int | None) -> Columns:
    """A block as the browser reads it; completions no longer than `most`, other texts than `most_aside`."""
    block, rollouts = each.block, each.rollouts
    advantages: dict[str, list[Any]] = {}
    updates: dict[str, list[Any]] = {}
    scores, prompts = each.scores, each.prompts
    if not block.evaluation_set:
        advantages = each.beside("advantages", ["advantage"])
        updates = each.beside("updates", UPDATES)
    names = [name for name in scores if name.startswith(REWARD)]
    place_of = {prompt: place for place, prompt in enumerate(prompts)}
    fates = [
        None if trained is None else TRAINED if trained else reason or "not trained on"
        for trained, reason in zip(
            updates.get("trained", []), updates.get("reason", []), strict=True
        )
    ]
    return {
        "name": visible(block.name),
        "iteration": block.key,
        "set": visible(block.evaluation_set),
        "prompt_id": list(prompts),
        "prompt": [_cut(prompt, most_aside) for prompt, _ in prompts.values()],
        "reference": [_cut(reference, most_aside) for _, reference in prompts.values()],
        "group": [place_of[prompt] for prompt in rollouts["prompt_id"].to_pylist()],
        "sample": [rollout.rpartition("/")[2] for rollout in rollouts["rollout_id"].to_pylist()],
        "greedy": [at for at, greedy in enumerate(rollouts["greedy"].to_pylist()) if greedy],
        "text": [_cut(text, most) for text in each.texts],
        "tokens": rollouts["tokens"].to_pylist(),
        "finish": _coded(rollouts["finish_reason"].to_pylist()),
        "reward": _numbers(scores.get("reward")),
        "rewards": {visible(name.removeprefix(REWARD)): _numbers(scores[name]) for name in names},
        "error": {at: _cut(text, most_aside) for at, text in each.errors.items()},
        "advantage": _numbers(advantages.get("advantage")),
        "fate": _coded(fates) if fates else None,
        "clipped": _numbers(updates.get("clipped_fraction")),
        "loss_share": _numbers(updates.get("loss_share")),
    }


def _shown(text: str | None) -> str | None:
    return None if text is None else visible(text, lines=True)


def _cut(text: str | None, most: int | None) -> str | None:
    """Both ends of a text that is too long: its answer stands at the end."""
    if text is None or most is None or len(text) <= most:
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
