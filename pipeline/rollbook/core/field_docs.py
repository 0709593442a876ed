"""What the docstrings say of settings, so that commands need not say it again.

A field is explained by the string below it, as in the sections of a recipe, or under `Attributes:` in the docstring
of its class, as in components.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from functools import cache

from rollbook.core.component import Component, Model

ENTRY = re.compile(r"    (?P<names>\w+(?:, \w+)*): (?P<text>.*)")


def meaning_of(cls: type[Model], field: str) -> str:
    """The first sentence that is said of a field, by the class or the nearest parent that says anything; else empty."""
    found = text_on(cls, field)
    return _first_sentence(found) if found else ""


def text_on(cls: type[Model], field: str) -> str:
    """All that is said of a field, on one line; from where `meaning_of` takes its first sentence."""
    for parent in cls.__mro__:
        if issubclass(parent, Model) and (found := _explained(parent).get(field)):
            return " ".join(found.split())
    return ""


def headline_of(component: type[Component]) -> str:
    """The first line of the file that a component lives in, without its name and the full stop."""
    text = sys.modules[component.__module__].__doc__ or component.__doc__ or ""
    line = text.strip().partition("\n")[0]
    return re.sub(r"^[\w. +]+: ", "", line).rstrip(".")


def formula_of(component: type[Component]) -> list[str]:
    """The lines of formula at the head of the file that a component lives in: those set apart by four spaces."""
    text = inspect.cleandoc(sys.modules[component.__module__].__doc__ or "")
    blocks = text.split("\n\n")
    shown = next((block for block in blocks[1:] if block.startswith("    ")), "")
    return [line.removeprefix("    ") for line in shown.splitlines()]


@cache
def _explained(cls: type[Model]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):  # a class made in a shell has no source
        return {}
    assert isinstance(body, ast.ClassDef)
    return {**_under_attributes(inspect.cleandoc(ast.get_docstring(body) or "")), **_below(body)}


def _below(body: ast.ClassDef) -> dict[str, str]:
    """Strings that stand below annotated fields."""
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = str(below.value.value)
    return found


def _under_attributes(docstring: str) -> dict[str, str]:
    """`name, other: text` entries; lines that are indented further continue one."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        if entry := ENTRY.fullmatch(line):
            names = entry["names"].split(", ")
            found |= dict.fromkeys(names, entry["text"])
        elif line.startswith("     "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    sentence = re.split(r"(?<=[^.][.;]) (?=[A-Z`0-9]|\w)", words)[0]
    return sentence.rstrip(".;")
