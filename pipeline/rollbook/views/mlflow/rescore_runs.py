"""Runs of re-scores: one per chain and question, inside the run of the chain; its curves go by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.project.plan_file import RESCORE_STAGE
from rollbook.project.run.currency import stored_info
from rollbook.project.run.run import Run
from rollbook.views.mlflow.chain_runs import KIND, NAME, PARENT, ChainRun, all_runs, log, metrics_at
from rollbook.views.mlflow.chains import FinishedChain, FinishedIteration, Metrics, hash_of
from rollbook.views.mlflow.descriptions import NOTE
from rollbook.views.mlflow.iteration_runs import CONTENT, remove
from rollbook.views.mlflow.names import flattened, shortened
from rollbook.views.mlflow.store import TrackingStore

ASKED = "rollbook.rescore"
ASKED_ABOUT = {
    "generate_rollouts": "rollouts",
    "score_rollouts": "scores",
    "compute_advantages": "advantages",
}
"""What a re-score read, by the stage that made it."""


@dataclass(frozen=True)
class Answers:
    """What other rewards say about iterations.

    Attributes:
        name: what was asked: `rescores.<name>` of params.yaml, or rewards as they were written.
        settings: rewards and estimator.
        numbers: of `rollbook.rl.rescoring.summary` by iteration; None where not finite.
        inputs: content hashes of what was read, by iteration and table; an iteration that has changed is left out.
        asked_ms: when, milliseconds since 1970.
    """

    name: str
    settings: Mapping[str, Any]
    numbers: Mapping[str, Metrics]
    inputs: Mapping[str, Mapping[str, str]]
    asked_ms: int


def stored_answers(run: Run) -> list[Answers]:
    """What the entries of `rescores:` left on disk.

    Raises:
        ArtifactError: if a metric is no number.
    """
    found = []
    for name in run.params.rescores:
        every = {key: run.metrics(RESCORE_STAGE, key, name) for key in run.params.every_iteration}
        infos = {
            key: info
            for key, numbers in every.items()
            if numbers and (info := stored_info(run, RESCORE_STAGE, key, name))
        }
        if infos:
            last = max(infos.values(), key=lambda info: info.finished_ms)
            numbers = {key: every[key] for key in infos}
            inputs = {key: info.inputs for key, info in infos.items()}
            found.append(
                Answers(f"rescores.{name}", last.settings, numbers, inputs, last.finished_ms)
            )
    return found


def send(store: TrackingStore, run: ChainRun, chain: FinishedChain, answers: Answers) -> bool:
    """Shows the answers about a chain; those that were shown before under the same name are replaced.

    Returns:
        Whether the store lacked them.
    """
    steps = [step for step in chain.steps if _is_about(step, answers)]
    if not steps:
        return False
    numbers = {step.content: answers.numbers[step.key] for step in steps}
    content = hash_of([answers.name, answers.settings, numbers])
    condition = f"tags.`{KIND}` = 'rescore' and tags.`{PARENT}` = '{run.run_id}'"
    earlier = [
        each for each in all_runs(store, condition) if each.data.tags.get(ASKED) == answers.name
    ]
    if any(e.data.tags.get(CONTENT) == content and e.info.status == "FINISHED" for e in earlier):
        return False
    for each in earlier:
        remove(store, each)
    tags = {
        "mlflow.source.name": "rollbook",
        NOTE: _text(answers, steps),
        KIND: "rescore",
        ASKED: answers.name,
        CONTENT: content,
        PARENT: run.run_id,
        NAME: run.name,
    }
    name = shortened(f"re-scored: {answers.name}", 200)
    made = store.client.create_run(store.experiment_id, answers.asked_ms, tags, name)
    points = [
        point
        for step in steps
        for point in metrics_at(answers.numbers[step.key], step.number, answers.asked_ms)
    ]
    log(store.client, made.info.run_id, points, flattened(answers.settings))
    store.client.set_terminated(made.info.run_id, "FINISHED", answers.asked_ms)
    return True


def _is_about(step: FinishedIteration, answers: Answers) -> bool:
    """Whether the iteration was asked about as it is now."""
    read = answers.inputs.get(step.key)
    return read is not None and all(
        step.infos[stage].outputs[table] == read.get(table) for stage, table in ASKED_ABOUT.items()
    )


def _text(answers: Answers, steps: Sequence[FinishedIteration]) -> str:
    """What was asked, and the answers by iteration."""
    lines = [
        f"What **{answers.name}** says about stored rollouts. Curves go by iteration. Where `on_policy` is 0, "
        "the policy that sampled was trained on other rewards.",
        "",
        "| iteration | mean reward | signs that change | groups gained | groups lost |",
        "|---|---|---|---|---|",
    ]
    for step in steps:
        numbers = answers.numbers[step.key]
        old, new = (
            "–" if numbers[name] is None else f"{numbers[name]:.3f}"
            for name in ("old_reward", "reward")
        )
        counts = (numbers[name] for name in ("sign_flips", "groups_gained", "groups_lost"))
        lines.append(f"| {step.key} | {old} → {new} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
