"""Validates params.yaml and every component, says what would run again, and writes artifacts/plan.json.

Runs first on every `dvc repro`. Stops before more finished work is thrown away than
`runtime.max_rerun_hours` allows.
"""

import sys

from rollbook.core.process import die_with_parent, run_program
from rollbook.dvc import guard
from rollbook.project import check as checking
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import write_json


def check() -> None:
    run = Run()
    for warning in checking.examine(run):
        print(f"check: warning: {warning}", file=sys.stderr)
    params, found, cause = run.params, run.currency.reruns, run.currency.cause
    checking.guard(found, params.runtime.max_rerun_hours, cause)
    write_json(run.currency.plan, PLAN_FILE)
    told = checking.describe(found, cause)
    print(f"check: {len(params.iterations)} iterations, all settings valid; {told}")


if __name__ == "__main__":
    guard.watch_parent()
    die_with_parent()
    sys.exit(run_program(check, "check"))
