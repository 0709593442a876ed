"""Descriptions of runs, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.report import evaluation_scores
from pipeline.tracking.chains import Chain
from pipeline.tracking.finished import Metrics, Step

ROWS_SHOWN = 20


def chain_text(chain: Chain) -> str:
    """What a chain of policies is, and its evaluation by iteration."""
    recipes = dict.fromkeys(step.recipe for step in chain.steps)
    first, last = chain.steps[0], chain.steps[-1]
    lines = [
        f"Recipe **{' → '.join(recipes)}**, seed {chain.seed}, {first.key} to {last.key}. Curves go by iteration; "
        "step 0 is the base policy. The runs inside hold each iteration's settings, inputs, rollouts and policy.",
        "",
        "| iteration | recipe | evaluation: mean [95 %] | greedy | training reward |",
        "|---|---|---|---|---|",
        _row("base", "", chain.base),
    ]
    shown = chain.steps if len(chain.steps) <= ROWS_SHOWN else chain.steps[-ROWS_SHOWN:]
    if len(shown) < len(chain.steps):
        lines.append(f"| … {len(chain.steps) - len(shown)} earlier | | | | |")
    lines += [_row(step.key, step.recipe, step.metrics) for step in shown]
    return "\n".join(lines)


def step_text(step: Step) -> str:
    """What an iteration is, and where its artifacts are."""
    return "\n".join(
        [
            f"Iteration **{step.key}** of recipe **{step.recipe}**: policy {step.previous} → {step.key}.",
            "",
            *(f"- {line}" for line in _evaluations(step.metrics)),
            "",
            f"Its rollouts: `pipeline.load('rollouts', join=('prompts', 'scores'), iterations=['{step.key}'])`",
        ]
    )


def _row(name: str, recipe: str, metrics: Metrics) -> str:
    scores = evaluation_scores(metrics)
    means = "<br>".join(f"{label} {_interval(numbers)}" for label, numbers in scores.items())
    greedy = "<br>".join(_number(numbers.get("greedy")) for numbers in scores.values())
    return f"| {name} | {recipe} | {means} | {greedy} | {_number(metrics.get('reward'))} |"


def _evaluations(metrics: Metrics) -> Iterator[str]:
    for name, numbers in evaluation_scores(metrics).items():
        yield f"evaluation **{name}**: mean {_interval(numbers)}, greedy {_number(numbers.get('greedy'))}"
    if metrics.get("reward") is not None:
        yield f"training reward: {_number(metrics['reward'])}"


def _interval(numbers: dict[str, float]) -> str:
    if "mean" not in numbers:
        return ""
    low, high = numbers.get("mean_low"), numbers.get("mean_high")
    return f"{_number(numbers['mean'])} [{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
