"""Descriptions in Markdown: of the experiment, of runs and of policies.

MLflow folds a run's description after some 100 pixels and the experiment's after one line, so what matters comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollbook.core.ids import BASE_KEY
from rollbook.project.report import evaluation_scores
from rollbook.settings.recipe_words import recipe_in_words, stretches
from rollbook.tables.artifacts import path_of
from rollbook.views.mlflow import views
from rollbook.views.mlflow.chains import FinishedChain, FinishedIteration, Metrics

ROWS_SHOWN = 20
NOTE = "mlflow.note.content"
"""Tag that holds a description."""
GAP = "&emsp;"
"""Ends a cell: MLflow puts no space between those of a table."""
UNITS = (
    "Step 0 of the curves is the base policy. `entropy` and `kl` are nats per token, lengths are tokens, ratios are "
    "shares from 0 to 1, `seconds/` and `peak_memory_mb/` are what each stage took."
)
PARAMETERS = (
    "Parameters named `from i0001/…` hold from that iteration on, until a later one names the same setting; the others "
    "are of the data and the base policy. Every iteration's own run has all of its settings."
)


def experiment_text(experiment_id: str) -> str:
    """What the experiment is, and where to begin."""
    return "\n".join(
        [
            f"**Rollbook**: {_links(experiment_id)}. A run is a chain of policies; inside it are its iterations and "
            "re-scores.",
            "",
            "MLflow is a view of this project's `artifacts/` folder and holds nothing that is not there: "
            "`rollbook track --rebuild` makes it anew. Runs that were superseded by a change stay, and say so.",
        ]
    )


def chain_text(chain: FinishedChain, experiment_id: str, runs: Mapping[str, str]) -> str:
    """What a chain of policies is, and its evaluation by iteration.

    Args:
        chain: of policies.
        experiment_id: its experiment.
        runs: ids of the runs of iterations, by key; those that are known become links.
    """
    first, last = chain.steps[0], chain.steps[-1]
    lines = [
        f"{_outcome(chain)}, {first.key} to {last.key}, seed {chain.seed}. {_links(experiment_id)}",
        "",
        *(
            f"Recipe **{step.recipe}** from {step.key}: {_recipe(step)}.  "
            for step, *_ in stretches(chain.steps, lambda step: f"{step.recipe}: {_recipe(step)}")
        ),
        "",
        f"| iteration{GAP}| recipe{GAP}| evaluation: mean [95 %] | greedy{GAP}| training reward |",
        "|---|---|---|---|---|",
        _row("base", "", chain.base),
    ]
    shown = shown_steps(chain)
    if len(shown) < len(chain.steps):
        lines.append(f"| … {len(chain.steps) - len(shown)} earlier | | | | |")
    for step in shown:
        name = step.key
        if run := runs.get(step.key):
            name = f"[{step.key}]({views.run_link(experiment_id, run)})"
        lines.append(_row(name, step.recipe, step.metrics))
    lines += [
        "",
        UNITS,
        "",
        PARAMETERS,
        "",
        f"`rollbook lineage {last.key}` what made the last policy · `rollbook compare {BASE_KEY} {last.key}` what it "
        f"gained · `rollbook replay --all` runs every step again · `rollbook verify` looks for flipped bits",
    ]
    return "\n".join(lines)


def shown_steps(chain: FinishedChain) -> tuple[FinishedIteration, ...]:
    """The steps that stand in the table of a chain's description."""
    return chain.steps[-ROWS_SHOWN:]


def step_text(step: FinishedIteration) -> str:
    """What an iteration is, and where its artifacts are."""
    return "\n".join(
        [
            f"{'; '.join(_evaluations(step.metrics)) or 'Not evaluated'}. Policy {step.previous} → **{step.key}**, "
            f"iteration {step.number} of its run.",
            "",
            f"Recipe **{step.recipe}**: {_recipe(step)}.",
            "",
            f"- *Traces*: sampled rollouts with their rewards; *Artifacts*: `groups/{step.key}.csv` a row per group, "
            f"`groups/{step.key}.parquet` a row per rollout; *Datasets*: everything read and made, by DVC's md5",
            f"- `rollbook show {step.key}` · `rollbook lineage {step.key}` · "
            f"`rollbook replay update_policy@{step.key}`",
            f"- `rollbook.load('rollouts', join=('prompts', 'scores'), iterations=['{step.key}'])`",
        ]
    )


def policy_text(step: FinishedIteration, experiment_id: str, run_id: str) -> str:
    """What a policy is, and where its bytes are."""
    return (
        f"Made from {step.previous} by [iteration {step.key}]({views.run_link(experiment_id, run_id)}) of recipe "
        f"**{step.recipe}**. The weights stay in `{path_of('policies', step.key)}`. `rollbook lineage {step.key}` says "
        f"what made it, `rollbook export {step.key} FOLDER` writes it to serve."
    )


def _recipe(step: FinishedIteration) -> str:
    """The recipe that the step ran with, in one sentence."""
    return "; ".join(f"{topic}: {words}" for topic, words in recipe_in_words(step.settings))


def _outcome(chain: FinishedChain) -> str:
    """From the base to the last evaluation, by set."""
    base = evaluation_scores(chain.base)
    last: dict[str, dict[str, float]] = next(
        (found for step in reversed(chain.steps) if (found := evaluation_scores(step.metrics))), {}
    )
    return (
        "; ".join(
            f"**{name} {_number(base.get(name, {}).get('mean')) or '–'} → {_number(numbers['mean'])}**"
            f"{_bounds(numbers)}"
            for name, numbers in last.items()
            if "mean" in numbers
        )
        or "Not evaluated"
    )


def _links(experiment_id: str) -> str:
    named = {
        "runs": views.RUNS,
        "curves": views.CURVES,
        "iterations": views.ITERATIONS,
        "re-scores": views.RESCORES,
        "rollouts": views.ROLLOUTS,
    }
    return " · ".join(
        f"[{name}]({views.link(experiment_id, view)})" for name, view in named.items()
    )


def _row(name: str, recipe: str, metrics: Metrics) -> str:
    scores = evaluation_scores(metrics)
    means = "<br>".join(f"{label} {_interval(numbers)}" for label, numbers in scores.items())
    greedy = "<br>".join(_number(numbers.get("greedy")) for numbers in scores.values())
    return f"| {name}{GAP}| {recipe}{GAP}| {means}{GAP}| {greedy}{GAP}| {_number(metrics.get('reward'))} |"


def _evaluations(metrics: Metrics) -> Iterator[str]:
    for name, numbers in evaluation_scores(metrics).items():
        yield f"**{name} {_interval(numbers)}**, greedy {_number(numbers.get('greedy'))}"
    if metrics.get("reward") is not None:
        yield f"training reward {_number(metrics['reward'])}"


def _interval(numbers: dict[str, float]) -> str:
    if "mean" not in numbers:
        return ""
    return f"{_number(numbers['mean'])}{_bounds(numbers)}"


def _bounds(numbers: Mapping[str, float]) -> str:
    """The 95 % interval of a mean behind it; empty where it is unknown, as with one prompt."""
    if not {"mean_low", "mean_high"} <= numbers.keys():
        return ""
    return f" [{_number(numbers['mean_low'])}, {_number(numbers['mean_high'])}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
