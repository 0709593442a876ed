"""Runs of re-scores: one per chain and question, inside the run of the chain; its curves go by iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import read_json, read_metrics
from pipeline.config import Params
from pipeline.errors import ArtifactError
from pipeline.plan import load_stage
from pipeline.plan_file import RESCORE_STAGE
from pipeline.tracking.chain_runs import (
    KIND,
    NAME,
    PARENT,
    ChainRun,
    all_runs,
    log,
    metrics_at,
)
from pipeline.tracking.chains import Chain
from pipeline.tracking.descriptions import NOTE
from pipeline.tracking.finished import Metrics, Step, finished_ms, hash_of
from pipeline.tracking.iteration_runs import CONTENT, remove
from pipeline.tracking.names import flattened, shortened
from pipeline.tracking.store import Store

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
        numbers: of `pipeline.rescoring.summary` by iteration; None where not finite.
        inputs: content hashes of what was read, by iteration and table; an iteration that has changed is left out.
        asked_ms: when, milliseconds since 1970.
    """

    name: str
    settings: Mapping[str, Any]
    numbers: Mapping[str, Metrics]
    inputs: Mapping[str, Mapping[str, str]]
    asked_ms: int


def stored_answers(params: Params) -> list[Answers]:
    """What the entries of `rescores:` left on disk.

    Raises:
        ArtifactError: if a metric is no number.
    """
    found = []
    for name in params.rescores:
        stage = load_stage(RESCORE_STAGE).for_rescore(name)
        infos, numbers = {}, {}
        for key in params.every_iteration:
            if not stage.metrics_path(key).exists():
                continue
            found_numbers = read_metrics(stage.metrics_path(key))
            try:
                infos[key] = read_json(stage.run_info_path(key))
            except ArtifactError:
                continue
            numbers[key] = found_numbers
        if infos:
            last = max(infos.values(), key=finished_ms)
            inputs = {key: info["inputs"] for key, info in infos.items()}
            found.append(
                Answers(f"rescores.{name}", last["settings"], numbers, inputs, finished_ms(last))
            )
    return found


def send(store: Store, run: ChainRun, chain: Chain, answers: Answers) -> bool:
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


def _is_about(step: Step, answers: Answers) -> bool:
    """Whether the iteration was asked about as it is now."""
    read = answers.inputs.get(step.key)
    return read is not None and all(
        step.infos[stage]["outputs"][table] == read.get(table)
        for stage, table in ASKED_ABOUT.items()
    )


def _text(answers: Answers, steps: Sequence[Step]) -> str:
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
