"""The page as a file: what stands where, what the browser may do, and everything it needs.

A policy allows the scripts that are in the file, by their digests, and nothing else: no request, no other script, no
evaluated text. Vega runs its expressions through its interpreter for that.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from rollbook.views.page.packing import plain_json
from rollbook.views.page.rollouts import ANSWERS, ROLLOUTS, Explored
from rollbook.views.show.page import COLORS, PARTS_STYLE, SIGNS, legend_html, safe, told
from rollbook.views.show.sections import CLIP_MARKS, LEVELS

ASSETS = files("rollbook.views.page") / "assets"
LISTED = 25
"""Rollouts on a leaf of the list."""
LEFT_OUT = "<!-- left out -->"
"""Where explorer.html has room for what is not on the page."""


@dataclass(frozen=True)
class PageSection:
    """One section.

    Attributes:
        id: its anchor.
        title: its heading, and its name in the navigation.
        html: what stands in it.
    """

    id: str
    title: str
    html: str


@dataclass(frozen=True)
class Document:
    """All of a page.

    Attributes:
        title: of the run.
        subtitle: one line.
        sections: in order; those without content are left out.
        scripts: names of assets, or programs, in the order they run.
        data: JSON by the id of its element.
        explored: packed rollouts.
    """

    title: str
    subtitle: str
    sections: Sequence[PageSection]
    scripts: Sequence[str]
    data: Mapping[str, object]
    explored: Explored

    def html(self) -> str:
        """The file."""
        theme = asset("theme.js")
        shown = [section for section in self.sections if section.html]
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_policy([theme, *self.scripts])}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{safe(self.title)}</title>",
                f"<style>{COLORS}{PARTS_STYLE}{asset('style.css')}</style>",
                f"<script>{theme}</script></head><body>",
                '<a class="skip" href="#main">To the content</a>',
                _header(shown),
                f'<main id="main"><h1>{safe(self.title)}</h1><p class="sub">{told(self.subtitle)}</p>',
                "<noscript><p>Charts and rollouts need JavaScript; all tables can be read without.</p></noscript>",
                *(_section(section) for section in shown),
                "<footer>Made by <code>rollbook page</code> from what is stored. It asks the network for nothing."
                "</footer></main>",
                *self._data(),
                *(f"<script>{script}</script>" for script in self.scripts),
                "</body></html>",
                "",
            ]
        )

    def _data(self) -> Iterator[str]:
        for name, content in self.data.items():
            yield f'<script type="application/json" id="{name}">{plain_json(content)}</script>'
        for kind, packed, mark in (
            ("block", self.explored.blocks, " data-block"),
            ("tokens", self.explored.views, ""),
        ):
            for key, text in packed.items():
                yield f'<script type="application/octet-stream" id="{kind}-{safe(key)}"{mark}>{text}</script>'


def asset(name: str) -> str:
    """A file of `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def explorer_html(explored: Explored) -> str:
    """The explorer without its rollouts; where there are none, a sentence about it."""
    missing = "".join(f'<p class="sub">{told(line)}</p>' for line in explored.missing)
    if not explored.blocks:
        return missing or "<p>No rollouts yet.</p>"
    left_out = "".join(
        f'<p class="sub" data-of="{what}">{told(line)}</p>'
        for what, lines in explored.left_out.items()
        for line in lines
    )
    legend = f'<template id="legend">{legend_html()}</template>'
    return f"{missing}{asset('explorer.html').replace(LEFT_OUT, left_out)}{legend}"


def explorer_settings(explored: Explored) -> dict[str, object]:
    """What the explorer shares with the pages of `rollbook show`, what chains there are, and what its lists hold."""
    return {
        "chains": [[name, list(keys)] for name, keys in explored.chains.items()],
        "lists": [ROLLOUTS, ANSWERS],
        "levels": list(LEVELS),
        "signs": f"({SIGNS.pattern})",
        "clips": CLIP_MARKS,
        "page": LISTED,
    }


def _policy(scripts: Iterable[str]) -> str:
    digests = (
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts
    )
    allowed = " ".join(f"'sha256-{each}'" for each in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _header(sections: Sequence[PageSection]) -> str:
    links = "".join(f'<li><a href="#{each.id}">{safe(each.title)}</a></li>' for each in sections)
    return (
        f'<header><div><span class="name">Rollbook</span><nav aria-label="Sections"><ul>{links}</ul></nav>'
        '<label><span class="hidden">Theme</span><select id="theme"><option value="system">System</option>'
        '<option value="light">Light</option><option value="dark">Dark</option></select></label></div></header>'
    )


def _section(section: PageSection) -> str:
    return f'<section id="{section.id}"><h2>{safe(section.title)}</h2>\n{section.html}\n</section>'
