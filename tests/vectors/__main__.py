"""Runs recorded numbers: `python -m tests.vectors [DIR]`, default `../shared/vectors`.

Every JSON file of the folder in the format `grpo-vectors/1` is run through the adapters of this package. Prints cases
that fail, then how many are not covered and why, and last how many passed and failed. Exit code 1 if any failed.
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

from tests.vectors.cases import FOLDER, FORMAT, Unsupported

ADAPTERS = [
    importlib.import_module(f"tests.vectors.{file.stem}")
    for file in sorted(Path(__file__).parent.glob("adapters_*.py"))
]


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the case passes, else what differs.

    Raises:
        Unsupported: if no adapter covers it.
    """
    for adapter in ADAPTERS:
        if category in adapter.CATEGORIES:
            result: str | None = adapter.run_case(category, case)
            return result
    raise Unsupported(f"category {category}")


def cases_in(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Category and case, for all files of the format in a folder."""
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format") == FORMAT:
            for case in content["cases"]:
                yield content["category"], case


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a folder. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.vectors", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    passed, failed, left_out = 0, 0, Counter[str]()
    for category, case in cases_in(folder):
        try:
            problem = run_case(category, case)
        except Unsupported as reason:
            left_out[str(reason)] += 1
            continue
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            passed += 1
        else:
            failed += 1
            print(f"FAILED {category}/{case['id']}: {problem}")
    if not passed + failed + left_out.total():
        print(f"no file of format {FORMAT} in {folder}")
        return 1
    reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(left_out.items()))
    print(f"{left_out.total()} not covered yet: {reasons}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
