"""`rollbook page`."""

from __future__ import annotations

import click

from rollbook.cli.console import note_off_lock, refuse_elsewhere


@click.command()
@click.option(
    "--chain",
    metavar="KEY",
    default="",
    help="Show the chain of policies that ends with this iteration.",
)
@click.option(
    "--rollouts",
    type=click.IntRange(1),
    metavar="N",
    help="Put at most so many rollouts on it, and a quarter as many evaluation answers, more where rollouts leave "
    "room; 20,000 unless told. The page says which N shows all.",
)
def page(chain: str, rollouts: int | None) -> None:
    """Write the whole run as one page, reports/index.html, which opens without a server.

    Overview, curves of all chains, rollouts and evaluation answers with their groups and tokens, what `rollbook doctor`
    finds, re-scores, lineage and environment, from what is on disk. Rollouts of other chains are on it where all of
    them fit. The page needs nothing else, and asks the network for nothing.

    Example: rollbook page --chain gspo0004
    """
    refuse_elsewhere()
    from rollbook.core.lean_imports import import_numpy_alone, settle_without_pandas

    import_numpy_alone()
    settle_without_pandas()
    from rollbook.core.ids import BASE_KEY
    from rollbook.project.run.run import Run
    from rollbook.views.page.choosing import ROLLOUTS, PageLimits
    from rollbook.views.page.shown import shown_chain
    from rollbook.views.page.writing import PAGE, write_page

    shown = shown_chain(Run(), chain)
    write_page(shown, PageLimits(rollouts=rollouts or ROLLOUTS))
    size = PAGE.stat().st_size / 1e6
    click.echo(f"{PAGE}: {shown.key}, {size:.1f} MB; open it in a browser")
    note_off_lock({BASE_KEY, *shown.keys}, shown.run)
