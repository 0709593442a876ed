"""The HTML page: whatever stands in the data, it is text, and nothing is loaded or run."""

from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rollbook.cli.showing.terminal import draw
from rollbook.project.run.run import Run
from rollbook.views.show.facts import RolloutFacts, Shown
from rollbook.views.show.layout import page_of
from rollbook.views.show.page import html_of
from rollbook.views.show.sections import Grid, Page, Section
from rollbook.views.show.shown import facts_of
from tests.unit.views.show.project import names

HOSTILE = (
    '</span></pre><script>alert(1)</script><img src=x onerror="a()"> \x1b[2J\u202e[/bold][link=x]'
)
VOID = ("meta", "br")
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "section"),
    *("dl", "dt", "dd", "pre", "span", "div", "table", "thead", "tbody", "tr", "th", "td", "br"),
}


class Parsed(HTMLParser):
    """Tags, attributes and text of a page; fails where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data


def hostile() -> RolloutFacts:
    """A rollout with hostile text wherever text of others stands."""
    facts = facts_of(Run(), names()["rollout"])
    assert isinstance(facts, RolloutFacts)
    tokens = [replace(facts.tokens[0], text=HOSTILE, special=True, clipped="low")]
    masked = replace(facts.tokens[1], trained=False, sampling_logprob=-9.0)
    sibling = replace(facts.siblings[0], text=HOSTILE, rollout_id=HOSTILE)
    reward = replace(facts.rewards[0], name=HOSTILE, logged={HOSTILE: HOSTILE})
    prompt = replace(facts.prompt, pieces=(), rendered=HOSTILE, columns={HOSTILE: HOSTILE})
    return replace(
        facts,
        rollout_id=HOSTILE,
        tokens=[*tokens, masked],
        siblings=[sibling],
        rewards=[reward],
        prompt=prompt,
        error=HOSTILE,
        finish_reason=HOSTILE,
    )


def pages() -> list[Shown]:
    ids = names()
    found = [facts_of(Run(), each) for each in (*ids.values(), "i0002", "i0000")]
    return [*found, facts_of(Run(), ids["evaluated"], over_time=True)]


def test_pages_are_whole_and_hold_nothing_that_loads_or_runs(looked_at: Path) -> None:
    for facts in (*pages(), hostile()):
        parsed = Parsed(html_of(page_of(facts)))
        assert parsed.tags <= ALLOWED
        assert parsed.attributes <= {
            "lang",
            "charset",
            "http-equiv",
            "content",
            "name",
            "class",
            "title",
        }
        assert "color-scheme: light dark" in html_of(page_of(facts))


def test_hostile_text_is_shown_as_it_is(looked_at: Path) -> None:
    page = html_of(page_of(hostile()))
    assert "<script" not in page and "<img" not in page
    assert "\x1b" not in page and "\u202e" not in page
    shown = HOSTILE.replace("\x1b", "␛").replace("\u202e", "‹U+202E›")
    assert Parsed(page).text.count(shown) >= 6  # prompt, token, its row, error, finish reason, …


def test_the_terminal_is_not_moved_by_hostile_text(looked_at: Path) -> None:
    for colours in (None, "truecolor"):
        out = StringIO()
        console = Console(file=out, width=400, color_system=colours, force_terminal=True)
        draw(page_of(hostile()), console)
        said = out.getvalue()
        assert "\x1b[2J" not in said and "\u202e" not in said
        assert "[/bold][link=x]" in said
        assert "␛[2J" in said


def test_warmth_and_marks_are_seen_without_colours(looked_at: Path) -> None:
    out = StringIO()
    facts = hostile()
    likely = replace(facts.tokens[0], text="sure", clipped="high", sampling_logprob=0.0)
    draw(page_of(replace(facts, tokens=[likely, *facts.tokens])), Console(file=out, width=400))
    said = out.getvalue()
    assert "\x1b" not in said
    assert "sure↑" in said
    assert f"⟦{facts.tokens[1].text}⟧₄" in said
    assert "1 by the lower bound (↓), 1 by the upper (↑)" in said


def test_colours_differ_with_the_likelihood(looked_at: Path) -> None:
    facts = hostile()
    shades = set()
    for logprob in (0.0, -0.3, -1.0, -3.0, -9.0):
        token = replace(facts.tokens[1], text="T", trained=True, sampling_logprob=logprob)
        out = StringIO()
        console = Console(file=out, width=200, color_system="truecolor", force_terminal=True)
        draw(page_of(replace(facts, tokens=[token])), console)
        lines = out.getvalue().splitlines()
        strip = next(
            line for line in lines[lines.index("\x1b[1mCompletion\x1b[0m") :] if "T" in line
        )
        shades.add(strip.partition("T")[0])
    assert len(shades) == 5


@pytest.mark.parametrize(("room", "apart"), [(120, 3), (104, 2)])
def test_columns_move_together_before_words_are_cut(room: int, apart: int) -> None:
    names = [f"column {number}" for number in range(10)]
    out = StringIO()
    page = Page("", "", "", [Section("", [Grid(names, [["0"] * 10], [])])])
    draw(page, Console(file=out, width=room))
    assert (" " * apart).join(names) in out.getvalue()
