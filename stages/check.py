"""Validates params.yaml and every component, says what would run again, and writes artifacts/plan.json.

Runs first on every `dvc repro`. Stops before more finished work is thrown away than
`runtime.max_rerun_hours` allows.
"""

import sys

from pipeline import checking, lock_guard
from pipeline.artifacts import write_json
from pipeline.params import read_params
from pipeline.plan_file import PLAN_FILE
from pipeline.process import die_with_parent, run_program


def check() -> None:
    params = read_params()
    plan, warnings, found = checking.examine(params)
    for warning in warnings:
        print(f"check: warning: {warning}", file=sys.stderr)
    checking.guard(found, params.runtime.max_rerun_hours)
    write_json(plan, PLAN_FILE)
    print(
        f"check: {len(params.iterations)} iterations, all settings valid; {checking.describe(found)}"
    )


if __name__ == "__main__":
    lock_guard.watch_parent()
    die_with_parent()
    sys.exit(run_program(check, "check"))
