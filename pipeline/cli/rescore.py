"""`rollbook rescore`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.artifacts import path_of, read_json, read_table, write_json
from pipeline.cli.specs import reward_spec
from pipeline.config import BASE_KEY, ITERATION_KEY, Params
from pipeline.errors import ArtifactError, ConfigError, Problem, RollbookError, nearest
from pipeline.params import read_params

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.component import Model
    from pipeline.config import Recipe, ScoreRollouts
    from pipeline.rewards.scoring import Scorer

COMMAND = "rollbook rescore"
PIPELINE = "rescores/dvc.yaml"
SHOWN_TEXT = 48
SHOWN_ERRORS = 3


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
    params = read_params()
    _refuse(params, rewards, recipe, out, stage)
    keys = _wanted(params, iterations)
    if stage is not None:
        _run_stage(params, stage, keys)
        for key in keys:
            kind = f"rescores/{stage}"
            _show(params, key, read_table(path_of(kind, key), kind)[0])
        _track(params)
        return
    from pipeline.rewards.scoring import Scorer

    asked = _Asked(params, rewards, recipe)
    summaries = {}
    with Scorer(asked.score.rewards, params.runtime.scoring_processes) as scorer:
        for key in keys:
            table = asked.table(key, scorer)
            summaries[key] = _show(params, key, table)
            if out is not None:
                _keep(table, out / f"{key}.parquet")
    if out is not None:
        write_json(summaries, out / "summary.json")
        click.echo(f"{len(summaries)} tables and summary.json are in {out}")
    _track(params, asked, summaries)


def keys_in(text: str, known: Sequence[str]) -> list[str]:
    """The iterations that `i0001-i0010,i0012` names, in the order of `known`.

    Raises:
        ConfigError: for a key that is not known, or a range without one.
    """
    wanted: set[str] = set()
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        ends = [first, last] if dash else [first]
        wrong = [key for key in ends if not ITERATION_KEY.fullmatch(key)]
        if not wrong and (not dash or first[:-4] == last[:-4]):
            inside = [key for key in known if key[:-4] == first[:-4] and ends[0] <= key <= ends[-1]]
            wrong = [key for key in ends if key not in known]
            wanted.update(inside)
        elif not wrong:
            problems.append(Problem("--iterations", f"{part!r} mixes two branches; name each"))
        problems += [
            Problem("--iterations", f"there is no iteration {key!r}; {nearest(key, known)}")
            for key in wrong
        ]
    if problems or not wanted:
        raise ConfigError(problems or [Problem("--iterations", f"{text!r} names none")], COMMAND)
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
        hint = nearest(stage, params.rescores)
        problems.append(Problem("--stage", f"params.yaml has no rescores.{stage}; {hint}"))
    if stage is not None and (rewards or recipe or out):
        what = "takes its rewards from params.yaml and keeps its tables in artifacts/"
        problems.append(Problem("--stage", f"{what}; leave REWARD, --recipe and --out away"))
    if not (rewards or recipe or stage):
        problems.append(Problem("", "say what to ask: REWARD, --recipe or --stage"))
    if problems:
        raise ConfigError(problems, COMMAND)


def _wanted(params: Params, iterations: str | None) -> list[str]:
    """Iterations to re-score: those named, else all that are stored.

    Raises:
        ArtifactError: if one that is named, or every one, was not trained yet.
    """
    named = keys_in(iterations, list(params.iterations)) if iterations is not None else None
    stored = [key for key in named or params.iterations if not _missing(key)]
    if named is not None and len(stored) < len(named):
        key = next(key for key in named if key not in stored)
        raise ArtifactError(
            f"{_missing(key)[0]}: does not exist, so {key} cannot be re-scored",
            "train it with `dvc repro`, or leave it out of --iterations",
        )
    if not stored:
        raise ArtifactError("no iteration has rollouts and advantages yet", "run `dvc repro`")
    return stored


def _missing(key: str) -> list[Path]:
    from pipeline.rescoring import TABLES

    return [path for path in (path_of(kind, key) for kind in TABLES) if not path.exists()]


# --- now ------------------------------------------------------------------------------------------


class _Asked:
    """Rewards named on the command line, asked about one iteration after the other.

    A row that cannot be scored carries its error and stops nothing.
    """

    def __init__(self, params: Params, rewards: Sequence[str], recipe: str | None) -> None:
        self.params = params
        self.recipe = recipe
        self.name = " ".join([*rewards, *([f"--recipe {recipe}"] if recipe else [])])
        self.score = _score_rollouts(
            [reward_spec(text) for text in rewards]
            or params.recipes[str(recipe)].score_rollouts.rewards
        )
        self.inputs: dict[str, dict[str, str]] = {}

    def table(self, key: str, scorer: Scorer) -> pa.Table:
        """The rescores table of an iteration."""
        from pipeline.progress import Progress
        from pipeline.rescoring import TABLES, rescored

        tables = {}
        for kind in TABLES:
            tables[kind], facts = read_table(path_of(kind, key), kind)
            self.inputs.setdefault(key, {})[kind] = facts.content_hash
        with Progress(f"rescore {key}", tables["rollouts"].num_rows, "rollouts") as bar:
            return rescored(
                tables, scorer, self.score, self._recipe(key).compute_advantages, bar.update
            )

    def settings(self) -> dict[str, Any]:
        """Rewards and estimator; the iterations' own estimator may be another in each, that of the last is named."""
        parts: dict[str, Model] = {
            "score_rollouts": self.score,
            "compute_advantages": self._recipe(list(self.inputs)[-1]).compute_advantages,
        }
        return {
            name: part.model_dump(mode="json", serialize_as_any=True)
            for name, part in parts.items()
        }

    def _recipe(self, key: str) -> Recipe:
        return self.params.recipes[self.recipe] if self.recipe else self.params.recipe_of(key)


def _score_rollouts(rewards: Sequence[Any]) -> ScoreRollouts:
    from pydantic import ValidationError

    from pipeline.component import problems_of
    from pipeline.config import ScoreRollouts

    try:
        return ScoreRollouts.model_validate({"rewards": rewards, "max_error_share": 1.0})
    except ValidationError as error:
        raise ConfigError(problems_of(error), COMMAND) from None


def _keep(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    from pipeline.atomic import replacing
    from pipeline.schemas.rescores import SCHEMA

    table = SCHEMA.validate(table, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


# --- as a stage -----------------------------------------------------------------------------------


def _run_stage(params: Params, name: str, keys: Sequence[str]) -> None:
    """Runs the steps of one re-score that are not up to date; nothing before them.

    Raises:
        RollbookError: if DVC fails; what it said is on the terminal.
    """
    from pipeline.checking import refuse_missing_files
    from pipeline.plan import PLAN_FILE, RESCORE_STAGE, RESCORES, rescore_plan

    refuse_missing_files(params)
    # Digests of the training chain stay as planned: what was changed there is not to run, and not to look run.
    write_json({**read_json(PLAN_FILE), RESCORES: rescore_plan(params)}, PLAN_FILE)
    steps = [f"{PIPELINE}:{RESCORE_STAGE}@{name}-{key}" for key in keys]
    here = Path(sys.executable).parent
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--single-item", *steps],
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"},
        check=False,
    )
    if done.returncode:
        raise RollbookError(
            f"rescores.{name}: `dvc repro --single-item` failed with exit code {done.returncode}",
            "what went wrong stands above; iterations that were done are kept",
        )


def _track(
    params: Params,
    asked: _Asked | None = None,
    summaries: Mapping[str, Mapping[str, float | int]] | None = None,
) -> None:
    """Shows the numbers in MLflow; whatever keeps it from that is a warning, as in training."""
    import math
    import time

    from pipeline.tracking.rescore_runs import Answers
    from pipeline.tracking.sync import bring_up_to_date

    answers = []
    if asked is not None and summaries is not None:
        numbers = {
            key: {name: value if math.isfinite(value) else None for name, value in found.items()}
            for key, found in summaries.items()
        }
        now = round(1000 * time.time())
        answers = [Answers(asked.name, asked.settings(), numbers, asked.inputs, now)]
    try:
        bring_up_to_date(params, answers)
    except Exception as error:
        kind = "" if isinstance(error, RollbookError) else f"{type(error).__name__}: "
        click.echo(f"warning: not tracked: {kind}{error}", err=True)


# --- what is shown --------------------------------------------------------------------------------


def _show(params: Params, key: str, table: pa.Table) -> Mapping[str, float | int]:
    """Prints what became of one iteration; returns the numbers."""
    from pipeline.rescoring import summary

    numbers = summary(table, params.iterations[key].previous)
    click.echo(f"{key}: {numbers['rollouts']} rollouts in {numbers['groups']} groups")
    before, after = (
        numbers["groups_kept"] + numbers[f"groups_{name}"] for name in ("lost", "gained")
    )
    lines = {
        "mean reward": f"{numbers['old_reward']:.4g} → {numbers['reward']:.4g}, "
        f"rank correlation {numbers['rank_correlation']:.3g}",
        "advantages": f"{numbers['sign_flips']} change sign ({numbers['sign_flips_share']:.1%}), "
        f"mean |change| {numbers['advantage_change']:.3g}",
        "groups with signal": f"{before} → {after}: {numbers['groups_gained']} gained, "
        f"{numbers['groups_lost']} lost",
        "not scored": f"{numbers['null']} that no reward applies to, {numbers['errors']} errors",
        "valid for": validity(params, key, float(numbers["effective_share"])),
    }
    for name, text in lines.items():
        click.echo(f"  {name:<20}{text}")
    for text in _errors(table):
        click.echo(f"  error: {text}")
    _show_moved(key, table)
    return numbers


def validity(params: Params, key: str, effective: float) -> str:
    """For which policy the numbers of a re-score hold.

    Args:
        params: of the project.
        key: the iteration.
        effective: of `pipeline.rescoring.effective_share`; NaN: unknown.
    """
    item = params.iterations[key]
    if item.previous == BASE_KEY:
        return "training with these rewards: the base policy sampled, exactly on-policy"
    holds = f"the policy {item.previous}, which the old rewards have trained"
    if effective != effective:
        return f"{holds}; how far it had moved is unknown: no log-probs of a reference are stored"
    return f"{holds}; as samples of {item.reference} they are worth {effective:.1%} of their number"


def _errors(table: pa.Table) -> list[str]:
    """The most frequent errors."""
    counted = table["error"].drop_null().value_counts().to_pylist()
    ranked = sorted(counted, key=lambda item: (-item["counts"], item["values"]))
    return [f"{item['values']} ({item['counts']} rollouts)" for item in ranked[:SHOWN_ERRORS]]


def _show_moved(key: str, table: pa.Table) -> None:
    from pipeline.cli.console import show
    from pipeline.cli.console import table as make_table
    from pipeline.rescoring import most_moved

    moved = most_moved(table)
    if not moved.num_rows:
        click.echo("  no rollout moved\n")
        return
    texts = _texts_of(key, moved["rollout_id"].combine_chunks())
    shown = make_table("rollout", "reward", "advantage", "answer")
    for row in moved.to_pylist():
        shown.add_row(
            row["rollout_id"],
            f"{_number(row['old_reward'])} → {_number(row['reward'])}",
            f"{_number(row['old_advantage'])} → {_number(row['advantage'])}",
            _shortened(texts[row["rollout_id"]]),
        )
    show("  moved most:", shown)


def _texts_of(key: str, rollout_ids: pa.Array) -> dict[str, str]:
    """Clean texts of a few rollouts; no other row or column is held in memory."""
    import pyarrow.dataset as ds

    rows = ds.dataset(path_of("rollouts", key)).to_table(
        columns=["rollout_id", "text"], filter=ds.field("rollout_id").isin(rollout_ids)
    )
    return dict(zip(rows["rollout_id"].to_pylist(), rows["text"].to_pylist(), strict=True))


def _shortened(text: str) -> Any:
    """The end of a text, where answers stand, on one line; never read as markup."""
    from rich.text import Text

    line = " ".join(text.split())
    return Text(line if len(line) <= SHOWN_TEXT else f"…{line[1 - SHOWN_TEXT :]}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
