"""Writes reports/summary.json and reports/curves.csv from the metrics and evaluations of all iterations."""

import sys
from pathlib import Path

from pipeline import lock_guard
from pipeline.artifacts import write_json
from pipeline.atomic import replacing
from pipeline.process import die_with_parent, run_program
from pipeline.report import read_report, summary, with_reward_bounds, write_curves
from pipeline.run.curves import CURVES_FILE
from pipeline.run.store import Store

SUMMARY = Path("reports/summary.json")


def report() -> None:
    lock_guard.remember()
    run = Store()
    found = with_reward_bounds(run, read_report(run))
    write_json(summary(found), SUMMARY)
    with replacing(CURVES_FILE) as temporary:
        write_curves(found, temporary)
    print(f"report: {len(found.iterations)} policies; {SUMMARY}, {CURVES_FILE}")


def _report_and_library() -> None:
    """The report, and what `dvc plots show` draws its curves with where there is no network."""
    from pipeline.page import vega

    report()
    vega.bundle()


def main() -> None:
    """The program: `python -m stages.report`."""
    die_with_parent()
    sys.exit(run_program(_report_and_library, "report"))


if __name__ == "__main__":
    main()
