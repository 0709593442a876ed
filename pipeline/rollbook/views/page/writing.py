"""Puts the page together and writes it. The same run gives the same bytes: nothing on it tells the time it was made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollbook.core.atomic import replacing
from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.ids import BASE_KEY
from rollbook.project.off_lock import off_lock, said_of
from rollbook.views.doctor.diagnosis import Diagnosis
from rollbook.views.page.choosing import PageLimits
from rollbook.views.page.curves import Chart, charts, numbers, specs
from rollbook.views.page.document import (
    Document,
    PageSection,
    asset,
    explorer_html,
    explorer_settings,
)
from rollbook.views.page.environment import environments
from rollbook.views.page.findings import diagnosed, findings_html, findings_tile, linked
from rollbook.views.page.lineage import drawing, policies_html
from rollbook.views.page.overview import base_name, edited, evaluation, made_from, recipes, tiles
from rollbook.views.page.rescores import rescores
from rollbook.views.page.rollouts import explored
from rollbook.views.page.shown import COMMAND, ShownChain
from rollbook.views.page.vega import bundle
from rollbook.views.show.page import marked, part_html, safe, told
from rollbook.views.show.sections import Part

PAGE = Path("reports/index.html")
CHAIN_COLORS = 6
"""That the page has for chains: `--c1` and so on in style.css; with more chains they begin again."""
CHAINS_SHOWN = 6
"""Chains whose curves are drawn until the reader chooses others."""


def write_page(shown: ShownChain, limits: PageLimits, path: Path = PAGE) -> None:
    """Writes the page whole or not at all.

    Raises:
        ArtifactError: if a stored file is damaged, the page cannot be written, or a folder lies there.
    """
    if path.is_dir():
        raise ArtifactError(
            f"{path}: is a folder", "the page is written there; move the folder away"
        )
    text = page_html(shown, limits)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def page_html(shown: ShownChain, limits: PageLimits) -> str:
    """The page."""
    found, drawn = explored(shown, limits), charts(shown)
    diagnosis = diagnosed(shown)
    sections = [
        PageSection("overview", "Overview", _overview(shown, diagnosis)),
        PageSection("curves", "Curves", _curves(shown, drawn)),
        PageSection("rollouts", "Rollouts", explorer_html(found)),
        PageSection("doctor", "Doctor", _of_chain(shown, findings_html(diagnosis))),
        PageSection("rescores", "Re-scores", _of_chain(shown, linked(_named(rescores(shown))))),
        PageSection("lineage", "Lineage", _lineage(shown)),
        PageSection("environment", "Environment", _of_chain(shown, _named(environments(shown)))),
    ]
    scripts = []
    data: dict[str, object] = {}
    if drawn:
        data["chart-specs"] = specs(drawn)
    if found.blocks:
        data["explorer-settings"] = explorer_settings(found)
        scripts.append(asset("explorer.js"))
    if drawn:
        scripts += [bundle(), asset("charts.js")]
    return Document(_title(shown), _subtitle(shown), sections, scripts, data, found).html()


def _title(shown: ShownChain) -> str:
    names = dict.fromkeys(shown.recipe(key) for key in shown.keys)
    return f"{' → '.join(names)}: {BASE_KEY} to {shown.key}" if names else "Nothing trained yet"


def _subtitle(shown: ShownChain) -> str:
    count = len(shown.finished)
    done = f"{count} iteration{'' if count == 1 else 's'}"
    return f"{done} from base policy {base_name(shown)}, seed {shown.run.params.seed}"


def _overview(shown: ShownChain, diagnosis: Diagnosis | RollbookError) -> str:
    parts = []
    for line in (said_of(off_lock(shown.run, {BASE_KEY, *shown.keys})), edited(shown)):
        if line:
            parts.append(f'<p class="finding warning">Note: {told(line)}.</p>')
    if others := shown.others:
        parts.append(
            f"<p>This page tells of the chain {BASE_KEY} to {marked(shown.key)}; the curves and the lineage show "
            f"all, and in the rollouts you choose. Others end with {marked(', '.join(chain.tip for chain in others))}: "
            f"<code>{COMMAND} --chain KEY</code> tells of one.</p>"
        )
    if not shown.begun:
        parts.append(
            "<p>No iteration has run yet. <code>dvc repro</code> trains what params.yaml says: what is below.</p>"
        )
    elif not shown.rows:
        parts.append("<p>No numbers are on disk. <code>rollbook pull</code> brings them.</p>")
    if shown.rows:
        cells = (
            f"<div><dt>{marked(tile.label)}</dt><dd>{marked(tile.value)}</dd>"
            f'<dd class="note">{told(tile.note)}</dd></div>'
            for tile in (*tiles(shown), findings_tile(diagnosis))
        )
        parts.append(f'<dl class="tiles">{"".join(cells)}</dl>')
    parts.append(_tall(_html(evaluation(shown))))
    parts.append(_named(recipes(shown)))
    parts.append(f"<h3>Made from</h3>{_html(made_from(shown))}")
    return "".join(parts)


def _curves(shown: ShownChain, drawn: Sequence[Chart]) -> str:
    if not drawn:
        return ""
    figures = "".join(
        f'<figure><figcaption>{safe(chart.curve.title)}</figcaption><p class="sub">{told(chart.curve.told)}</p>'
        f'<div class="chart" aria-hidden="true"></div><p class="hidden">{safe(chart.told)}</p></figure>'
        for chart in drawn
    )
    table = f"<details><summary>The numbers</summary>{_tall(_html([numbers(shown)]))}</details>"
    return f'{_legend(shown)}<div class="charts">{figures}</div>{table}'


def _legend(shown: ShownChain) -> str:
    """Of several chains, which colour each has, and which are shown; empty of one."""
    if len(shown.branches) == 1:
        return ""
    choices = "".join(
        f'<label><input type="checkbox" value="{safe(branch.name)}"{" checked" if at < CHAINS_SHOWN else ""}>'
        f'<span class="swatch c{at % CHAIN_COLORS + 1}"></span>{safe(branch.name)}</label>'
        for at, branch in enumerate(shown.branches)
    )
    return f'<fieldset id="chains"><legend>Chains</legend>{choices}</fieldset>'


def _lineage(shown: ShownChain) -> str:
    return f"{drawing(shown)}{_of_chain(shown, policies_html(shown))}" if shown.keys else ""


def _of_chain(shown: ShownChain, html: str) -> str:
    """What is told of one chain; where there are others, with a line that says of which."""
    others = shown.others
    if not html or not others:
        return html
    line = f"Of the chain {BASE_KEY} to {shown.key}; `{shown.command(others[0].tip)}` tells of another."
    return f'<p class="sub">{told(line)}</p>{html}'


def _named(parts: Iterable[tuple[str, Sequence[Part]]]) -> str:
    return "".join(f"<h3>{marked(name)}</h3>{_html(each)}" for name, each in parts)


def _html(parts: Iterable[Part]) -> str:
    """Parts as HTML. Tables may be wider than a telephone: keys reach their frames to scroll them."""
    html = "".join(map(part_html, parts))
    return html.replace('<div class="wide">', '<div class="wide" tabindex="0">')


def _tall(html: str) -> str:
    """A table that may have many rows, no higher than a screen."""
    return html.replace('<div class="wide"', '<div class="wide tall"')
