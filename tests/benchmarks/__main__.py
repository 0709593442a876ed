"""Runs the benchmarks and writes reports/benchmarks.md. All ratios in a section are taken in one run.

`python -m tests.benchmarks algorithms` compares the presets instead and writes reports/algorithms.md; it takes hours.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

from pipeline import lineage
from tests.benchmarks import algorithms, scoring, seams

REPORT = Path(__file__).parents[2] / "reports" / "benchmarks.md"
SECTIONS = (seams.report, scoring.report)


def main() -> None:
    environment = lineage.environment()
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    head = (
        "# Benchmarks\n\nWritten by `make bench`; figures of one machine in one run, read them as ratios.\n\n"
        f"{datetime.date.today().isoformat()}, {environment['cpu']}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, {packages}.\n"
    )
    text = "\n".join([head, *(f"{section()}\n" for section in SECTIONS)])
    REPORT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["algorithms"]:
        algorithms.main(sys.argv[2:])
    else:
        main()
