"""`rollbook check`."""

from __future__ import annotations

import click

from rollbook.dvc import guard
from rollbook.project import check as checking
from rollbook.project.run.run import Run


@click.command()
def check() -> None:
    """Validate params.yaml and every component, and say what would run again and why.

    Changes nothing, but mends dvc.lock and a lock file of DVC's where a kill left them unreadable. `dvc repro` does
    the same checks first, and stops when a change would throw away more finished work than
    runtime.max_rerun_hours allows.

    Example: rollbook check
    """
    for file in guard.mend():
        click.echo(f"mended {file}, which a killed DVC had left unreadable", err=True)
    run = Run()
    params = run.params
    for warning in checking.examine(run):
        click.echo(f"warning: {warning}", err=True)
    used = dict.fromkeys(item.recipe for item in params.iterations.values())
    beside = f" beside {len(params.sealed)} sealed" if params.sealed else ""
    parts = [f"{len(params.iterations)} iterations{beside}", f"recipes {', '.join(used)}"]
    if params.rescores:
        recipes = (f"{name} (recipe {item.recipe})" for name, item in params.rescores.items())
        parts.append(f"re-scores {', '.join(recipes)}")
    click.echo(f"params.yaml: {', '.join(parts)}: all valid")
    currency = run.currency
    click.echo(checking.describe(currency.reruns, currency.cause))
    if currency.reruns:
        click.echo(f"  ({checking.KEPT})")
    if waiting := currency.unfinished:
        click.echo(f"not run yet: {', '.join(waiting)}")
    for name, keys in currency.waiting_rescores.items():
        if keys:
            click.echo(f"`rollbook rescore --stage {name}` would score {', '.join(keys)}")
    checking.guard(currency.reruns, params.runtime.max_rerun_hours, currency.cause)
