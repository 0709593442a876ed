"""`rollbook export-pairs FILE`: better and worse answers to the same prompts, for other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.console import note_off_lock, refuse_elsewhere, refuse_not_finite
from pipeline.params import read_params


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
    from pipeline.advantages.pairs import Pairs
    from pipeline.artifacts import path_of
    from pipeline.cli.rescore import keys_in
    from pipeline.errors import ArtifactError
    from pipeline.preferences import preferences, write_preferences
    from pipeline.visible import listed

    refuse_elsewhere()
    params = read_params()
    every = list(params.every_iteration)
    if iterations is not None:
        keys = keys_in(iterations, every, command="rollbook export-pairs")
    else:
        keys = [key for key in every if path_of("scores", key).exists()]
    if not keys:
        raise ArtifactError("no iteration has rollouts and scores yet", "run `dvc repro`")
    estimator = None
    if pairing is not None or min_gap is not None:
        estimator = Pairs(pairing=pairing or "best_worst", min_gap=min_gap or 0.0)
    found = preferences(params, keys, estimator)
    write_preferences(found, file)
    click.echo(f"{file}: {found.num_rows} pairs of {listed(keys)}")
    note_off_lock(keys)
