"""`rollbook status`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rollbook.cli.console import refuse_elsewhere
from rollbook.core.ids import BASE_KEY

if TYPE_CHECKING:
    from rich.table import Table

    from rollbook.project.status import RunStatus, StepStatus

MARKS = {"done": "●", "stale": "◐", "missing": "·", "running": "▶", "gone": "○"}
LEGEND = "● done   ◐ stale: runs again   · never run   ▶ running   ○ done, not in the workspace"
COLUMNS = {
    "prepare_prompts": "prompts",
    "generate_rollouts": "rollouts",
    "score_rollouts": "scores",
    "measure_logprobs": "logprobs",
    "compute_advantages": "advantages",
    "update_policy": "policy",
    "evaluate_policy": "evaluation",
    "track_iteration": "MLflow",
}
"""What each stage makes."""
OF_BASE = {"prepare_prompts": "prepare_data", "update_policy": "init_policy"}
"""What stands in a column in the line of the base policy: its data and its making."""
MINUTE, HOUR = 60.0, 3600.0
UNITS = ("B", "kB", "MB", "GB", "TB")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def status(as_json: bool) -> None:
    """Show what is done, stale, missing and running, by iteration and step; what is left, and what is on disk.

    Works while a stage runs, when `dvc status` only says that DVC is busy. Looks at settings, code, dvc.lock and the
    presence of files; `rollbook verify` looks into them.

    Example: rollbook status
    """
    from rollbook.project.run.run import Run
    from rollbook.project.status import read_status

    refuse_elsewhere()
    found = read_status(Run())
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
        return
    from rollbook.cli.console import console

    where = console()
    where.print(_matrix(found))
    for line in _lines(found):
        where.print(line, markup=False, soft_wrap=True)


def _matrix(found: RunStatus) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("iteration", no_wrap=True)
    made.add_column("recipe")
    for name in COLUMNS.values():
        made.add_column(name, justify="center")
    made.add_column("took", justify="right", no_wrap=True)
    steps = {(step.stage, step.key): step for step in found.steps}
    for key in (BASE_KEY, *found.recipes):
        own = [step for step in found.steps if step.key == key]
        cells = [
            steps.get((OF_BASE.get(stage, stage) if key == BASE_KEY else stage, key))
            for stage in COLUMNS
        ]
        recipe = "base" if key == BASE_KEY else found.recipes[key]
        made.add_row(
            key, Text(recipe), *(MARKS[cell.state] if cell else "" for cell in cells), _took(own)
        )
    return made


def _took(steps: Sequence[StepStatus]) -> str:
    """What the steps that are done took."""
    seconds = [step.seconds for step in steps if step.state in ("done", "gone") and step.seconds]
    return _duration(sum(seconds)) if seconds else ""


def _lines(found: RunStatus) -> Iterator[str]:
    from rollbook.project.check import KEPT

    yield LEGEND
    for step in found.steps:
        if step.state == "running":
            left = "" if step.left is None else f", about {_duration(step.left)} left"
            yield f"running: {step.stage}@{step.key} for {_duration(step.running or 0)}{left}"
    waiting = [step for step in found.steps if step.state in ("stale", "missing")]
    if waiting:
        left = (
            "unknown: nothing like it ran yet"
            if found.seconds_left is None
            else _duration(found.seconds_left)
        )
        yield f"to do: {_counted(waiting)}; time left {left}"
        if found.stale_because:
            yield f"stale, for these changed: {found.stale_because}; `rollbook check` says more"
            yield KEPT
    elif not any(step.state == "running" for step in found.steps):
        yield "nothing is left to do"
    for part in found.sealed:
        yield f"sealed: {part.part}, {len(part.keys)} iterations; policies kept: {', '.join(part.kept) or 'none'}"
    for name, states in found.rescores.items():
        done = [key for key, state in states.items() if state in ("done", "gone")]
        waits = [key for key in states if key not in done]
        then = f"; `rollbook rescore --stage {name}` scores {_span(waits)}" if waits else ""
        yield f"re-score {name}: {len(done)} of {len(states)} iterations{then}"
    uses = [
        f"{use.kind.removeprefix('artifacts/')} {_size(use.size)}" for use in found.disk if use.size
    ]
    total = sum(use.size for use in found.disk)
    yield f"on disk: {_size(total)}, each file once: {', '.join(uses)}"


def _counted(waiting: Sequence[StepStatus]) -> str:
    """How many steps, and how many are stale. Those that show an iteration in MLflow are counted apart: `check`, which
    says what runs again, has none of them.
    """
    from rollbook.project.run.currency import TRACKING_STAGE

    shown = sum(step.stage == TRACKING_STAGE for step in waiting)
    steps = [step for step in waiting if step.stage != TRACKING_STAGE]
    stale = sum(step.state == "stale" for step in steps)
    parts = [f"{len(steps)} step{'' if len(steps) == 1 else 's'}, {stale} stale"] if steps else []
    parts += [f"{shown} iteration{'' if shown == 1 else 's'} to show in MLflow"] if shown else []
    return ", ".join(parts)


def _span(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys)} more, from {keys[0]} to {keys[-1]}"


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


def _size(size: float) -> str:
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"
