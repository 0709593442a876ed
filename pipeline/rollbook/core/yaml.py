"""YAML files: read as DVC reads them, and their text changed with comments and layout left as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.errors import ConfigError, Problem, damaged_text

PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
"""Strings that need no quotes, words like `true` aside."""
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


@dataclass(frozen=True)
class YamlEntry:
    """A new entry of a section.

    Attributes:
        flow: its value on one line, such as `{previous: i0001}`.
        lines: the whole entry in block style, key included, not indented; empty: `key: flow`.
    """

    flow: str
    lines: Sequence[str] = ()


def with_entries(text: str, section: str, entries: Mapping[str, YamlEntry]) -> str:
    """The text with entries added behind the last one of a top-level section; everything else stays as it is.

    In a section written in flow style (`{…}`) entries are written in flow style too.
    """
    root = composed(text)
    found = next((value for key, value in root.value if key.value == section), None)
    if found is None:
        return "\n".join([text.rstrip("\n"), "", f"{section}:", *_lines(entries, 2), ""])
    start, end = found.start_mark.index, found.end_mark.index
    if not found.value:
        return f"{text[:start].rstrip(' ')}\n" + "\n".join(_lines(entries, 2)) + text[end:]
    if found.flow_style:
        added = "".join(f", {key}: {entry.flow}" for key, entry in entries.items())
        return text[: end - 1] + added + text[end - 1 :]
    lines = text.splitlines()
    place = _last_line(found, lines) + 1
    indent = found.value[-1][0].start_mark.column
    return "\n".join([*lines[:place], *_lines(entries, indent), *lines[place:], ""])


def without_entries(text: str, section: str, names: Container[str]) -> str:
    """The text without some entries of a top-level section; everything else stays, comments on lines of their own too.

    A section that loses all its entries becomes `{}`.
    """
    found = node_at(composed(text), [section])
    if found.flow_style:
        kept = [
            text[key.start_mark.index : value.end_mark.index]
            for key, value in found.value
            if key.value not in names
        ]
        return (
            f"{text[: found.start_mark.index]}{{{', '.join(kept)}}}{text[found.end_mark.index :]}"
        )
    lines = text.splitlines()
    gone = {
        number
        for key, value in found.value
        if key.value in names
        for number in range(key.start_mark.line, _last_line(value, lines) + 1)
    }
    if all(key.value in names for key, _ in found.value):
        head = next(key for key, _ in composed(text).value if key.value == section).end_mark
        lines[head.line] = (
            f"{lines[head.line][: head.column]}: {{}}{lines[head.line][head.column + 1 :]}"
        )
    return "\n".join([*(line for number, line in enumerate(lines) if number not in gone), ""])


def with_value(text: str, place: Sequence[str | int], value: str, comment: str) -> str:
    """The text with another value at a place, on its line, and another comment behind it.

    Args:
        text: YAML whose settings stand one to a line.
        place: keys of mappings and places in lists, outermost first.
        value: as it is to be written.
        comment: without the `#`.
    """
    node = node_at(composed(text), place)
    lines = text.splitlines()
    number = node.start_mark.line
    lines[number] = f"{lines[number][: node.start_mark.column]}{value} # {comment}"
    return "\n".join([*lines, ""])


def with_lines(text: str, number: int, lines: Iterable[str]) -> str:
    """The text with further lines before line `number`, counted from 0."""
    before = text.splitlines()
    return "\n".join([*before[:number], *lines, *before[number:], ""])


def composed(text: str) -> Any:
    """The root node of a YAML document; nodes know their places in the text."""
    from ruamel.yaml import YAML

    return YAML().compose(text)


def node_at(node: Any, place: Sequence[str | int]) -> Any:
    """The node at a place. Raises KeyError if there is none."""
    for part in place:
        if isinstance(part, int):
            node = node.value[part]
            continue
        found = [value for key, value in node.value if key.value == part]
        if not found:
            raise KeyError(part)
        node = found[0]
    return node


def flow(value: Any) -> str:
    """A value on one line, as YAML 1.2 and 1.1 read it alike."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{flow(key)}: {flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, float):
        mantissa, mark, exponent = repr(value).partition("e")
        if not mark:
            return mantissa
        return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(exponent)}"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _lines(entries: Mapping[str, YamlEntry], indent: int) -> list[str]:
    lines = [
        line for key, entry in entries.items() for line in entry.lines or [f"{key}: {entry.flow}"]
    ]
    return [f"{' ' * indent}{line}" if line else "" for line in lines]


def _last_line(node: Any, lines: Sequence[str]) -> int:
    """Line of the last thing written in a YAML node; a block's own end mark lies behind the comments after it."""
    if getattr(node, "style", None) in ("|", ">"):
        return _last_line_of_text(node, lines)
    if isinstance(node.value, str) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last, lines)


def _last_line_of_text(node: Any, lines: Sequence[str]) -> int:
    """The same of a text in block style (`|`, `>`): its last line that is indented as its first."""
    last, indent = int(node.start_mark.line), None
    for number in range(last + 1, min(node.end_mark.line + 1, len(lines))):
        line = lines[number]
        if line.strip():
            own = len(line) - len(line.lstrip(" "))
            indent = own if indent is None else indent
            if own < indent or number == node.end_mark.line:
                break
            last = number
    return last


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file as DVC does (ruamel, YAML 1.2: `1e-06` is a number).

    Raises:
        ConfigError: if it is missing, malformed, or not a mapping.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(
            [Problem("", f"no {path} in {Path.cwd()}; run from the project's folder")], str(path)
        ) from None
    except UnicodeDecodeError as error:
        raise damaged_text(path, str(error)) from None
    except ConfigError as error:
        raise damaged_text(path, "; ".join(map(str, error.problems))) from None


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """A YAML mapping in memory, read as `read_yaml` reads files; `source` is what errors call it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        raw = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ConfigError([Problem("", " ".join(str(error).split()))], source) from None
    if not isinstance(raw, dict):
        raise ConfigError(
            [Problem("", f"must be a mapping of settings, is {type(raw).__name__}")], source
        )
    return raw


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted place, `loss.name`; a list is entered where it holds settings of its own."""
    nested = isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value)
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{place}.{key}" if place else str(key))
    elif nested:
        yield from leaves(dict(enumerate(value)), place)
    else:
        yield place, value
