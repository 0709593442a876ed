"""Saved views: the columns, charts and filters that MLflow's pages open with, and links to them.

MLflow keeps a view in a tag of the experiment, under the key that stands in the link, as JSON that its pages read
(`savedViewEnvelope.ts` of its server, as of 3.17). A page that cannot read one says so and shows its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.report import EVALUATION, TRAINING
from pipeline.tracking.chains import Chain

if TYPE_CHECKING:
    from pipeline.tracking.store import Store

RUNS_TAG = "mlflow.sharedViewState."
TRACES_TAG = "mlflow.tracesV4ViewState."
LENGTH = 5000
"""Characters that a tag of an experiment can hold."""
SECTIONS = ("Evaluation", "Training", "Update")
TRAINING_CHARTS = 5
"""So many of `report.TRAINING` say what the policy did, the others what the update did."""
RESCORE_METRICS = ("old_reward", "reward", "sign_flips", "groups_gained", "groups_lost")


@dataclass(frozen=True)
class View:
    """What one link opens.

    Attributes:
        key: of the link.
        title: in MLflow's menu of views.
        condition: which runs, in MLflow's search language; empty for all.
        curves: whether charts are shown, not a table.
    """

    key: str
    title: str
    condition: str = ""
    curves: bool = False


RUNS = View("rollbook-runs", "Runs: evaluation and reward")
CURVES = View("rollbook-curves", "Curves by iteration", "tags.`rollbook.kind` = 'chain'", True)
ITERATIONS = View("rollbook-iterations", "Iterations", "tags.`rollbook.kind` = 'iteration'")
RESCORES = View("rollbook-rescores", "Re-scores", "tags.`rollbook.kind` = 'rescore'")
ROLLOUTS = View("rollbook-rollouts", "Sampled rollouts with rewards")


def link(experiment_id: str, view: View) -> str:
    """Where a view is, below the address of the server."""
    if view is ROLLOUTS:
        return (
            f"#/experiments/{experiment_id}/traces?startTimeLabel=ALL&traceViewShareKey={view.key}"
        )
    mode = "&compareRunsMode=CHART" if view.curves else ""
    return (
        f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"
        f"&viewStateShareKey={view.key}{mode}"
    )


def save(store: Store, chains: Sequence[Chain]) -> None:
    """Writes the views into the experiment. One that a user has saved over stays as he left it."""
    shown = _Shown.of(chains)
    tags = store.client.get_experiment(store.experiment_id).tags
    for name, content in _tags(shown, chains[0].steps[0].started_ms).items():
        if tags.get(name) != content and _is_ours(tags.get(name)):
            store.client.set_experiment_tag(store.experiment_id, name, content)


@dataclass(frozen=True)
class _Shown:
    """Names of what there is to show.

    Attributes:
        evaluation: metrics of the evaluation sets, means before greedy.
        rewards: columns of rewards.
    """

    evaluation: Sequence[str]
    rewards: Sequence[str]

    @classmethod
    def of(cls, chains: Sequence[Chain]) -> _Shown:
        names = dict.fromkeys(
            name for chain in chains for step in chain.steps for name in step.metrics
        )
        found = [(name, EVALUATION.fullmatch(name)) for name in names]
        means = [name for name, match in found if match and match["what"] == "mean"]
        greedy = [name for name, match in found if match and match["greedy_set"]]
        bounds = ("_low", "_high")
        evaluation = [name for name in (*means, *greedy) if not name.endswith(bounds)]
        columns = dict.fromkeys(
            str(reward["column"])
            for chain in chains
            for step in chain.steps
            for reward in step.infos["compute_advantages"]["settings"]["rewards"]
        )
        return cls(evaluation, ("reward", *columns))


def _tags(shown: _Shown, made_ms: int) -> dict[str, str]:
    metrics = [*shown.evaluation, "reward", "completions/mean_length"]
    columns = {
        RUNS: [_column("tags", "recipe"), *(_column("metrics", name) for name in metrics)],
        ITERATIONS: [
            *(_column("tags", name) for name in ("recipe", "previous")),
            *(_column("metrics", name) for name in metrics),
            _column("attributes", "Dataset"),
            _column("attributes", "Models"),
        ],
        RESCORES: [_column("metrics", name) for name in RESCORE_METRICS],
    }
    tags = {
        f"{RUNS_TAG}{view.key}": _fitting(view, names, partial(_runs_state, view), made_ms)
        for view, names in columns.items()
    }
    curves = partial(_runs_state, CURVES, [_column("tags", "recipe")])
    tags[f"{RUNS_TAG}{CURVES.key}"] = _fitting(CURVES, list(_charts(shown)), curves, made_ms)
    rollouts = _fitting(ROLLOUTS, shown.rewards, _traces_state, made_ms)
    return {**tags, f"{TRACES_TAG}{ROLLOUTS.key}": rollouts}


def _traces_state(rewards: Sequence[str]) -> dict[str, Any]:
    """What the page of traces shows of each."""
    judged = (*rewards, "advantage", "reference_answer")
    seen = [
        "trace_name",
        *(f"assessment:{name}" for name in judged),
        *("input", "output", "run_name"),
    ]
    return {
        "single": {"cols": ",".join(seen), "startTimeLabel": "ALL"},
        "multi": {},
        "assessmentColumns": dict.fromkeys(judged, True),
    }


def _runs_state(view: View, columns: Sequence[str], charts: Sequence[Any] = ()) -> dict[str, Any]:
    """Filters of the search bar, and what the page shows of what is found."""
    state: dict[str, Any] = {
        "searchFilter": view.condition,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
    }
    if view.curves:
        state["compareRunCharts"] = list(charts)
        state["compareRunSections"] = [
            {"uuid": name, "name": name, "display": True, "isReordered": True, "deleted": False}
            for name in SECTIONS
        ]
        state["isAccordionReordered"] = True
    return state


def _charts(shown: _Shown) -> Iterator[dict[str, Any]]:
    """Line charts by section; those of all other metrics follow below, as MLflow makes them itself."""
    training = list(TRAINING.values())
    sections = (shown.evaluation, training[:TRAINING_CHARTS], training[TRAINING_CHARTS:])
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
