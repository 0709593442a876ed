"""A page about something as HTML: one file that needs nothing else, without a script, light or dark as the reader's.

Everything but the frame is escaped here. A policy forbids the browser to load or run anything, should that fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from rollbook.core.text import NEWLINE, PICTURES, TAB, visible
from rollbook.views.show.facts import Token
from rollbook.views.show.sections import (
    CLIP_MARKS,
    LEGEND,
    LEVELS,
    Grid,
    HeatStrip,
    KeyValues,
    Lines,
    Page,
    Part,
    Passage,
    PromptStrip,
    Remark,
    Section,
    level_of,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
SIGNS = re.compile(f"‹U\\\\+[0-9A-F]{{4,6}}›|[{NEWLINE}{TAB}{''.join(PICTURES.values())}]")
"""What `visible` writes for a character without a look."""
CODE = re.compile("`([^`]+)`")
"""How sentences of this program set off what is typed or written in a file."""
COLORS = """
:root { color-scheme: light dark;
  --ink: light-dark(#1c1c1e, #e6e6e3); --paper: light-dark(#fdfdfc, #17181a); --line: light-dark(#d8d8d4, #38393d);
  --soft: light-dark(#636368, #a2a2a8); --special: light-dark(#005f87, #6cc4ee);
  --good: light-dark(#1b6e3a, #6fcf8e); --bad: light-dark(#b3261e, #ff8a80);
  --h1: light-dark(#f7eebc, #4a4419); --h2: light-dark(#fbd49a, #63451a); --h3: light-dark(#f3a6a9, #6f2f33);
  --h4: light-dark(#d3a8e6, #63307d); }
"""
"""Of a page in the light and in the dark; an element whose `color-scheme` is one of them keeps to it."""
PARTS_STYLE = """
.sub, dt, .legend { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .6rem 0; }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .92rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; }
td { white-space: pre-wrap; overflow-wrap: anywhere; max-width: 34rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { font: .95rem/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0;
  border-left: 3px solid var(--line); padding-left: .8rem; }
pre, dd, td { unicode-bidi: isolate; direction: ltr; }
.special { color: var(--special); font-weight: 600; } .masked { opacity: .55; }
.clip { text-decoration: underline 2px; font-weight: 600; } .sign { color: var(--soft); font-size: .85em; }
code { font: .92em ui-monospace, monospace; overflow-wrap: anywhere; }
.t { border-radius: 2px; } .t .sign, .t.special, .legend .t { color: var(--ink); }
.h1 { background: var(--h1); } .h2 { background: var(--h2); }
.h3 { background: var(--h3); } .h4 { background: var(--h4); }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
"""
"""Of all that `part_html` draws."""
STYLE = f"""{COLORS}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; margin-bottom: 0; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
{PARTS_STYLE}"""


def html_of(page: Page, note: str = "") -> str:
    """The whole page.

    Args:
        page: what it shows.
        note: a sentence about all of it, if there is one.
    """
    title = f"{page.title} {page.name}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{safe(title)}</title>",
            f"<style>{STYLE}</style></head><body><main>",
            f"<h1>{safe(title)}</h1>",
            f'<p class="sub">{told(page.subtitle)}</p>',
            *([f'<p class="bad">Note: {told(note)}.</p>'] if note else []),
            *(_section(section) for section in page.sections),
            "</main></body></html>",
            "",
        ]
    )


def _section(section: Section) -> str:
    parts = "\n".join(map(part_html, section.parts))
    return f"<section><h2>{safe(section.title)}</h2>\n{parts}\n</section>"


def part_html(part: Part) -> str:
    """A part as HTML; all texts in it are made safe."""
    if isinstance(part, KeyValues):
        as_html = told if part.told else marked
        rows = (f"<dt>{marked(name)}</dt><dd>{as_html(value)}</dd>" for name, value in part.pairs)
        return f"<dl>{''.join(rows)}</dl>"
    if isinstance(part, Grid):
        return _grid(part)
    if isinstance(part, Passage):
        return f"<pre>{marked(part.text, lines=True)}</pre>"
    if isinstance(part, PromptStrip):
        pieces = (
            f'<span class="special">{marked(piece.text, lines=True)}</span>'
            if piece.special
            else marked(piece.text, lines=True)
            for piece in part.pieces
        )
        return f"<pre>{''.join(pieces)}</pre>"
    if isinstance(part, HeatStrip):
        return f"<pre>{''.join(map(_token, part.tokens))}</pre>{legend_html()}"
    if isinstance(part, Lines):
        if part.formula:
            return f"<pre>{'<br>'.join(marked(line) for line in part.lines)}</pre>"
        return "".join(f"<p>{told(line)}</p>" for line in part.lines)
    return _remark(part)


def _grid(grid: Grid) -> str:
    def cell(tag: str, name: str, text: str) -> str:
        kind = ' class="n"' if name in grid.numbers else ""
        return f"<{tag}{kind}>{marked(text)}</{tag}>"

    head = "".join(cell("th", name, name) for name in grid.head)
    rows = "".join(
        f"<tr>{''.join(cell('td', name, text) for name, text in zip(grid.head, row, strict=True))}</tr>"
        for row in grid.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _token(token: Token) -> str:
    """A token that says its numbers when pointed at."""
    classes = ["t", *([f"h{level}"] if (level := level_of(token.sampling_logprob)) else [])]
    classes += [
        name
        for name, wanted in (
            ("special", token.special),
            ("masked", not token.trained),
            ("clip", token.clipped),
        )
        if wanted
    ]
    text = f"[{token.id}]" if token.text is None else token.text
    mark = CLIP_MARKS.get(token.clipped or "", "")
    numbers = ", ".join(_numbers(token))
    return f'<span class="{" ".join(classes)}" title="{safe(numbers)}">{marked(text, lines=True)}{mark}</span>'


def _numbers(token: Token) -> Iterator[str]:
    yield f"token {token.place}, id {token.id}"
    for name, value in (
        ("log-prob", token.sampling_logprob),
        ("old", token.old_logprob),
        ("reference", token.ref_logprob),
        ("in training", token.policy_logprob),
        ("ratio", token.ratio),
        ("advantage", token.advantage),
        ("value", token.value),
        ("return", token.token_return),
    ):
        if value is not None:
            yield f"{name} {value:.4f}"
    if not token.trained:
        yield "not trained on"
    if token.clipped:
        yield f"held by the {'lower' if token.clipped == 'low' else 'upper'} bound"


def legend_html() -> str:
    """What the degrees of a heat strip mean."""
    samples = (
        f'<span class="t h{number}">&nbsp;p &lt; {level:g}&nbsp;</span>'
        for number, level in enumerate(LEVELS, start=1)
    )
    return f'<p class="legend">{LEGEND} {" ".join(samples)}</p>'


def _remark(remark: Remark) -> str:
    mark, kind = {True: ("✓ ", "good"), False: ("✗ ", "bad"), None: ("", "sub")}[remark.good]
    return f'<p class="{kind}">{mark}{told(remark.text)}</p>'


def safe(text: str) -> str:
    """Text without anything that a browser could take for something else."""
    return escape(visible(text))


def marked(text: str, lines: bool = False) -> str:
    """The same, with signs for what has no look set apart from the text."""
    return SIGNS.sub(
        lambda found: f'<span class="sign">{found[0]}</span>', escape(visible(text, lines))
    )


def told(text: str) -> str:
    """A sentence of this program: the same, and what stands between backticks is code.

    Texts of models and data are for `marked`: their backticks are theirs.
    """
    return CODE.sub(r"<code>\1</code>", marked(text))
