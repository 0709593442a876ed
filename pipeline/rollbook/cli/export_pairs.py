"""`rollbook export-pairs FILE`: better and worse answers to the same prompts, for other trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from rollbook.cli.console import note_off_lock, refuse_elsewhere, refuse_not_finite
from rollbook.cli.rescore import keys_in
from rollbook.components.advantages.pairs import Pairs
from rollbook.core.errors import ArtifactError
from rollbook.core.text import listed
from rollbook.project.run.run import Run
from rollbook.rl.preferences import conversational, pairs_of_scores, write_preferences


@click.command("export-pairs")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--iterations", metavar="KEYS", help="Such as i0001-i0010,i0012; default: all.")
@click.option(
    "--pairing",
    type=click.Choice(["best_worst", "all", "best_random"]),
    help="Make pairs of the stored scores in this way. Default: those that training stored; else best_worst.",
)
@click.option(
    "--min-gap",
    type=click.FloatRange(0),
    callback=refuse_not_finite,
    help="Least difference of the two rewards; makes pairs of the stored scores too.",
)
def export_pairs(file: Path, iterations: str | None, pairing: Any, min_gap: float | None) -> None:
    """Write pairs of a better and a worse answer to FILE, JSON lines (.jsonl) or Parquet (.parquet).

    The format is TRL's conversational preference format: `prompt`, `chosen` and `rejected` are lists of messages, ready
    for `datasets.load_dataset` and DPOTrainer. Beside them stand both rewards and the ids of pair, prompt, iteration
    and rollouts. Needs no torch.

    Example: rollbook export-pairs pairs.jsonl --iterations i0001-i0003 --pairing all
    """
    refuse_elsewhere()
    run = Run()
    every = list(run.params.every_iteration)
    if iterations is not None:
        keys = keys_in(iterations, every, command="rollbook export-pairs")
    else:
        keys = [key for key in every if run.has("scores", key)]
    if not keys:
        raise ArtifactError("no iteration has rollouts and scores yet", "run `dvc repro`")
    estimator = None
    if pairing is not None or min_gap is not None:
        estimator = Pairs(pairing=pairing or "best_worst", min_gap=min_gap or 0.0)
    found = preferences(run, keys, estimator)
    write_preferences(found, file)
    click.echo(f"{file}: {found.num_rows} pairs of {listed(keys)}")
    note_off_lock(keys, run)


def preferences(run: Run, keys: Sequence[str], estimator: Pairs | None) -> pa.Table:
    """The pairs of some iterations, one row each, in the order of `keys`.

    Args:
        run: that has their rollouts and scores.
        keys: of the iterations.
        estimator: makes the pairs anew; None: the stored ones, and best against worst where there are none.

    Raises:
        ArtifactError: if a table is missing or damaged, or there is no pair at all.
    """
    found = pa.concat_tables([_of_iteration(run, key, estimator) for key in keys])
    if not found.num_rows:
        raise ArtifactError(
            f"no group of {listed(keys)} has two answers whose rewards differ enough to make a pair",
            "look at the rewards with `rollbook show`, or give a smaller --min-gap",
        )
    return found


def _of_iteration(run: Run, key: str, estimator: Pairs | None) -> pa.Table:
    recipe, rollouts = run.params.recipe_of(key), run.table("rollouts", key).checked()
    stored = None if estimator else run.find_table("pairs", key)  # older runs have none
    if stored and stored.rows:
        pairs = stored.checked()
    else:
        scores = run.table("scores", key).checked()
        pairs = pairs_of_scores(recipe, rollouts, scores, estimator or Pairs())
    return conversational(recipe, pairs, run.table("prompts", key).checked(), rollouts)
