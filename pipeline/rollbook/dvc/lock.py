"""The one reader of DVC's lock files: finished steps, the md5 of what each read and made, and the text of each entry.

A lock file with hundreds of iterations takes a YAML parser seconds, so DVC's own layout is parsed line by line; a file
in any other layout goes through the YAML parser. Both give the same values (a test compares them).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.errors import damaged_text
from rollbook.core.ids import BASE_KEY

PIPELINE_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
RESCORES_LOCK_FILE = Path("rescores/dvc.lock")
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
"""What DVC calls the bytes of a file, or of a folder."""
HEAD = "schema: '2.0'\nstages:\n"
PLAN_SECTION = "artifacts/plan.json"
ALIASES = {"evaluate_base": "evaluate_policy"}
"""Steps of dvc.yaml that run a program of another name, at the base policy."""
ITEM = re.compile(r"(?:    -|     ) ([a-z_0-9]+): (\S.*)")
"""A line of an item of `deps` or `outs`."""
FILE = re.compile(
    r"    - path: (.+)\n      hash: md5\n      md5: "
    r"([0-9a-f]{32}\.dir|(?=[0-9]*(?:[a-df]|e[0-9]*[a-f]))[0-9a-f]{32})\n"
    r"      size: (\d+)\n(?:      nfiles: (\d+)\n)?(?!      )"
)
"""A whole item as nearly all are, at once: line by line, many iterations take a tenth of a second."""
ENTRY = re.compile(r"  (\S.*):\n((?:   .*\n)*)")
PLAIN = re.compile(
    r"[0-9a-f]{32}(?:\.dir)?|[A-Za-z./][^:#'\"\[\]{}]*|'(?:[^']|'')*'|[0-9a-f]*[a-f][0-9a-f]*(?:\.dir)?"
)
"""Scalars that are text to any YAML parser. What else might be a number is left to the parser."""
AMBIGUOUS = re.compile(r"(?i)true|false|null|yes|no|on|off|\.inf|\.nan|[0-9]+e[0-9]+")


@dataclass(frozen=True)
class Entry:
    """One finished step.

    Attributes:
        address: as DVC calls it, such as `update_policy@i0001`.
        stage: name of its program.
        key: of the iteration; that of the base policy for steps that run once.
        rescore: name of the re-score it is part of, or empty.
        digest: of plan.json it ran with; None for steps that are not planned.
        inputs: md5 of everything it read, by path.
        outputs: md5 of everything it made, by path.
        sizes: bytes of everything it made, by path.
    """

    address: str
    stage: str
    key: str
    rescore: str
    digest: str | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    sizes: Mapping[str, int]


def read_entries(lock_file: Path = LOCK_FILE) -> list[Entry]:
    """All finished steps of a lock file; none if there is no such file, or it is empty.

    Raises:
        ConfigError: if it cannot be read.
    """
    return list(entries_of(read_stages(lock_file), lock_file))


def output_md5s(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """Md5 of every output by path; of a folder it ends in `.dir`. Empty without a lock file.

    Raises:
        ConfigError: if it cannot be read.
    """
    return made_by(read_entries(lock_file))


def made_by(entries: Iterable[Entry]) -> dict[str, str]:
    """Md5 of every output of these steps by path."""
    return {path: md5 for entry in entries for path, md5 in entry.outputs.items()}


def read_stages(lock_file: Path = LOCK_FILE) -> Mapping[str, Any]:
    """The section `stages` of a lock file as YAML values; empty if there is no such file, or it is empty.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        text = lock_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise damaged_text(lock_file, str(error)) from None
    try:
        return parse_stages(text)
    except ValueError as error:
        raise damaged_text(lock_file, str(error)) from None


def entries_of(stages: Mapping[str, Any], source: Path = LOCK_FILE) -> Iterator[Entry]:
    """The finished steps in the section `stages` of a lock file.

    Args:
        stages: YAML values.
        source: the file, for errors.

    Raises:
        ConfigError: if an entry is not as DVC writes it.
    """
    for address, said in stages.items():
        if problem := _problem(said):
            raise damaged_text(source, f"the entry of {address}: {problem}")
        stage, _, key = str(address).partition("@")
        rescore, _, key = key.rpartition("-")  # no iteration's key has a dash
        yield Entry(
            address=str(address),
            stage=ALIASES.get(stage, stage),
            key=key or BASE_KEY,
            rescore=rescore,
            digest=_digest(said),
            inputs=_values(said.get("deps"), "md5"),
            outputs=_values(said.get("outs"), "md5"),
            sizes=_values(said.get("outs"), "size"),
        )


def parse_stages(text: str) -> dict[str, Any]:
    """The section `stages` of a lock file's text as YAML values; empty for an empty file.

    Raises:
        ValueError: if it is no YAML, or no lock file.
    """
    try:
        return {address: _entry(lines) for address, lines in _chunks(text)}
    except _OtherLayoutError:
        return yaml_section(text, "stages")


def yaml_section(text: str, name: str) -> dict[str, Any]:
    """A mapping at the top of a YAML text; empty if it is not there.

    Raises:
        ValueError: if the text is no YAML mapping, or the section is no mapping.
    """
    content = _yaml(text)
    section = ({} if content is None else content).get(name) if _is_mapping(content) else content
    if section is not None and not isinstance(section, dict):
        raise ValueError(f"`{name}` should hold steps by name")
    return section or {}


def _yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError: if it is none.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def texts_of(text: str) -> dict[str, str]:
    """Text of every entry of a lock file by its address, such as `update_policy@i0001`."""
    found: dict[str, str] = {}
    for name, line in _lines(text):
        if name:
            found[name] = found.get(name, "") + line
    return found


def lock_of(texts: Iterable[str]) -> str:
    """A lock file of these entries."""
    return HEAD + "".join(texts)


def without(text: str, addresses: Container[str]) -> str:
    """A lock file without some entries; nothing if no entry is left."""
    kept = [(name, line) for name, line in _lines(text) if name not in addresses]
    return "".join(line for _, line in kept) if any(name for name, _ in kept) else ""


# --- DVC's layout ---------------------------------------------------------------------------------


class _OtherLayoutError(Exception):
    """A line that DVC does not write so."""


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Every line with the address of the entry that it is part of; empty outside of entries."""
    name, inside = "", False
    for line in text.splitlines(keepends=True):
        if not line.startswith(" "):
            inside, name = line.rstrip() == "stages:", ""
        elif inside and not line.startswith("   "):
            name = line.strip().removesuffix(":").strip("'\"")
        yield name, line


def _chunks(text: str) -> Iterator[tuple[str, str]]:
    """Lines of every entry below its address."""
    if not text.startswith(HEAD):
        if text.strip():
            raise _OtherLayoutError
        return
    text = f"{text.rstrip()}\n"
    position, seen = len(HEAD), set[str]()
    while position < len(text):
        if not (entry := ENTRY.match(text, position)) or entry[1] in seen:
            raise _OtherLayoutError
        seen.add(entry[1])
        yield entry[1].strip("'\""), entry[2]
        position = entry.end()


def _entry(text: str) -> Any:
    """An entry as YAML values; one with nested parameters goes through the YAML parser."""
    try:
        return _parsed(text)
    except _OtherLayoutError:
        return _yaml(text)


def _parsed(text: str) -> dict[str, Any]:
    """An entry as YAML values."""
    entry: dict[str, Any] = {}
    section, params, position = "", dict[str, Any](), 0
    while position < len(text):
        if section in ("deps", "outs") and (file := FILE.match(text, position)):
            item = {"path": _scalar(file[1]), "hash": "md5", "md5": file[2], "size": int(file[3])}
            entry[section].append({**item, "nfiles": int(file[4])} if file[4] else item)
            position = file.end()
            continue
        end = text.index("\n", position)
        line, position = text[position:end], end + 1
        if line[4:5] not in " -":
            name, colon, value = line[4:].partition(":")
            section = name
            if not colon or name in entry:
                raise _OtherLayoutError
            entry[name] = _text(value[1:]) if value else {} if name == "params" else []
        elif section in ("deps", "outs") and (found := ITEM.fullmatch(line)):
            if line[4] == "-":
                entry[section].append({})
            name, value = found[1], found[2]
            if not entry[section] or name in entry[section][-1]:
                raise _OtherLayoutError
            number = value.isdecimal() and name != "md5"
            entry[section][-1][name] = int(value) if number else _scalar(value)
        elif section == "params" and line[6:7].strip() and line.endswith(":"):
            params = entry["params"].setdefault(line[6:-1], {})
        elif section == "params" and line.startswith("        ") and ": " in line:
            name, _, value = line[8:].partition(": ")
            params[name] = _scalar(value)
        else:
            raise _OtherLayoutError
    return entry


def _text(value: str) -> str:
    """The command of an entry; a quoted one is left to the YAML parser."""
    if not value or value[0] in "'\"|>&*!%@`[{" or ": " in value or " #" in value:
        raise _OtherLayoutError
    return value


def _scalar(value: str) -> str:
    if not PLAIN.fullmatch(value) or AMBIGUOUS.fullmatch(value):
        raise _OtherLayoutError
    return value[1:-1].replace("''", "'") if value.startswith("'") else value


# --- what an entry says ---------------------------------------------------------------------------


def _problem(said: Any) -> str:
    """What is wrong with an entry; empty if nothing is."""
    if not _is_mapping(said):
        return "holds nothing"
    for section in ("deps", "outs"):
        for item in said.get(section) or []:
            if not _is_mapping(item) or "path" not in item:
                return f"an item of `{section}` names no path"
            if "md5" in item and not MD5.fullmatch(str(item["md5"])):
                return f"{str(item['md5'])!r} of {item['path']} is no md5"
    return ""


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _values(listed: Any, name: str) -> dict[str, Any]:
    return {item["path"]: item[name] for item in listed or [] if name in item}


def _digest(said: Mapping[str, Any]) -> str | None:
    sections = said.get("params")
    digests = sections.get(PLAN_SECTION) if isinstance(sections, Mapping) else None
    return next(iter(digests.values())) if _is_mapping(digests) and digests else None
