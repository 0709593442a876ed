"""`rollbook replay`."""

from __future__ import annotations

import datetime
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollbook.cli.console import refuse_not_finite
from rollbook.core.errors import ArtifactError, ConfigError, Problem, RollbookError

if TYPE_CHECKING:
    from rollbook.dvc.lock import Entry
    from rollbook.project.replay.choosing import Options
    from rollbook.project.replay.verdict import StepVerdict

FOLDER = Path(".rollbook/replays")
"""Where verdicts go unless told otherwise; git does not see it."""
NOT_POSSIBLE = 2
"""Exit code where nothing could be compared."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@click.command()
@click.argument("steps", nargs=-1, metavar="[STAGE[@K]]...")
@click.option("--all", "everything", is_flag=True, help="Every finished step, sealed ones too.")
@click.option("--rev", default="", metavar="REV", help="Steps of a git revision or an experiment.")
@click.option(
    "--with-code",
    default="",
    metavar="CODE",
    help="Run the code of HEAD, worktree or another revision instead of the recorded one.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    callback=refuse_not_finite,
    metavar="T",
    help="How far numbers may be apart. Default: 0; on a GPU or another processor 0.0001, of weights 0.001.",
)
@click.option(
    "--device", default="", metavar="D", help="Compute on cpu or cuda, whatever it was then."
)
@click.option(
    "--json",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the verdict goes.",
)
@click.option("--keep", is_flag=True, help="Leave the scratch folder in place and say where it is.")
def replay(
    steps: tuple[str, ...],
    everything: bool,
    rev: str,
    with_code: str,
    tolerance: float | None,
    device: str,
    file: Path | None,
    keep: bool,
) -> None:
    """Run finished steps again from what is stored of them, elsewhere, and compare what comes out.

    STAGE@K is a step, STAGE alone that program at every iteration. It gets the inputs, code, settings, threads and
    device that were recorded, in a scratch folder: nothing in the workspace changes. Of each output it is said whether
    it is identical (the same bytes), has the same content in other bytes and why, or is different and where first.

    Where exact numbers cannot be promised, on a GPU or another processor, those of tables and metrics may be 0.0001
    apart, relative to the larger number or 1, and weights 0.001, relative to the largest of their tensor.

    Several steps are told of as they finish, and the verdict file grows with them: what is cut off keeps what it has.

    Exit code: 0 identical, same content or within tolerance; 1 different; 2 could not be replayed, or the verdict could
    not be written; 130 interrupted.

    \b
    Examples: rollbook replay update_policy@i0003
              rollbook replay --all
              rollbook replay score_rollouts --with-code HEAD
    """
    from rollbook.cli.console import refuse_elsewhere
    from rollbook.project.replay.choosing import Options
    from rollbook.project.replay.verdict import exit_code
    from rollbook.project.run.revisions import revision_of
    from rollbook.project.run.store import WORKSPACE

    verdicts: list[StepVerdict] = []
    try:
        refuse_elsewhere()
        options = Options(revision_of(rev or WORKSPACE), with_code, tolerance, device)
        entries = _chosen(steps, everything, options)
        place = file or _place(entries, everything)
        _replay_all(entries, options, keep, place, verdicts)
        click.echo(f"verdict in {place}")
        _track(entries, verdicts, options)
    except KeyboardInterrupt:
        click.echo(f"rollbook: interrupted; steps that have a verdict: {len(verdicts)}", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:  # Python's own exit code would be that of a difference
        _say(error)
        sys.exit(exit_code([each.outcome for each in verdicts]) or NOT_POSSIBLE)
    if keep:
        from rollbook.project.replay.running import FOLDER as SCRATCH_FOLDER

        click.echo(f"what was run is in {SCRATCH_FOLDER}, until the next replay")
    sys.exit(exit_code([each.outcome for each in verdicts]))


def _chosen(steps: Sequence[str], everything: bool, options: Options) -> list[Entry]:
    """The finished steps that are asked for."""
    from rollbook.project.replay.steps import COMMAND, named, replayable

    if bool(steps) == everything:
        what = "say either which steps or --all, not both" if steps else "say which steps, or --all"
        raise ConfigError([Problem("", what)], COMMAND)
    entries = replayable(options.revision)
    if not entries:
        raise ArtifactError(
            f"{options.revision.shown} has no finished step in dvc.lock or sealed/",
            "run `dvc repro`",
        )
    return entries if everything else named(steps, entries)


def _replay_all(
    entries: Sequence[Entry],
    options: Options,
    keep: bool,
    place: Path,
    verdicts: list[StepVerdict],
) -> None:
    """Replays steps one after the other. `verdicts` gets each as it comes, and all it has got is shown in the end."""
    from rollbook.cli.replaying.shown import show_progress, show_verdicts
    from rollbook.project.replay.running import replaying
    from rollbook.project.replay.steps import label_of

    try:
        with replaying(options, keep) as replayer:
            for number, entry in enumerate(entries, 1):
                if sys.stderr.isatty():
                    click.echo(f"{number} of {len(entries)}: {label_of(entry)} …", err=True)
                verdicts.append(replayer.replay(entry))
                if len(entries) > 1:
                    show_progress(verdicts, len(entries))
                _write(verdicts, [label_of(each) for each in entries[number:]], place, options)
    finally:
        if verdicts:
            show_verdicts(verdicts)


def _place(entries: Sequence[Entry], everything: bool) -> Path:
    """File that the verdicts go to unless told otherwise."""
    from rollbook.project.replay.steps import label_of

    several = "all" if everything else "several"
    return (
        FOLDER / f"{label_of(entries[0]) if len(entries) == 1 and not everything else several}.json"
    )


def _write(
    verdicts: Sequence[StepVerdict], left: Sequence[str], place: Path, options: Options
) -> None:
    """Writes verdicts as JSON. There is none of all steps as long as some are `left`."""
    from rollbook.project.replay.verdict import exit_code, worst
    from rollbook.tables.artifacts import write_json

    if place.is_relative_to(FOLDER):
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    outcomes = [each.outcome for each in verdicts]
    content: dict[str, Any] = {
        "revision": options.revision.shown,
        "with_code": options.with_code or None,
        "replayed": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "verdict": None if left else str(worst(outcomes)),
        "exit_code": None if left else exit_code(outcomes),
        "steps": [each.as_json() for each in verdicts],
        "not_yet": list(left),
    }
    write_json(content, place)


def _say(error: Exception) -> None:
    """Prints what kept a replay from going on; a traceback only of what was not expected."""
    from rollbook.core.atomic import UNWRITABLE, unwritable

    if isinstance(error, BrokenPipeError):  # nobody reads any more
        return
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        error = unwritable(Path(error.filename or "."), error)
    if not isinstance(error, RollbookError) or "--debug" in sys.argv:
        traceback.print_exception(error)
    click.echo(f"rollbook: {error}", err=True)


def _track(entries: Sequence[Entry], verdicts: Sequence[StepVerdict], options: Options) -> None:
    """Keeps the verdicts for MLflow, and shows them if there is a store that has the run; else is no failure."""
    from rollbook.project.replay.marks import keep, marks_of
    from rollbook.views.mlflow import store

    if not options.revision.is_workspace:
        return
    marks = marks_of(entries, verdicts, options.with_code)
    keep(marks)
    if not store.exists():
        return
    try:
        from rollbook.views.mlflow.replays import send_replays
    except ImportError:  # MLflow is not installed here
        return
    from rollbook.project.run.run import Run

    try:
        shown = send_replays(Run())
    except RollbookError as error:
        click.echo(f"not shown in MLflow yet: {error.message}", err=True)
        return
    if sent := sum((mark.key, mark.name) in shown for mark in marks):
        click.echo(f"shown in MLflow: {sent} of {len(marks)}")
