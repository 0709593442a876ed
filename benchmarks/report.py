"""Reports: when and where they were measured; reports/benchmarks.md in sections that are replaced one by one."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable

from rollbook.project import environment as lineage

HEAD = (
    "# Benchmarks\n\nWritten by `make bench`, or some sections of it by `python -m benchmarks NAME…`. A section "
    "is one run on one machine; read its figures as ratios.\n"
)


def now_and_here() -> str:
    """The date, the machine, and versions of the packages."""
    environment = lineage.environment()
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return (
        f"{datetime.date.today().isoformat()} on {environment.cpu}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}, {packages}"
    )


def stamped(section: str, measured: str) -> str:
    """The section, or a report, with a line under its heading that says when and where it was measured."""
    heading, _, rest = section.strip().partition("\n")
    return f"{heading}\n\nMeasured {measured}.\n\n{rest.strip()}\n"


def merged(report: str, sections: Iterable[str]) -> str:
    """The report with these sections in the place of those of the same heading; new ones come last.

    Args:
        report: as it was; empty: there was none.
        sections: each begins with its heading, `## …`.
    """
    kept = {_heading(each): each for each in re.split(r"^(?=## )", report, flags=re.MULTILINE)[1:]}
    kept |= {_heading(each): each for each in sections}
    return "\n".join([HEAD, *(f"{each.strip()}\n" for each in kept.values())])


def _heading(section: str) -> str:
    heading = section.partition("\n")[0].strip()
    if not heading.startswith("## "):
        raise ValueError(f"a section begins with its heading, '## …', not with {heading!r}")
    return heading
