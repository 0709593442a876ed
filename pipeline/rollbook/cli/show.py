"""`rollbook show ID`: one rollout, group, prompt or policy, from the stored tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollbook.project.run.run import Run
    from rollbook.views.show.facts import Shown


@click.command()
@click.argument("identity", metavar="ID")
@click.option(
    "--over-time", is_flag=True, help="The prompt of ID in all iterations, with an answer of each."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page that needs nothing else.",
)
def show(identity: str, over_time: bool, as_json: bool, page: Path | None) -> None:
    """Show a rollout, a group, a prompt or a policy: what is stored about it, and where it comes from.

    ID is that of a rollout (i0003/4a7f…/02; of an evaluation eval:heldout/i0003/…), of a group (i0003/4a7f…), of a
    prompt (4a7f…), an iteration (i0003: its policy) or the digest of a policy. The beginning of an id will do. Nothing
    is run and no model is loaded; an advantage is computed again from the stored rewards and compared.

    Example: rollbook show i0003/14166724d29af2b2/02
    """
    from rollbook.core.lean_imports import import_numpy_alone, settle_without_pandas

    import_numpy_alone()
    settle_without_pandas()
    from rollbook.cli.console import note_off_lock, refuse_elsewhere
    from rollbook.project.run.run import Run
    from rollbook.views.show.shown import facts_of

    refuse_elsewhere()
    run = Run()
    facts = facts_of(run, identity, over_time)
    if page is not None:
        _write(run, facts, page)
        click.echo(f"{page}: {facts.kind} page, open it in a browser", err=as_json)
    if as_json:
        click.echo(_json(facts))
    elif page is None:
        from rollbook.cli.showing.terminal import draw
        from rollbook.views.show.layout import page_of

        draw(page_of(facts))
    note_off_lock(_iterations(facts), run)


def _iterations(facts: Shown) -> list[str]:
    """Those that what is shown is of."""
    from rollbook.views.show.facts import PolicyFacts, PromptFacts

    if isinstance(facts, PromptFacts):
        return [each.iteration for each in facts.occurrences]
    return [facts.policy.key if isinstance(facts, PolicyFacts) else facts.provenance.iteration]


def _json(facts: Shown) -> str:
    import json

    from rollbook.core.text import json_safe
    from rollbook.views.show.facts import as_json

    text = json.dumps(as_json(facts), indent=1, ensure_ascii=False, allow_nan=False, default=str)
    return json_safe(text)


def _write(run: Run, facts: Shown, page: Path) -> None:
    """Writes the page whole or not at all, with what is printed beside it said on it.

    Raises:
        ArtifactError: if it cannot be written.
    """
    from rollbook.core.atomic import replacing
    from rollbook.project.off_lock import off_lock, said_of
    from rollbook.views.show.layout import page_of
    from rollbook.views.show.page import html_of

    html = html_of(page_of(facts), said_of(off_lock(run, _iterations(facts))))
    with replacing(page) as temporary:
        temporary.write_text(html, encoding="utf-8")
