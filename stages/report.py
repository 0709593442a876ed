"""Writes reports/summary.json and reports/curves.csv from the metrics and evaluations of all iterations."""

import sys
from pathlib import Path

from rollbook.core.atomic import replacing
from rollbook.core.process import die_with_parent, run_program
from rollbook.dvc import guard
from rollbook.project.report import read_report, summary, with_reward_bounds, write_curves
from rollbook.project.run.curves import CURVES_FILE
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import write_json

SUMMARY = Path("reports/summary.json")


def report() -> None:
    guard.remember()
    run = Store()
    found = with_reward_bounds(run, read_report(run))
    write_json(summary(found), SUMMARY)
    with replacing(CURVES_FILE) as temporary:
        write_curves(found, temporary)
    print(f"report: {len(found.iterations)} policies; {SUMMARY}, {CURVES_FILE}")


def _report_and_library() -> None:
    """The report, and what `dvc plots show` draws its curves with where there is no network."""
    from rollbook.views.page import vega

    report()
    vega.bundle()


def main() -> None:
    """The program: `python -P -m rollbook.stages.report`."""
    die_with_parent()
    sys.exit(run_program(_report_and_library, "report"))


if __name__ == "__main__":
    main()
