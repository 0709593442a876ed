"""`rollbook track`."""

from __future__ import annotations

import gc

import click

from rollbook.cli.console import refuse_elsewhere
from rollbook.core.process import COLLECT_AFTER


@click.command()
@click.option("--rebuild", is_flag=True, help="Make the runs anew from what is on disk.")
def track(rebuild: bool) -> None:
    """Bring the MLflow store up to date with the artifacts on disk.

    `--rebuild` starts from nothing. Runs whose artifacts were replaced since, and those of DVC experiments that ran
    elsewhere, cannot be made again: the project's own store is kept beside the new one, in mlflow/replaced/1, the next
    one in mlflow/replaced/2. Delete those that you do not need.

    Example: rollbook track --rebuild
    """
    gc.set_threshold(COLLECT_AFTER)  # before MLflow is imported
    refuse_elsewhere()
    from rollbook.project.run.run import Run
    from rollbook.views.mlflow.chains import read_chains
    from rollbook.views.mlflow.store import tracking_uri
    from rollbook.views.mlflow.sync import GET, NOTHING_TO_SEND, bring_up_to_date, start_anew

    run = Run()
    if rebuild and (place := start_anew(run)) is not None:
        click.echo(f"the store as it was is in {place}")
    sent = bring_up_to_date(run, durable=not rebuild)
    if not sent and not read_chains(run):
        click.echo(f"{NOTHING_TO_SEND}; {GET}")
        return
    click.echo(
        f"{tracking_uri()}: sent {', '.join(sent) if sent else 'nothing, it lacked nothing'}"
    )
