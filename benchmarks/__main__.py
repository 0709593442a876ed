"""Runs benchmarks and writes reports/benchmarks.md. All ratios in a section are taken in one run.

`python -m benchmarks scoring rescoring` measures these sections and leaves the others of the report as they are;
without names all of them are measured.

`python -m benchmarks algorithms` compares the presets instead and writes reports/algorithms.md; it takes hours.
`python -m benchmarks critic` compares GRPO, PPO, DPO and others and writes reports/critic.md; it takes hours.
`python -m benchmarks smollm2` trains SmolLM2 and writes reports/smollm2.md; it takes half an hour.
`python -m benchmarks determinism` runs steps again under other conditions and writes reports/determinism.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    against_trl,
    algorithms,
    critic,
    determinism,
    generation,
    hostile_code,
    kills,
    page,
    rescoring,
    scoring,
    sealing,
    seams,
    showing,
    smollm2,
    tracking,
)
from benchmarks.report import merged, now_and_here, stamped
from rollbook.core.errors import nearest

REPORT = Path(__file__).parents[1] / "reports" / "benchmarks.md"
SECTIONS: dict[str, Callable[[], str]] = {
    "seams": seams.report,
    "scoring": scoring.report,
    "rescoring": rescoring.report,
    "hostile_code": hostile_code.report,
    "generation": generation.report,
    "trl": against_trl.report,
    "sealing": sealing.report,
    "showing": showing.report,
    "tracking": tracking.report,
    "page": page.report,
    "kills": kills.report,
}
REPORTS: dict[str, Callable[[Sequence[str]], None]] = {
    "algorithms": algorithms.main,
    "critic": critic.main,
    "smollm2": smollm2.main,
    "determinism": determinism.main,
}
"""Reports of their own."""


def main(names: Sequence[str]) -> None:
    """Measures sections by name, none: all. Each is written as soon as it is there."""
    for name in names:
        if name not in SECTIONS:
            sys.exit(f"there is no section {name!r}; {nearest(name, [*SECTIONS, *REPORTS])}")
    done = []
    for name in names or SECTIONS:
        done.append(stamped(SECTIONS[name](), now_and_here()))
        print(done[-1])
        _write(merged(REPORT.read_text(encoding="utf-8") if REPORT.exists() else "", done[-1:]))
    if not names:
        _write(merged("", done))  # in the order of SECTIONS, without those that are no more


def _write(text: str) -> None:
    REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in REPORTS:
        REPORTS[sys.argv[1]](sys.argv[2:])
    else:
        main(sys.argv[1:])
