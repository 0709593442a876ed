"""`rollbook check`."""

from __future__ import annotations

import click

from pipeline import checking, lock_guard
from pipeline.params import read_params


@click.command()
def check() -> None:
    """Validate params.yaml and every component, and say what would run again and why.

    Changes nothing, but mends dvc.lock and a lock file of DVC's where a kill left them unreadable. `dvc repro` does
    the same checks first, and stops when a change would throw away more finished work than
    runtime.max_rerun_hours allows.

    Example: rollbook check
    """
    for file in lock_guard.mend():
        click.echo(f"mended {file}, which a killed DVC had left unreadable", err=True)
    params = read_params()
    plan, warnings, found = checking.examine(params)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    used = dict.fromkeys(item.recipe for item in params.iterations.values())
    beside = f" beside {len(params.sealed)} sealed" if params.sealed else ""
    parts = [f"{len(params.iterations)} iterations{beside}", f"recipes {', '.join(used)}"]
    if params.rescores:
        recipes = (f"{name} (recipe {item.recipe})" for name, item in params.rescores.items())
        parts.append(f"re-scores {', '.join(recipes)}")
    click.echo(f"params.yaml: {', '.join(parts)}: all valid")
    click.echo(checking.describe(found))
    if found:
        click.echo(f"  ({checking.KEPT})")
    if waiting := checking.unfinished(params):
        click.echo(f"not run yet: {', '.join(waiting)}")
    for name, keys in checking.waiting_rescores(params, plan).items():
        if keys:
            click.echo(f"`rollbook rescore --stage {name}` would score {', '.join(keys)}")
    checking.guard(found, params.runtime.max_rerun_hours)
