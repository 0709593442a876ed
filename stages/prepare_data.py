"""Reads all data sources into two tables, training prompts and evaluation prompts, without repeats and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from rollbook.components.sources.base import Role, Source
from rollbook.components.sources.parts import (
    Part,
    drop_overlap,
    drop_repeats,
    read_records,
    table_of,
)
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.config import Data

TRAIN = "train"


class Settings(StageSettings):
    """What prepare_data reads of params.yaml."""

    data: Annotated[Data, From("data")]


def prepare_data(settings: Settings, inputs: Inputs, context: Context) -> Outputs:  # noqa: ARG001
    """Makes data/train and data/evaluation.

    Raises:
        DataError: for anything wrong with a source, no training prompts, or overlap with `on_overlap: error`.
    """
    data = settings.data
    parts = []
    with context.progress(len(data.train) + len(data.evaluation), "sources", "prompts") as bar:
        for place, label, set_name, source, role in _sources(data):
            records = read_records(source, role, data.split_seed, f"{place} ({source.name})")
            parts.append(Part(place, label, set_name, records))
            bar.update(1, len(records))
    train, held_out = parts[: len(data.train)], parts[len(data.train) :]
    drop_repeats(train)
    for part in held_out:
        drop_repeats([part])
    overlap = drop_overlap(train, held_out, data.on_overlap)
    _warn_of_conflicts(parts, context)
    _warn_of_missing_answers(parts, context)
    tables = {"train": table_of(train), "evaluation": table_of(held_out)}
    return Outputs(tables=tables, metrics=_metrics(train, held_out, overlap))


def _sources(data: Data) -> list[tuple[str, str, str, Source, Role]]:
    """Place in params.yaml, label, set, source and role of everything to read, training first."""
    train = enumerate(zip(data.train_labels, data.train, strict=True))
    evaluation = zip(data.evaluation_labels, data.evaluation.items(), strict=True)
    return [
        *((f"data.train.{place}", label, TRAIN, each, "train") for place, (label, each) in train),
        *(
            (f"data.evaluation.{name}", label, name, each, "evaluation")
            for label, (name, each) in evaluation
        ),
    ]


def _warn_of_conflicts(parts: Sequence[Part], context: Context) -> None:
    for part in parts:
        if part.conflicts:
            context.warn(
                f"{part.place}: {len(part.conflicts)} prompts stand there (or in an earlier source) with another "
                f"reference answer; the first is kept, such as for {part.conflicts[0]}"
            )


def _warn_of_missing_answers(parts: Sequence[Part], context: Context) -> None:
    for part in parts:
        missing = sum(record["reference_answer"] is None for record in part.records)
        if missing:
            context.warn(
                f"{part.place}: {missing} of {len(part.records)} prompts have no reference answer; "
                "rewards that compare with one do not apply to them"
            )


def _metrics(train: Sequence[Part], held_out: Sequence[Part], overlap: int) -> dict[str, int]:
    parts = [*train, *held_out]
    metrics = {
        "prompts/train": sum(len(part.records) for part in train),
        "prompts/evaluation": sum(len(part.records) for part in held_out),
        "duplicates": sum(part.duplicates for part in parts),
        "duplicates/conflicting_answers": sum(len(part.conflicts) for part in parts),
        "overlap": overlap,
        "without_answer": sum(
            record["reference_answer"] is None for part in parts for record in part.records
        ),
    }
    metrics |= {f"prompts/train/{part.label}": len(part.records) for part in train}
    metrics |= {f"prompts/evaluation/{part.set_name}": len(part.records) for part in held_out}
    return metrics


STAGE = Stage(
    name="prepare_data",
    settings=Settings,
    run=prepare_data,
    outputs=(
        Output("data", key="train", name="train"),
        Output("data", key="evaluation", name="evaluation"),
    ),
    pandas_later=True,  # `datasets` reads CSV through it
)

if __name__ == "__main__":
    STAGE.main()
