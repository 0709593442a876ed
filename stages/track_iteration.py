"""Shows a finished iteration in MLflow, and whatever else of this project MLflow still lacks.

Has no outputs, so DVC never restores it instead of running it. A store that is away is a warning: training does
not wait for a tracker, and the next iteration sends what this one could not.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from rollbook.core.errors import ConfigError, Problem, RollbookError, nearest
from rollbook.core.process import die_with_parent, run_program
from rollbook.dvc import guard


def track_iteration(key: str) -> None:
    """Brings MLflow up to date.

    Raises:
        ConfigError: if there is no such iteration.
    """
    from rollbook.project.run.run import Run
    from rollbook.views.mlflow.sync import bring_up_to_date

    guard.remember()
    run = Run()
    if key not in run.params.iterations:
        hint = nearest(key, run.params.iterations)
        raise ConfigError([Problem(f"iterations.{key}", f"there is no such iteration; {hint}")])
    started = time.perf_counter()
    try:
        sent = bring_up_to_date(run)
    except (
        Exception
    ) as error:  # whatever it is, the iteration is finished and the next one can begin
        kind = "" if isinstance(error, RollbookError) else f"{type(error).__name__}: "
        print(f"track_iteration@{key}: warning: not tracked: {kind}{error}", file=sys.stderr)
        return
    seconds = time.perf_counter() - started
    print(f"track_iteration@{key}: sent {', '.join(sent) or 'nothing new'} in {seconds:.1f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program: `python -P -m rollbook.stages.track_iteration --iteration i0001`."""
    parser = argparse.ArgumentParser(prog="rollbook.stages.track_iteration", description=__doc__)
    parser.add_argument("--iteration", required=True, help="iteration key, such as i0001")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of expected errors")
    options = parser.parse_args(arguments)
    die_with_parent()
    label = f"track_iteration@{options.iteration}"
    sys.exit(run_program(lambda: track_iteration(options.iteration), label, options.debug))


if __name__ == "__main__":
    main()
