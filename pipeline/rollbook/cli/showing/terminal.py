"""A page about something, drawn on a terminal: with colours, or with marks where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.cli.console import console, table
from rollbook.core.text import visible
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
    level_of,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rollbook.views.show.facts import Token

HEAT = ("", "black on #f3e79b", "black on #fac484", "black on #eb7f86", "white on #963b7c")
"""Styles by warmth; readable on light and dark terminals, and told apart by brightness alone."""
MARKS = ("", "₁", "₂", "₃", "₄")
"""What follows a token of a warmth where there are no colours."""
INDENT = 2
UNLIMITED = 10_000
"""Columns of a terminal on which every table has room."""
SPECIAL, MASKED, CLIPPED = "bold cyan", "dim", "bold underline"
GOOD = {True: ("✓ ", "green"), False: ("✗ ", "bold red"), None: ("", "yellow")}


def draw(page: Page, where: Console | None = None) -> None:
    """Prints a page.

    Args:
        page: what to print.
        where: default the terminal.
    """
    from rich.text import Text

    where = where or console()
    where.print(Text(f"{page.title} {visible(page.name)}", "bold"), soft_wrap=True)
    where.print(Text(visible(page.subtitle)), soft_wrap=True)
    for section in page.sections:
        where.print(Text(f"\n{section.title}", "bold"))
        for part in section.parts:
            _draw_part(part, where)


def _draw_part(part: Part, where: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def put(text: Text) -> None:
        where.print(Padding(text, (0, 0, 0, INDENT), expand=False))

    if isinstance(part, KeyValues):
        where.print(Padding(_pairs(part), (0, 0, 0, INDENT), expand=False))
    elif isinstance(part, Grid):
        where.print(Padding(_grid(part, where), (0, 0, 0, INDENT), expand=False))
    elif isinstance(part, Passage):
        put(Text(visible(part.text, lines=True)))
    elif isinstance(part, PromptStrip):
        put(
            Text.assemble(
                *(
                    (visible(piece.text, lines=True), SPECIAL if piece.special else "")
                    for piece in part.pieces
                )
            )
        )
    elif isinstance(part, HeatStrip):
        coloured = where.color_system is not None and not where.no_color
        put(_strip(part, coloured))
        put(_legend(coloured))
    elif isinstance(part, Lines):
        for line in part.lines:
            put(Text(visible(line), "dim" if part.formula else ""))
    elif isinstance(part, Remark):
        mark, style = GOOD[part.good]
        put(Text(f"{mark}{visible(part.text)}", style))


def _strip(strip: HeatStrip, coloured: bool) -> Text:
    from rich.text import Text

    text = Text()
    for token in strip.tokens:
        level = level_of(token.sampling_logprob)
        style = HEAT[level] if coloured else ""
        if token.special:
            style = f"{style} bold"
        if not token.trained:
            style = f"{style} {MASKED}"
        if token.clipped:
            style = f"{style} {CLIPPED}"
        text.append(_written(token) + ("" if coloured else MARKS[level]), style.strip() or None)
    return text


def _legend(coloured: bool) -> Text:
    from rich.text import Text

    text = Text(LEGEND, "dim")
    for level, mark, style in zip(LEVELS, MARKS[1:], HEAT[1:], strict=True):
        text.append(" ")
        if coloured:
            text.append(f" p < {level:g} ", style)
        else:
            text.append(f"{mark} p < {level:g}")
    return text


def _written(token: Token) -> str:
    """The token with marks for what happened to it; its id in brackets without a tokenizer."""
    shown = visible(token.text, lines=True) if token.text is not None else f"[{token.id}]"
    if not token.trained:
        shown = f"⟦{shown}⟧"
    return f"{shown}{CLIP_MARKS.get(token.clipped or '', '')}"


def _pairs(part: KeyValues) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in part.pairs:
        made.add_row(Text(visible(name)), Text(visible(value)))
    return made


def _grid(part: Grid, where: Console) -> Table:
    """The grid; columns stand closer together where they do not fit otherwise."""
    from rich.measure import Measurement
    from rich.text import Text

    made = table(visible(part.head[0]))
    for name in part.head[1:]:
        right = name in part.numbers
        made.add_column(
            Text(visible(name)),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    for row in part.rows:
        made.add_row(*(Text(visible(cell)) for cell in row))
    anywhere = where.options.update(max_width=UNLIMITED)
    made.collapse_padding = Measurement.get(where, anywhere, made).maximum > where.width - INDENT
    return made
