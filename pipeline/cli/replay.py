"""`rollbook replay`."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.errors import ArtifactError, ConfigError, Problem, RollbookError

if TYPE_CHECKING:
    from pipeline.lock_entries import Entry
    from pipeline.replay.choosing import Options
    from pipeline.replay.verdict import StepVerdict

FOLDER = Path(".rollbook/replays")
"""Where verdicts go unless told otherwise; git does not see it."""
NOT_POSSIBLE = 2
"""Exit code where nothing could be compared."""
SHOWN_CHANGES = 8


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
    metavar="T",
    help="How far numbers may be apart. Default: 0; 0.001 on a GPU or another processor.",
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

    Where exact numbers cannot be promised, on a GPU or another processor, they may be 0.001 apart: of tables and
    metrics relative to the larger number or 1, of weights relative to the largest of their tensor.

    Exit code: 0 identical, same content or within tolerance; 1 different; 2 could not be replayed.

    \b
    Examples: rollbook replay update_policy@i0003
              rollbook replay --all
              rollbook replay score_rollouts --with-code HEAD
    """
    try:
        verdicts = _replayed(steps, everything, rev, with_code, tolerance, device, file, keep)
    except RollbookError as error:
        if "--debug" in sys.argv:
            raise
        click.echo(f"rollbook: {error}", err=True)
        sys.exit(NOT_POSSIBLE)
    from pipeline.replay.verdict import exit_code

    sys.exit(exit_code([each.outcome for each in verdicts]))


def _replayed(
    steps: Sequence[str],
    everything: bool,
    rev: str,
    with_code: str,
    tolerance: float | None,
    device: str,
    file: Path | None,
    keep: bool,
) -> list[StepVerdict]:
    from pipeline.replay.choosing import Options
    from pipeline.replay.running import FOLDER as SCRATCH_FOLDER
    from pipeline.replay.running import replaying
    from pipeline.replay.steps import COMMAND, label_of, named, replayable
    from pipeline.stored_revisions import WORKSPACE, revision_of

    if bool(steps) == everything:
        raise ConfigError([Problem("", "say which steps, or --all")], COMMAND)
    options = Options(revision_of(rev or WORKSPACE), with_code, tolerance, device)
    entries = replayable(options.revision)
    if not entries:
        raise ArtifactError(
            f"{options.revision.shown} has no finished step in dvc.lock or sealed/",
            "run `dvc repro`",
        )
    chosen = entries if everything else named(steps, entries)
    verdicts = []
    with replaying(options, keep) as replayer:
        for number, entry in enumerate(chosen, 1):
            if sys.stderr.isatty():
                click.echo(f"{number} of {len(chosen)}: {label_of(entry)}", err=True)
            verdicts.append(replayer.replay(entry))
    place = file or FOLDER / (f"{verdicts[0].step}.json" if len(verdicts) == 1 else "several.json")
    place = FOLDER / "all.json" if everything and file is None else place
    _print(verdicts)
    _write(place, verdicts, options)
    _track(verdicts, options, chosen)
    if keep:
        click.echo(f"what was run is in {SCRATCH_FOLDER}, until the next replay")
    return verdicts


# --- what is shown ------------------------------------------------------------------------------------


def _print(verdicts: Sequence[StepVerdict]) -> None:
    from pipeline.replay.steps import NOT_REPLAYED
    from pipeline.replay.verdict import Outcome

    if len(verdicts) == 1:
        _print_step(verdicts[0])
        _print_around(verdicts)
        return
    _print_table(verdicts)
    for verdict in verdicts:
        if verdict.outcome is not Outcome.IDENTICAL or verdict.notes:
            _print_step(verdict)
            click.echo("")
    _print_around(verdicts)
    counts = [f"{sum(v.outcome is each for v in verdicts)} {each}" for each in Outcome]
    click.echo(f"{len(verdicts)} steps: {', '.join(text for text in counts if text[:2] != '0 ')}")
    click.echo(f"not replayed, since they make no artifact: {', '.join(NOT_REPLAYED)}")


def _print_table(verdicts: Sequence[StepVerdict]) -> None:
    from rich.text import Text

    from pipeline.cli.console import show, table

    shown = table("step", "verdict", "outputs", "code", "took", "then")
    for each in verdicts:
        took = f"{each.seconds:.1f} s", f"{each.seconds_then:.1f} s" if each.seconds_then else ""
        row = (each.step, str(each.outcome), str(len(each.outputs) or ""), each.code, *took)
        shown.add_row(*map(Text, row))
    show("Replayed", shown)


def _print_step(verdict: StepVerdict) -> None:
    """All about one step; what differs stands in full."""
    click.echo(f"{verdict.step}: {verdict.outcome}")
    if verdict.problem:
        click.echo(_indented(verdict.problem))
        return
    for each in verdict.outputs:
        said = f": {each.comparison.text}" if each.comparison.text else ""
        click.echo(f"  {each.path}: {each.comparison.outcome}{said}")
    if verdict.tolerance.value:
        click.echo(
            f"  numbers may be {verdict.tolerance.value:g} apart: {verdict.tolerance.reason}"
        )
    click.echo(f"  ran the code of {verdict.code} with {verdict.settings}")
    for note in verdict.notes:
        click.echo(f"  note: {note}")


def _print_around(verdicts: Sequence[StepVerdict]) -> None:
    """What is not as it was when the steps ran first, once for all of them."""
    changes = list(dict.fromkeys(each for verdict in verdicts for each in verdict.code_since))
    for change in changes[:SHOWN_CHANGES]:
        click.echo(f"  since then: {change}")
    if len(changes) > SHOWN_CHANGES:
        click.echo(f"  since then: and {len(changes) - SHOWN_CHANGES} more changes")
    for each in dict.fromkeys(each for verdict in verdicts for each in verdict.environment):
        click.echo(f"  {each.what}: {each.then} then, {each.now} now")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


# --- where it goes ------------------------------------------------------------------------------------


def _write(place: Path, verdicts: Sequence[StepVerdict], options: Options) -> None:
    from pipeline.artifacts import write_json
    from pipeline.replay.verdict import exit_code, worst

    if place.is_relative_to(FOLDER):
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    outcomes = [each.outcome for each in verdicts]
    content: dict[str, Any] = {
        "revision": options.revision.shown,
        "with_code": options.with_code or None,
        "replayed": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "verdict": str(worst(outcomes)),
        "exit_code": exit_code(outcomes),
        "steps": [each.as_json() for each in verdicts],
    }
    write_json(content, place)
    click.echo(f"verdict in {place}")


def _track(verdicts: Sequence[StepVerdict], options: Options, entries: Sequence[Entry]) -> None:
    """Shows the verdicts in MLflow, if there is a store that has the run; anything else is no failure."""
    if not options.revision.is_workspace:
        return
    from pipeline.tracking import store

    if not store.exists():
        return
    try:
        from pipeline.params import read_params
        from pipeline.tracking.replays import ReplayMark, send_replays
    except ImportError:
        return
    from pipeline.replay.verdict import Outcome

    marks = []
    for verdict, entry in zip(verdicts, entries, strict=True):
        tags = {
            "verdict": str(verdict.outcome),
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "code": options.with_code or verdict.code,
            "first_difference": verdict.first_difference or "none",
        }
        differing = sum(each.comparison.outcome is Outcome.DIFFERENT for each in verdict.outputs)
        name = f"{entry.stage}.{entry.rescore}" if entry.rescore else entry.stage
        marks.append(ReplayMark(entry.key, name, tags, differing, time.time_ns() // 1_000_000))
    try:
        sent = send_replays(read_params(), marks)
    except RollbookError as error:
        click.echo(f"not shown in MLflow: {error.message}", err=True)
        return
    if sent:
        click.echo(f"shown in MLflow: {sent} of {len(marks)}")
