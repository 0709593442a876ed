"""Preference pairs of stored iterations as files that other trainers read, in TRL's conversational format.

A row has `prompt`, `chosen` and `rejected` as lists of messages, the two rewards, and the ids of what it is made of.
Pairs are those that training stored; where a recipe made none, or others are asked for, they are made of the stored
scores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.advantages.pairs import Pairs
from rollbook.core.atomic import replacing
from rollbook.core.errors import ArtifactError
from rollbook.rl.estimation import estimation_of, kept_rows, pairs_table
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.tables.artifacts import write_rows
from rollbook.tables.columns import aligned
from rollbook.tables.schemas.base import MESSAGES

SUFFIXES = (".jsonl", ".parquet")
SCHEMA = pa.schema(
    [
        *((name, MESSAGES) for name in ("prompt", "chosen", "rejected")),
        *((name, pa.float64()) for name in ("chosen_reward", "rejected_reward")),
        *(
            (name, pa.string())
            for name in ("pair_id", "prompt_id", "iteration", "chosen_id", "rejected_id")
        ),
    ]
)


def pairs_of_scores(
    recipe: Recipe, rollouts: pa.Table, scores: pa.Table, estimator: Pairs
) -> pa.Table:
    """Pairs of the stored scores, by the estimator that training uses.

    Raises:
        ArtifactError: if rollouts and scores do not belong together.
    """
    clip = recipe.compute_advantages.reward_clip
    estimation = estimation_of(
        rollouts,
        aligned(scores, rollouts, "scores"),
        pa.table({}),
        ComputeAdvantages(estimator=estimator, reward_clip=clip),
        {reward.column: reward.weight for reward in recipe.score_rollouts.rewards},
        recipe.generate_rollouts.group_size,
        0.0,
    )
    return pairs_table(rollouts, estimation, kept_rows(estimation.outputs))


def conversational(
    recipe: Recipe, pairs: pa.Table, prompts: pa.Table, rollouts: pa.Table
) -> pa.Table:
    """Pairs of an iteration in TRL's format, one row each.

    Args:
        recipe: of the iteration; says how its prompts were written.
        pairs: stored ones, or those of `pairs_of_scores`.
        prompts, rollouts: that they are made of.

    Raises:
        ArtifactError: if a pair names a prompt or a rollout that is not among them.
    """
    return (
        pa.table(
            {
                **{name: pairs[name] for name in SCHEMA.names if name in pairs.column_names},
                "prompt": _prompts(recipe, pairs, prompts),
                **{
                    side: _answers(recipe, pairs, rollouts, side) for side in ("chosen", "rejected")
                },
            }
        )
        .select(SCHEMA.names)
        .cast(SCHEMA)
    )


def write_preferences(table: pa.Table, file: Path) -> None:
    """Writes a table of pairs, JSON lines or Parquet by its suffix; the file appears whole or not at all.

    Raises:
        ArtifactError: if the suffix is another one, the file exists, or it cannot be written.
    """
    if file.suffix not in SUFFIXES:
        raise ArtifactError(f"{file}: what to write follows from {' or '.join(SUFFIXES)}")
    if file.exists():
        raise ArtifactError(f"{file}: exists, and nothing is written over", "give another name")
    if file.suffix == ".parquet":
        write_rows(table, file)
        return
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


def _prompts(recipe: Recipe, pairs: pa.Table, prompts: pa.Table) -> pa.Array:
    """What each pair answers, with the system prompt of the recipe in front."""
    system = recipe.prepare_prompts.system_prompt
    before = [] if system is None else [{"role": "system", "content": system}]
    asked = prompts["messages"].take(_places(pairs, "prompt_id", prompts, "prompt_id")).to_pylist()
    return pa.array([[*before, *messages] for messages in asked], MESSAGES)


def _answers(recipe: Recipe, pairs: pa.Table, rollouts: pa.Table, side: str) -> pa.Array:
    """One answer of each pair as a message, begun by the recipe's `assistant_prefix`."""
    places = _places(pairs, f"{side}_id", rollouts, "rollout_id")
    begun = recipe.prepare_prompts.assistant_prefix
    texts = rollouts["text"].take(places).to_pylist()
    messages = [[{"role": "assistant", "content": begun + text}] for text in texts]
    return pa.array(messages, MESSAGES)


def _places(pairs: pa.Table, name: str, table: pa.Table, key: str) -> pa.ChunkedArray:
    """Rows of a table that pairs name.

    Raises:
        ArtifactError: if it lacks one.
    """
    places = pc.index_in(pairs[name], value_set=table[key].combine_chunks())
    if places.null_count:
        row = pc.index(places.is_null(), True).as_py()
        raise ArtifactError(
            f"pair {pairs['pair_id'][row]}: its {name} {pairs[name][row]} is not in the iteration's tables",
            "run `dvc repro`: pairs and rollouts are of different runs; --pairing makes pairs of the stored scores",
        )
    return places
