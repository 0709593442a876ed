"""Iterations run in this process through the stages' own functions: no DVC, no plan, no second interpreter.

Artifacts are read, checked and written as by the stage programs, below the current directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan import load_stage
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES
from rollbook.project.run.run import Run
from rollbook.rl.context import Context, Outputs
from rollbook.settings.config import Params
from rollbook.tables.artifacts import path_of, write_json

TRAINING_STAGES = ITERATION_STAGES[:-1]
"""All but the evaluation."""


def chain_of(recipe: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """`iterations:` of a straight chain from the base policy, all under one recipe."""
    return {
        key: {"previous": previous, "recipe": recipe, "reference": BASE_KEY}
        for previous, key in itertools.pairwise([BASE_KEY, *keys])
    }


def run_of(params: Params) -> Run:
    """The run below the current directory under these settings, which need not stand in a params.yaml."""
    run = Run()
    run.params = params
    run.configured = {key: item.model_dump() for key, item in params.iterations.items()}
    return run


def run_stage(name: str, key: str, params: Params) -> Outputs:
    """Runs a stage at an iteration and writes what it made; metrics too."""
    stage = load_stage(name)
    inputs = stage.read(key, params)
    outputs = stage.run(stage.settings.of(params, key), inputs, Context(key, params.runtime, name))
    stage._write(
        key, outputs, {label: fact.content_hash for label, fact in inputs.facts.items()}, ""
    )
    write_json(outputs.metrics, path_of(f"metrics/{name}", key))
    return outputs


def make_base(params: Params) -> None:
    """Data and the base policy."""
    for name in ONCE_STAGES:
        run_stage(name, BASE_KEY, params)


def train(keys: list[str], params: Params) -> dict[str, dict[str, Outputs]]:
    """Runs iterations one after the other; what each stage made by key and stage."""
    return {key: {name: run_stage(name, key, params) for name in TRAINING_STAGES} for key in keys}
