"""Writes reports/summary.json and reports/curves.csv from the metrics and evaluations of all iterations."""

import csv
import sys
from pathlib import Path

from pipeline import lock_guard
from pipeline.artifacts import write_json
from pipeline.atomic import replacing
from pipeline.params import read_params
from pipeline.process import die_with_parent, run_program
from pipeline.report import COLUMNS, curve_rows, read_report, summary

SUMMARY = Path("reports/summary.json")
CURVES = Path("reports/curves.csv")


def report() -> None:
    lock_guard.remember()
    found = read_report(read_params())
    write_json(summary(found), SUMMARY)
    with replacing(CURVES) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(curve_rows(found))
    print(f"report: {len(found.iterations)} policies; {SUMMARY}, {CURVES}")


def main() -> None:
    """The program: `python -m stages.report`."""
    die_with_parent()
    sys.exit(run_program(report, "report"))


if __name__ == "__main__":
    main()
