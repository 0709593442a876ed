"""`rollbook rescore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbook.cli.rescoring import COMMAND
from rollbook.core.errors import ArtifactError, ConfigError, Problem, RollbookError, nearest
from rollbook.core.ids import ITERATION_KEY
from rollbook.project.run.run import Run
from rollbook.settings.config import Params
from rollbook.tables.artifacts import write_json

if TYPE_CHECKING:
    from rollbook.cli.rescoring.shown import Shown
    from rollbook.views.mlflow.rescore_runs import Answers


@click.command()
@click.argument("rewards", nargs=-1, metavar="[REWARD]...")
@click.option("--iterations", metavar="KEYS", help="Such as i0001-i0010,i0012; default: all.")
@click.option("--recipe", metavar="R", help="Take rewards and estimator of this recipe.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Keep the tables here."
)
@click.option("--stage", metavar="NAME", help="Run this entry of `rescores:` as cached DVC steps.")
def rescore(
    rewards: tuple[str, ...],
    iterations: str | None,
    recipe: str | None,
    out: Path | None,
    stage: str | None,
) -> None:
    """Ask other rewards about the stored rollouts, without a model: what they say, and what that would have changed.

    A REWARD is a name with a weight (format:0.2), a function or class of your own (my_rewards.py:f), or YAML as in
    params.yaml. Advantages are those of the iteration's own estimator, or of --recipe. With --stage, DVC keeps the
    tables in artifacts/rescores/NAME; the training chain is not run. MLflow shows the numbers inside the training run.

    Example: rollbook rescore exact_match format:0.2 --iterations i0001-i0003
    """
    run = Run()
    _refuse(run.params, rewards, recipe, out, stage)
    keys = _wanted(run, iterations)
    shown = _run(run, stage, keys) if stage else _ask(run, rewards, recipe, out, keys)
    shown.warn()
    shown.refuse_failed()


def _ask(
    run: Run,
    rewards: Sequence[str],
    recipe: str | None,
    out: Path | None,
    keys: Sequence[str],
) -> Shown:
    """Asks the rewards now. Iterations that they say nothing about are not shown in MLflow."""
    from rollbook.cli.rescoring.now import Asked, keep, make_folder
    from rollbook.cli.rescoring.shown import Shown
    from rollbook.rl.scoring.scorer import Scorer

    asked = Asked(run, rewards, recipe)
    if out is not None:
        make_folder(out)
    with (
        Shown(run, len(keys)) as shown,
        Scorer(asked.score.rewards, run.params.runtime.scoring_processes) as scorer,
    ):
        for key in keys:
            table = asked.table(key, scorer)
            if out is not None:
                keep(table, out / f"{key}.parquet")
            shown.add(key, table)
    if out is not None:
        write_json(shown.numbers, out / "summary.json")
        click.echo(f"{len(keys)} tables and summary.json are in {out}")
    _track(asked.answers(shown.answered))
    return shown


def _run(run: Run, stage: str, keys: Sequence[str]) -> Shown:
    """Runs an entry of `rescores:` and shows what it has left on disk."""
    from rollbook.cli.rescoring.shown import Shown
    from rollbook.cli.rescoring.stage import run_stage

    kind, params = f"rescores/{stage}", run.params
    if active := [key for key in keys if key in params.iterations]:
        run_stage(params, stage, active)
    never = [key for key in keys if key in params.sealed and not run.has(kind, key)]
    if never:
        click.echo(
            f"{', '.join(never)}: sealed before {stage} was asked, and DVC runs no step of a sealed iteration; "
            "`rollbook rescore REWARD…` asks now"
        )
    keys = [key for key in keys if key not in never]
    with Shown(run, len(keys)) as shown:
        for key in keys:
            shown.add(key, run.table(kind, key).checked())
    _track()
    return shown


def keys_in(
    text: str, known: Sequence[str], option: str = "--iterations", command: str = COMMAND
) -> list[str]:
    """The iterations that `i0001-i0010,i0012` names, in the order of `known`.

    Args:
        text: keys and ranges, separated by commas.
        known: keys there are.
        option, command: what errors call it.

    Raises:
        ConfigError: for a key that is not known, or a range without one.
    """
    wanted: set[str] = set()
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        ends = [first, last] if dash else [first]
        wrong = [key for key in ends if not ITERATION_KEY.fullmatch(key)]
        if not wrong and first[:-4] == ends[-1][:-4]:
            inside = [key for key in known if key[:-4] == first[:-4] and ends[0] <= key <= ends[-1]]
            wrong = [key for key in ends if key not in known]
            wanted.update(inside)
            if not wrong and ends[0] > ends[-1]:
                reason = f"{part!r} is reversed; write {last}-{first}"
                problems.append(Problem(option, reason))
        elif not wrong:
            problems.append(Problem(option, f"{part!r} mixes two branches; name each"))
        problems += [
            Problem(option, f"there is no iteration {key!r}; {nearest(key, known)}")
            for key in wrong
        ]
    if problems or not wanted:
        raise ConfigError(problems or [Problem(option, f"{text!r} names none")], command)
    return [key for key in known if key in wanted]


def _refuse(
    params: Params,
    rewards: Sequence[str],
    recipe: str | None,
    out: Path | None,
    stage: str | None,
) -> None:
    """Raises ConfigError for arguments that do not go together."""
    problems = []
    if recipe is not None and recipe not in params.recipes:
        hint = nearest(recipe, params.recipes)
        problems.append(Problem("--recipe", f"there is no recipe {recipe!r}; {hint}"))
    if stage is not None and stage not in params.rescores:
        hint = (
            nearest(stage, params.rescores)
            if params.rescores
            else f"write `rescores: {{{stage}: {{recipe: …}}}}`"
        )
        problems.append(Problem("--stage", f"params.yaml has no rescores.{stage}; {hint}"))
    if stage is not None and (rewards or recipe or out):
        what = "takes its rewards from params.yaml and keeps its tables in artifacts/"
        problems.append(Problem("--stage", f"{what}; leave REWARD, --recipe and --out away"))
    if not (rewards or recipe or stage):
        problems.append(Problem("", "say what to ask: REWARD, --recipe or --stage"))
    if problems:
        raise ConfigError(problems, COMMAND)


def _wanted(run: Run, iterations: str | None) -> list[str]:
    """Iterations to re-score: those named, else all that are stored.

    Raises:
        ArtifactError: if one that is named, or every one, was not trained yet.
    """
    every = list(run.params.every_iteration)
    named = keys_in(iterations, every) if iterations is not None else None
    stored = [key for key in named or every if not _missing(run, key)]
    if named is not None and len(stored) < len(named):
        key = next(key for key in named if key not in stored)
        raise ArtifactError(
            f"{_missing(run, key)[0]}: does not exist, so {key} cannot be re-scored",
            "train it with `dvc repro`, or leave it out of --iterations",
        )
    if not stored:
        raise ArtifactError("no iteration has rollouts and advantages yet", "run `dvc repro`")
    return stored


def _missing(run: Run, key: str) -> list[Path]:
    from rollbook.rl.rescoring import TABLES

    return [run.place(kind, key) for kind in TABLES if not run.has(kind, key)]


def _track(answers: Sequence[Answers] = ()) -> None:
    """Shows the numbers in MLflow; whatever keeps it from that is a warning, as in training."""
    from rollbook.views.mlflow.sync import bring_up_to_date

    try:
        bring_up_to_date(Run(), answers)  # what was read before the steps ran is old
    except Exception as error:
        kind = "" if isinstance(error, RollbookError) else f"{type(error).__name__}: "
        click.echo(f"warning: not tracked: {kind}{error}", err=True)
