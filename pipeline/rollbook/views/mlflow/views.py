"""Saved views: the columns, charts and filters that MLflow's pages open with, and links to them.

MLflow keeps a view in a tag of the experiment, under the key that stands in the link, as JSON that its pages read
(`savedViewEnvelope.ts` of its server, as of 3.17). A page that cannot read one says so and shows its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rollbook.project.report import EVALUATION
from rollbook.project.run.curves import TRAINING
from rollbook.views.mlflow.chains import FinishedChain

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUNS_TAG = "mlflow.sharedViewState."
TRACES_TAG = "mlflow.tracesV4ViewState."
TRAINING_MENU = "workflowType=machine_learning"
"""Opens a page with MLflow's menu of runs and models, not with that of agents, which has a dozen more entries."""
LENGTH = 5000
"""Characters that a tag of an experiment can hold."""
SECTIONS = ("Evaluation", "Training", "Update")
TRAINING_CHARTS = 5
"""So many of `report.TRAINING` say what the policy did, the others what the update did."""
RESCORE_METRICS = ("old_reward", "reward", "sign_flips", "groups_gained", "groups_lost")
ITERATION_METRICS = (
    "reward",
    TRAINING["zero_signal_groups"],
    TRAINING["clip_share"],
    TRAINING["kl"],
    "kl_old",
    TRAINING["completion_length"],
    TRAINING["truncated"],
    TRAINING["entropy"],
    TRAINING["grad_norm"],
)
"""What an iteration is judged by behind its evaluation: what the policy earned, what it learned from, how far it went.
Those that no iteration has, such as `kl` without a KL term, have no column."""
CHARTS_ABREAST = 2
"""MLflow puts three side by side, which cuts their titles off."""
BY_TIME, BY_NAME = "attributes.start_time", "tags.`mlflow.runName`"
"""What lists go by. Only by time MLflow puts runs below their parents, and folds them away."""
NAME_COLUMN, CREATED_COLUMN, DURATION_COLUMN = (
    "attributes.`Run Name`",
    "runDateAndNestInfo",
    "duration",
)
"""Columns that every list of runs has, under the ids of MLflow's table; the first two always stand on the left."""
RECIPE_COLUMN, CHAIN_COLUMN = "tags.`recipe`", "tags.`chain`"
LETTER, MARGIN = 7.2, 22
"""Width of a letter in the head of a column, in a wide font such as DejaVu Sans, and of what is around the text, px."""
NARROWEST = 76
"""Width of a column of numbers under a short name, px."""


@dataclass(frozen=True)
class View:
    """What one link opens.

    Attributes:
        key: of the link.
        title: in MLflow's menu of views.
        condition: which runs, in MLflow's search language; empty for all.
        curves: whether charts are shown, not a table.
        order: what the list goes by; where it is the time, the newest come first.
        widths: of columns whose content is wider than their head, px.
    """

    key: str
    title: str
    condition: str = ""
    curves: bool = False
    order: str = BY_TIME
    widths: Mapping[str, int] = field(default_factory=dict, hash=False)


RUNS = View(
    "rollbook-runs",
    "Runs: evaluation and reward",
    widths={NAME_COLUMN: 250, RECIPE_COLUMN: 160},
)
CURVES = View("rollbook-curves", "Curves by iteration", "tags.`rollbook.kind` = 'chain'", True)
ITERATIONS = View(
    "rollbook-iterations",
    "Iterations",
    "tags.`rollbook.kind` = 'iteration'",
    order=BY_NAME,
    widths={NAME_COLUMN: 90, CHAIN_COLUMN: 220},
)
RESCORES = View(
    "rollbook-rescores",
    "Re-scores",
    "tags.`rollbook.kind` = 'rescore'",
    order=BY_NAME,
    widths={NAME_COLUMN: 220, CHAIN_COLUMN: 220},
)
ROLLOUTS = View("rollbook-rollouts", "Sampled rollouts with rewards")


def link(experiment_id: str, view: View) -> str:
    """Where a view is, below the address of the server."""
    place = f"#/experiments/{experiment_id}"
    if view is ROLLOUTS:
        return f"{place}/traces?{TRAINING_MENU}&startTimeLabel=ALL&traceViewShareKey={view.key}"
    mode = "&compareRunsMode=CHART" if view.curves else ""
    return f"{place}/runs?{TRAINING_MENU}&viewStateShareKey={view.key}{mode}"


def run_link(experiment_id: str, run_id: str) -> str:
    """Where a run is, below the address of the server."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{TRAINING_MENU}"


def save(client: MlflowClient, experiment_id: str, chains: Sequence[FinishedChain]) -> None:
    """Writes the views into an experiment. One that a user has saved over stays as he left it."""
    shown = _Shown.of(chains)
    tags = client.get_experiment(experiment_id).tags
    for name, content in _tags(shown, chains[0].steps[0].started_ms).items():
        if tags.get(name) != content and _is_ours(tags.get(name)):
            client.set_experiment_tag(experiment_id, name, content)


@dataclass(frozen=True)
class _Shown:
    """Names of what there is to show.

    Attributes:
        means: metrics of the evaluation sets.
        greedy: the same of greedy answers.
        training: metrics of `ITERATION_METRICS` that an iteration has.
        rewards: columns of rewards, the total first; it alone where it is its only part.
        parts: columns of rewards that are left out, being equal to the total.
    """

    means: Sequence[str]
    greedy: Sequence[str]
    training: Sequence[str]
    rewards: Sequence[str]
    parts: Sequence[str]

    @classmethod
    def of(cls, chains: Sequence[FinishedChain]) -> _Shown:
        steps = [step for chain in chains for step in chain.steps]
        names = dict.fromkeys(name for step in steps for name in step.metrics)
        bounds = ("_low", "_high")
        found = [
            (name, match)
            for name in names
            if (match := EVALUATION.fullmatch(name)) and not name.endswith(bounds)
        ]
        means = [name for name, match in found if match["what"] == "mean"]
        greedy = [name for name, match in found if match["greedy_set"]]
        training = [
            name
            for name in ITERATION_METRICS
            if any(step.metrics.get(name) is not None for step in steps)
        ]
        asked = [step.infos["compute_advantages"].settings["rewards"] for step in steps]
        columns = dict.fromkeys(str(reward["column"]) for rewards in asked for reward in rewards)
        alone = all(len(rewards) == 1 and rewards[0].get("weight") == 1 for rewards in asked)
        shown, parts = ((), tuple(columns)) if alone else (tuple(columns), ())
        return cls(means, greedy, training, ("reward", *shown), parts)


def _tags(shown: _Shown, made_ms: int) -> dict[str, str]:
    means, greedy, training, rescores = (
        [_column("metrics", name) for name in names]
        for names in (shown.means, shown.greedy, shown.training, RESCORE_METRICS)
    )
    columns = {
        RUNS: [RECIPE_COLUMN, *means, *greedy, *training],
        ITERATIONS: [
            RECIPE_COLUMN,
            *means,
            *training,
            *greedy,
            CHAIN_COLUMN,
            _column("tags", "previous"),
        ],
        RESCORES: [CHAIN_COLUMN, *rescores],
    }
    tags = {
        f"{RUNS_TAG}{view.key}": _fitting(view, names, partial(_runs_state, view), made_ms)
        for view, names in columns.items()
    }
    curves = partial(_runs_state, CURVES, [RECIPE_COLUMN])
    tags[f"{RUNS_TAG}{CURVES.key}"] = _fitting(CURVES, list(_charts(shown)), curves, made_ms)
    judged = _fitting(ROLLOUTS, shown.rewards, partial(_traces_state, shown.parts), made_ms)
    return {**tags, f"{TRACES_TAG}{ROLLOUTS.key}": judged}


def _traces_state(hidden: Sequence[str], rewards: Sequence[str]) -> dict[str, Any]:
    """What the page of traces shows of each; the total, question and answer first, they are seen on any screen."""
    total, *parts = rewards or ("reward",)
    judged = (total, "reference_answer", *parts, "advantage")
    first, *others = (f"assessment:{name}" for name in judged)
    seen = [first, "input", "output", *others, "trace_name", "run_name"]
    return {
        "single": {"cols": ",".join(seen), "startTimeLabel": "ALL"},
        "multi": {},
        # MLflow adds a column for each that it finds, unless it is named here
        "assessmentColumns": dict.fromkeys(judged, True) | dict.fromkeys(hidden, False),
    }


def _runs_state(view: View, columns: Sequence[str], charts: Sequence[Any] = ()) -> dict[str, Any]:
    """Filters of the search bar, and what the page shows of what is found."""
    state: dict[str, Any] = {
        "searchFilter": view.condition,
        "orderByKey": view.order,
        "orderByAsc": view.order != BY_TIME,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
    }
    if view.curves:
        state["compareRunCharts"] = list(charts)
        state["compareRunSections"] = [
            {
                "uuid": name,
                "name": name,
                "display": True,
                "isReordered": True,
                "deleted": False,
                "columns": CHARTS_ABREAST,
            }
            for name in SECTIONS
        ]
        state["isAccordionReordered"] = True
    else:
        state["columnOrder"] = [NAME_COLUMN, CREATED_COLUMN, *columns, DURATION_COLUMN]
        state["columnWidths"] = {
            NAME_COLUMN: view.widths[NAME_COLUMN],
            CREATED_COLUMN: _width("12 hours ago"),
            **{column: view.widths.get(column) or _width(_head(column)) for column in columns},
            DURATION_COLUMN: NARROWEST,
        }
    return state


def _width(text: str) -> int:
    """What a text takes in the head of a column, px: MLflow gives every column 100 and cuts longer names off."""
    return max(NARROWEST, round(len(text) * LETTER + MARGIN))


def _head(column: str) -> str:
    return column.partition("`")[2].removesuffix("`")


def _charts(shown: _Shown) -> Iterator[dict[str, Any]]:
    """Line charts by section; those of all other metrics follow below, as MLflow makes them itself."""
    training = list(TRAINING.values())
    evaluation = [*shown.means, *shown.greedy]
    sections = (evaluation, training[:TRAINING_CHARTS], training[TRAINING_CHARTS:])
    for section, names in zip(SECTIONS, sections, strict=True):
        for name in names:
            yield {
                "uuid": name,
                "type": "LINE",
                "metricSectionId": section,
                "metricKey": name,
                "selectedMetricKeys": [name],
                "deleted": False,
                "isGenerated": True,
                "useGlobalXaxisKey": True,
                "useGlobalLineSmoothing": True,
            }


def _fitting(
    view: View,
    parts: Sequence[Any],
    state_of: Callable[[Sequence[Any]], Mapping[str, Any]],
    made_ms: int,
) -> str:
    """The view with as many of the parts, from the first on, as a tag can hold.

    Charts that are left out are among those that MLflow makes itself, columns can be chosen on the page.
    """
    counts = range(len(parts), -1, -1)
    texts = (_envelope(view, state_of(parts[:count]), made_ms) for count in counts)
    return next(text for text in texts if len(text) <= LENGTH)


def _envelope(view: View, state: Mapping[str, Any], made_ms: int) -> str:
    return json.dumps(
        {
            "name": view.title,
            "createdAt": made_ms,
            "updatedAt": made_ms,
            "state": json.dumps(state, separators=(",", ":")),
        }
    )


def _is_ours(content: str | None) -> bool:
    """Whether nobody saved over it: MLflow's pages leave the time of that."""
    if content is None:
        return True
    found = json.loads(content)
    return bool(found.get("updatedAt") == found.get("createdAt"))


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"
