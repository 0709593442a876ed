"""Runs recorded numbers: `python -m tests.vectors [DIR]`, default `../shared/vectors`.

Every JSON file of the folder in the format `grpo-vectors/1` is run through the adapters of this package. Prints each
case that fails with its largest error, each known difference with the reason, and last how many passed and failed. Exit
code 1 if any failed; a case that no adapter knows has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.vectors.cases import FOLDER, FORMAT, KnownDifference, Unsupported

ADAPTERS = [
    importlib.import_module(f"tests.vectors.{file.stem}")
    for file in sorted(Path(__file__).parent.glob("adapters_*.py"))
]


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the case passes, else what differs.

    Raises:
        KnownDifference: if Rollbook means another number.
        Unsupported: if no adapter covers it.
    """
    for adapter in ADAPTERS:
        if category in adapter.CATEGORIES:
            result: str | None = adapter.run_case(category, case)
            return result
    raise Unsupported("unknown category")


def cases_in(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Category and case, for all files of the format in a folder.

    Raises:
        ValueError: for a file that is not what it says it is, with its name.
    """
    for file in _files(folder):
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
            if isinstance(content, dict) and content.get("format") == FORMAT:
                yield from [(str(content["category"]), dict(case)) for case in content["cases"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: {type(error).__name__}: {error}") from error


def _files(folder: Path) -> list[Path]:
    return [folder] if folder.is_file() else sorted(folder.glob("*.json"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a folder. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.vectors", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    counts = Counter[str]()
    for file in _files(folder):
        try:
            cases = list(cases_in(file))
        except ValueError as error:
            counts["FAILED"] += 1
            print(f"FAILED {error}")
            continue
        for number, (category, case) in enumerate(cases):
            outcome, text = _outcome(category, case)
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome} {category}/{case.get('id', number)}: {text}")
    if not counts:
        print(f"no file of format {FORMAT} in {folder}")
    print(f"{counts['passed']} passed, {counts['FAILED']} failed")
    return 0 if counts and not counts["FAILED"] else 1


def _outcome(category: str, case: dict[str, Any]) -> tuple[str, str]:
    """What became of a case, and why."""
    try:
        problem = run_case(category, case)
    except KnownDifference as reason:
        return "known difference", str(reason)
    except Unsupported as reason:
        return "FAILED", str(reason)
    except Exception as error:
        return "FAILED", f"{type(error).__name__}: {error}"
    return ("passed", "") if problem is None else ("FAILED", problem)


if __name__ == "__main__":
    sys.exit(main())
