"""The run in numbers: one row per iteration and evaluation set, and a summary."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rollbook.core.ids import BASE_KEY
from rollbook.project.run.curves import (
    COLUMNS,
    CURVES_FILE,
    REWARD_BOUNDS,
    SAMPLES,
    SCORES,
    TRAINING,
    read_curves,
)
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.store import Store
from rollbook.rl.evaluation import interval, paired_difference, prompt_means

Numbers = Mapping[str, float | None]
Bounds = tuple[float | None, float | None]
"""Ends of a 95 % interval; None where it is unknown."""

EVALUATION = re.compile(
    r"eval/(?P<set>.+)/(?P<what>mean|pass)_at_(?P<samples>\d+)(?P<bound>_low|_high)?"
    r"|eval/(?P<greedy_set>.+)/greedy(?P<greedy_bound>_low|_high)?"
)
SUMMED_UP = ("reward", "zero_signal_groups", "completion_length", "entropy", "kl", "clip_share")
"""Columns of the last iteration that stand in the summary: `dvc exp show` has a column for each."""
LAST = ("mean", "mean_low", "mean_high", "greedy", "pass")
"""Scores of the last evaluation that stand in the summary."""
DIGITS = 6


@dataclass(frozen=True)
class ReportedPolicy:
    """What the report knows of one policy.

    Attributes:
        key: of the iteration that made it; `i0000` for the base policy.
        step: place in its chain; 0 for the base policy.
        recipe: name in params.yaml; empty for the base policy.
        metrics: of all its stages.
    """

    key: str
    step: int
    recipe: str
    metrics: Numbers

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Evaluation by set: `mean`, `greedy` and `pass`, each with `_low` and `_high`, and `samples`."""
        return evaluation_scores(self.metrics)


@dataclass(frozen=True)
class Lift:
    """Paired difference of a set's mean between the base policy and a later one, with its 95 % interval."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """Everything the table, the summary and the curves are made from.

    Attributes:
        iterations: the base policy and what is finished: sealed ones, then those of params.yaml, in its order.
        lift: by set, from the base policy to the last evaluated one.
        reward_bounds: of the mean training reward by iteration, as far as they were looked for.
    """

    iterations: Sequence[ReportedPolicy]
    lift: Mapping[str, Lift] = field(default_factory=dict)
    reward_bounds: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def evaluated(self) -> list[ReportedPolicy]:
        return [item for item in self.iterations if item.scores]

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(name for item in self.evaluated for name in item.scores))

    @property
    def best(self) -> ReportedPolicy | None:
        """The policy with the highest mean, averaged over sets; the earlier one of equals."""
        return max(self.evaluated, key=_average, default=None)


def evaluation_scores(metrics: Numbers) -> dict[str, dict[str, float]]:
    """Evaluation metrics by set under names that do not depend on the number of samples."""
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = EVALUATION.fullmatch(name)
        if match is None or value is None:
            continue
        if match["what"]:
            scores = found.setdefault(match["set"], {})
            scores[f"{match['what']}{match['bound'] or ''}"] = value
            scores["samples"] = int(match["samples"])
        else:
            scores = found.setdefault(match["greedy_set"], {})
            scores[f"greedy{match['greedy_bound'] or ''}"] = value
    return found


def curve_rows(report: Report) -> list[dict[str, Any]]:
    """Rows of curves.csv, one per iteration and set; an iteration without evaluation has one row without a set."""
    rows = []
    for item in report.iterations:
        training = {column: item.metrics.get(name) for column, name in TRAINING.items()}
        bounds = report.reward_bounds.get(item.key, (None, None))
        training |= zip(REWARD_BOUNDS, bounds, strict=True)
        for name, scores in (item.scores or {"": {}}).items():
            values = {**{score: scores.get(score) for score in SCORES}, **training}
            rows.append(
                {
                    "iteration": item.key,
                    "step": item.step,
                    "recipe": item.recipe,
                    "set": name,
                    **{column: _rounded(value) for column, value in values.items()},
                    SAMPLES: scores.get(SAMPLES),
                }
            )
    return rows


def write_curves(report: Report, path: Path) -> None:
    """Writes curves.csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(curve_rows(report))


def curves_of(run: Store) -> list[dict[str, Any]]:
    """The curves of a run: from the metrics on disk, or, where these were not pulled, as curves.csv has them.

    Returns:
        As `curve_rows`; nothing where there is neither.

    Raises:
        ArtifactError: if a file is damaged.
    """
    if run.is_workspace and run.has_metrics("evaluate_policy", BASE_KEY):
        return curve_rows(with_reward_bounds(run, Report(read_iterations(run))))
    file = run.root / CURVES_FILE
    return read_curves(file) if file.exists() else []


def summary(report: Report) -> dict[str, Any]:
    """The numbers that `dvc metrics` and `dvc exp show` compare between runs; all others are in the curves."""
    base, last, best = report.iterations[0], report.iterations[-1], report.best
    evaluated = report.evaluated
    content: dict[str, Any] = {
        "iterations": sum(item.step > 0 for item in report.iterations),
        "last_iteration": last.key,
        "base": _evaluation(base, ("mean",)),
        "last": _evaluation(evaluated[-1], LAST) if evaluated else {},
        "lift": {
            name: {
                "difference": _rounded(lift.difference),
                "low": _rounded(lift.low),
                "high": _rounded(lift.high),
            }
            for name, lift in report.lift.items()
        },
        "training": {
            column: _rounded(value)
            for column in SUMMED_UP
            if (value := last.metrics.get(TRAINING[column])) is not None
        },
    }
    if best is not None:
        content["best"] = {"iteration": best.key}
    return content


def read_report(run: Store) -> Report:
    """Reads the metrics of all configured iterations that are finished, and compares the last with the base policy.

    Raises:
        ArtifactError: if the base policy is not evaluated yet, or a file is damaged.
    """
    report = Report(read_iterations(run))
    evaluated = report.evaluated
    if len(evaluated) < 2 or evaluated[0].key != BASE_KEY:
        return report
    before, after = (
        run.table("evaluations", item.key).checked() for item in (evaluated[0], evaluated[-1])
    )
    lift = {name: Lift(*paired_difference(before, after, name)) for name in evaluated[-1].scores}
    known = {name: found for name, found in lift.items() if math.isfinite(found.difference)}
    return Report(report.iterations, known)


def with_reward_bounds(run: Store, report: Report) -> Report:
    """The report with the interval of every iteration's mean reward, read from its tables.

    Raises:
        ArtifactError: if a table is damaged.
    """
    keys = (item.key for item in report.iterations if item.step)
    return replace(report, reward_bounds={key: reward_bounds(run, key) for key in keys})


def reward_bounds(run: Store, key: str) -> Bounds:
    """95 % interval of an iteration's mean training reward, clustered by prompt, greedy rollouts left out.

    Unknown where its tables are not on disk or not of each other, and with fewer than two prompts.

    Raises:
        ArtifactError: if a table is damaged.
    """
    scores, rollouts = run.find_table("scores", key), run.find_table("rollouts", key)
    if not (scores and rollouts and scores.facts.is_made_of(rollouts.facts)):
        return None, None
    sampled = rollouts.column("rollout_id").filter(pc.invert(rollouts.column("greedy")))
    table = scores.all(["rollout_id", "prompt_id", "reward"])
    table = table.filter(pc.is_in(table["rollout_id"], value_set=sampled))
    found = interval(prompt_means(table, "reward"))
    if table.num_rows < len(sampled) or not math.isfinite(found.low):
        return None, None
    return _rounded(found.low), _rounded(found.high)


def read_iterations(run: Store) -> list[ReportedPolicy]:
    """Metrics of the base policy and of all configured iterations that are finished.

    Raises:
        ArtifactError: if the base policy is not evaluated yet, or a file is damaged.
    """
    params = run.params
    base = run.needed_metrics("evaluate_policy", BASE_KEY)
    found = [ReportedPolicy(BASE_KEY, 0, "", base)]
    for key, item in params.every_iteration.items():
        if (own := Iteration(run, key)).is_finished:
            step = len(params.chain(key))
            found.append(ReportedPolicy(key, step, item.recipe, own.metrics))
    return found


def _evaluation(item: ReportedPolicy, wanted: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Some scores of every set under the names that the metrics have."""
    return {
        name: {
            _long_name(score, int(scores.get("samples", 0))): _rounded(value)
            for score, value in scores.items()
            if score in wanted
        }
        for name, scores in item.scores.items()
    }


def _long_name(score: str, samples: int) -> str:
    what, underscore, bound = score.partition("_")
    return score if what == "greedy" else f"{what}_at_{samples}{underscore}{bound}"


def _average(item: ReportedPolicy) -> float:
    means = [scores["mean"] for scores in item.scores.values() if "mean" in scores]
    return sum(means) / len(means) if means else float("-inf")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
