"""What `rollbook doctor` says of the chain; ids of rollouts and groups in it lead to these on the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rollbook.core.errors import RollbookError
from rollbook.core.ids import EVALUATION, ITERATION_KEY
from rollbook.views.doctor import Finding
from rollbook.views.doctor.diagnosis import Diagnosis, diagnosis_of
from rollbook.views.doctor.finding import GRADES
from rollbook.views.page.overview import Tile
from rollbook.views.page.shown import ShownChain
from rollbook.views.show.page import marked, told

ROLLOUT = re.compile(
    rf"(?<![/\w])(?:{EVALUATION}(?:(?!{EVALUATION})[^<>])+?/)?"
    rf"{ITERATION_KEY.pattern}/[0-9a-f]{{16}}(?:/[0-9]{{2,}})?\b"
)
"""The id of a rollout or of a group in safe HTML, of training or of an evaluation set, whatever the set is called."""


def diagnosed(shown: ShownChain) -> Diagnosis | RollbookError:
    """What the doctor says; where a check of the project's own fails, what it failed of: the rest can be shown."""
    try:
        return diagnosis_of(shown.run, shown.key)
    except RollbookError as error:
        return error


def findings_html(found: Diagnosis | RollbookError) -> str:
    """The findings, the worst first; empty if there was nothing to look at."""
    if isinstance(found, RollbookError):
        return f'<p class="bad">✗ {told(found.line)}</p>'
    if not found.looked_at_something:
        return ""
    remarks = "".join(f'<p class="sub">{told(each)}</p>' for each in found.remarks)
    if not found.findings:
        return f'<p class="good">✓ {len(found.checks)} checks found nothing.</p>{remarks}'
    return "".join(map(_finding, found.findings)) + remarks


def findings_tile(found: Diagnosis | RollbookError) -> Tile:
    """How many there are of each grade, the worst first."""
    if isinstance(found, RollbookError):
        return Tile("doctor", "failed", "see below")
    if not found.looked_at_something:
        return Tile("doctor", "not looked at", "`rollbook pull` brings what was made")
    counts = Counter(each.grade for each in found.findings)
    worst = [f"{counts[grade]} {grade}" for grade in reversed(GRADES) if counts[grade]]
    silent = "healthy" if found.looked_at_all else "not all looked at"
    return Tile("doctor", ", ".join(worst) or silent, f"{len(found.checks)} checks")


def _finding(found: Finding) -> str:
    where = f" · {marked(found.where)}" if found.where else ""
    return (
        f'<article class="finding {found.grade}">'
        f'<h3><span class="grade">{found.grade}</span> {told(found.title)}</h3>'
        f'<p class="sub">{marked(found.check)}{where}</p>{"".join(_evidence(found.evidence))}'
        f"<dl><dt>likely cause</dt><dd>{told(found.cause)}</dd>"
        f"<dt>change</dt><dd><code>{marked(str(found.change))}</code></dd></dl></article>"
    )


def _evidence(lines: Sequence[str]) -> Iterator[str]:
    yield "<ul>"
    for line in lines:
        yield f"<li>{linked(marked(line))}</li>"
    yield "</ul>"


def linked(html: str) -> str:
    """Ids of rollouts and groups in safe HTML as links to them on the page."""
    return ROLLOUT.sub(lambda found: f'<a href="#{found[0]}">{found[0]}</a>', html)
