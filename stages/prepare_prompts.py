"""Draws the prompts of an iteration and writes them as text and token ids for the policy that will answer them."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.prompting import PromptRenderer, RenderedPrompt
from rollbook.core.errors import DataError
from rollbook.core.ids import group_id_of
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.drawing import Deck, Draw, draw_prompts, preferred
from rollbook.rl.history import standing_of
from rollbook.settings.recipe_sections import PreparePrompts
from rollbook.tables.artifacts import schema_of

NOT_KEPT = ("set",)
"""Columns of data/train that say nothing here."""


class Settings(StageSettings):
    """What prepare_prompts reads of params.yaml."""

    seed: Annotated[int, From("seed")]
    draws: Annotated[tuple[int, ...], From("draws")]
    source_weights: Annotated[dict[str, float | None], From("source_weights")]
    format: Annotated[PreparePrompts, From("recipe.prepare_prompts")]
    max_completion_tokens: Annotated[int, From("recipe.generate_rollouts.max_completion_tokens")]


def prepare_prompts(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Makes the table of prompts.

    A prompt that is too long is drawn like any other, then dropped and counted: what other iterations draw does not
    depend on lengths.

    Raises:
        DataError: if more prompts are wanted than there are, a prompt cannot be rendered, or all are too long.
    """
    table, wanted = inputs.tables["data"], settings.format.prompts_asked
    decks, rows = _decks(table, settings.source_weights)
    draw = _drawn(settings, decks)
    preference: dict[str, float | int] = {}
    if settings.format.prefer == "informative":
        draw, preference = _preferred(settings, decks, draw, inputs.tables["history"])
    chosen = table.take(np.array([rows[d][p] for d, p in zip(draw.deck, draw.place, strict=True)]))
    renderer = PromptRenderer(inputs.folders["policies"], settings.format)
    limit = _longest_prompt(settings, renderer)
    with context.progress(wanted, "prompts", "tokens") as bar:
        prompts = renderer.render_all(chosen["messages"].to_pylist())
        bar.update(wanted, sum(len(prompt.token_ids) for prompt in prompts))
    lengths = np.array([len(prompt.token_ids) for prompt in prompts])
    fits = lengths <= (limit if limit is not None else lengths.max())
    _report_dropped(lengths, fits, limit, context)
    kept = [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit]
    return Outputs(
        tables={"prompts": _table(chosen.filter(pa.array(fits)), kept, context.key)},
        metrics={**_metrics(decks, draw, lengths[fits], len(lengths)), **preference},
    )


def _drawn(settings: Settings, decks: list[Deck]) -> Draw:
    """The cards dealt to this iteration. One that looks at more prompts than there are looks at all of them."""
    available = sum(deck.size for deck in decks)
    wanted = max(settings.format.prompts_asked, min(settings.format.prompts_drawn, available))
    draws = [min(count, available) for count in settings.draws]
    return draw_prompts(decks, settings.seed, draws, wanted)


def _preferred(
    settings: Settings, decks: list[Deck], draw: Draw, history: pa.Table
) -> tuple[Draw, dict[str, float | int]]:
    """The cards asked, those that were not flat when last asked first, and what the preference did.

    `prompts/passed_over` counts prompts that would have been asked without it, and are not;
    `prompts/never_asked_share` is the share of those asked that the chain asks for the first time.
    """
    dealt = zip(draw.deck, draw.place, strict=True)
    standing = standing_of(history, pa.array([decks[d].prompt_ids[p] for d, p in dealt]))
    chosen, usual = (
        preferred(decks, draw, flat, settings.format.prompts_asked)
        for flat in (standing.flat, np.zeros_like(standing.flat))
    )
    return Draw(draw.deck[chosen], draw.place[chosen], draw.counts), {
        "prompts/passed_over": len(np.setdiff1d(usual, chosen)),
        "prompts/never_asked_share": float(np.mean(~standing.asked[chosen])),
    }


def _decks(
    table: pa.Table, weights: dict[str, float | None]
) -> tuple[list[Deck], list[np.ndarray]]:
    """One deck per source, and the table rows of its prompts."""
    decks, rows = [], []
    for label, weight in weights.items():
        found = np.flatnonzero(pc.equal(table["source"], label).to_numpy())
        decks.append(Deck(label, table["prompt_id"].take(found).to_pylist(), weight))
        rows.append(found)
    return decks, rows


def _longest_prompt(settings: Settings, renderer: PromptRenderer) -> int | None:
    """Tokens a prompt may have: what the context leaves beside the completion, and no more than the recipe allows."""
    limits = [settings.format.max_prompt_tokens]
    if (context_length := renderer.context_length) is not None:
        room = context_length - settings.max_completion_tokens
        if room < 1:
            raise DataError(
                f"generate_rollouts.max_completion_tokens is {settings.max_completion_tokens}, the policy reads "
                f"{context_length} tokens in all: nothing is left for a prompt",
                f"set max_completion_tokens below {context_length}",
            )
        limits.append(room)
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _report_dropped(
    lengths: np.ndarray, fits: np.ndarray, limit: int | None, context: Context
) -> None:
    dropped = int((~fits).sum())
    if not dropped:
        return
    facts = f"{dropped} of {len(lengths)} prompts are longer than {limit} tokens (the longest: {lengths.max()})"
    hint = "lower max_completion_tokens, raise max_prompt_tokens, or shorten the prompts"
    if dropped == len(lengths):
        raise DataError(f"{facts}: none is left", hint)
    context.warn(f"{facts} and were dropped; {hint}")


def _table(chosen: pa.Table, prompts: list[RenderedPrompt], key: str) -> pa.Table:
    """The prompts table: ids, what was rendered, and all columns of the data."""
    given = {name: chosen[name] for name in chosen.column_names if name not in NOT_KEPT}
    return schema_of("prompts").build(
        {
            **given,
            "iteration": [key] * len(prompts),
            "group_id": [group_id_of(key, each) for each in chosen["prompt_id"].to_pylist()],
            "prompt": [prompt.text for prompt in prompts],
            "prompt_token_ids": [prompt.token_ids for prompt in prompts],
        }
    )


def _metrics(
    decks: list[Deck], draw: Draw, lengths: np.ndarray, wanted: int
) -> dict[str, float | int]:
    """Counts, lengths, and how often the data was gone through up to and including this iteration (`data_epoch`)."""
    metrics: dict[str, float | int] = {
        "prompts": len(lengths),
        "prompts/dropped_too_long": wanted - len(lengths),
        "prompts/mean_length": float(lengths.mean()),
        "prompts/max_length": int(lengths.max()),
        "data_epoch": sum(draw.dealt) / sum(deck.size for deck in decks),
    }
    if len(decks) > 1:
        for number, deck in enumerate(decks):
            metrics[f"prompts/drawn/{deck.label}"] = int((draw.deck == number).sum())
            metrics[f"data_epoch/{deck.label}"] = draw.dealt[number] / max(deck.size, 1)
    return metrics


STAGE = Stage(
    name="prepare_prompts",
    settings=Settings,
    run=prepare_prompts,
    inputs=(
        Input("data", key="train"),
        Input("policies", key="previous"),
        Input("history", key="previous"),
    ),
    outputs=(Output("prompts"),),
    torch_follows=True,
)

if __name__ == "__main__":
    STAGE.main()
