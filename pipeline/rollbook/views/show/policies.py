"""A policy: what it was made from, where it is, and how it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from rollbook.core.errors import ArtifactError
from rollbook.core.ids import BASE_KEY
from rollbook.project.ancestry import GET, updates_to
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.run import Run
from rollbook.project.run.stored import StoredTable
from rollbook.tables.artifacts import path_of
from rollbook.views.show.facts import Evaluation, PolicyFacts, TrainedOn
from rollbook.views.show.finding import Found
from rollbook.views.show.provenance import made_by, origin_of, tracked


def policy_facts(run: Run, found: Found) -> PolicyFacts:
    """Everything about the policy that an iteration made.

    Raises:
        ArtifactError: if neither the policy nor its run_info is on disk.
    """
    key, is_base = found.key, found.key == BASE_KEY
    stage = "init_policy" if is_base else "update_policy"
    iteration, info = run.iteration(key), run.info(stage, key)
    digest = run.policy_digest(key) or run.policies_on_disk().get(key)
    if not digest:
        raise ArtifactError(
            f"{path_of(f'run_info/{stage}', key)}: does not exist, and neither does the policy",
            GET,
        )
    before = info.inputs.get("policies", "") if info else ""
    reference = _reference(iteration)
    settings = iteration.settings(stage)
    return PolicyFacts(
        policy=run.policy_link(digest, key=key),
        path=path_of("policies", key).as_posix(),
        md5=run.md5("policies", key),
        recipe="" if is_base else iteration.configured_recipe_name,
        sealed=iteration.sealed_part,
        base=run.iteration(BASE_KEY).settings("init_policy").get("policy", {}).get("base", {}),
        previous=run.policy_link(before, key) if before else None,
        reference=run.policy_link(reference, key) if reference else None,
        steps_back=_steps_back(run, digest),
        trained_on=None if is_base else _trained_on(iteration),
        settings=settings.get("update", settings),
        metrics=run.metrics(stage, key),
        evaluations=evaluations_of(run.metrics("evaluate_policy", key)),
        made=made_by(info),
        mlflow=tracked(key, digest),
        missing=[]
        if is_base
        else iteration.missing_tables("rollouts", "scores", "advantages", "updates"),
    )


def evaluations_of(metrics: Mapping[str, Any]) -> list[Evaluation]:
    """Scores of each set."""
    from rollbook.project.report import evaluation_scores

    return [
        Evaluation(
            set=name,
            samples=int(scores.get("samples", 0)),
            mean=scores.get("mean"),
            mean_low=scores.get("mean_low"),
            mean_high=scores.get("mean_high"),
            greedy=scores.get("greedy"),
            passed=scores.get("pass"),
        )
        for name, scores in evaluation_scores(metrics).items()
    ]


def _reference(iteration: Iteration) -> str:
    """Digest of the reference policy, where log-probs under one were measured."""
    logprobs, info = iteration.find_table("logprobs"), iteration.info("measure_logprobs")
    if logprobs is None or info is None or not logprobs.rows:
        return ""
    column = logprobs.column("ref_logprobs")
    return info.inputs.get("reference", "") if column.null_count < len(column) else ""


def _steps_back(run: Run, digest: str) -> int | None:
    """Updates between the base and this policy that changed something; None if the way does not end at the base."""
    way = updates_to(digest, run.infos("update_policy"))
    first = way[-1].inputs["policies"] if way else digest
    return len(way) if first == run.policy_digest(BASE_KEY) else None


def _trained_on(iteration: Iteration) -> TrainedOn | None:
    rollouts = iteration.find_table("rollouts")
    if rollouts is None:
        return None
    advantages, scores = iteration.find_table("advantages"), iteration.find_table("scores")
    update = iteration.info("update_policy")
    informative = None
    if advantages is not None:
        groups = advantages.column("group_id").filter(advantages.column("informative"))
        informative = pc.count_distinct(groups).as_py()
    return TrainedOn(
        origin=origin_of(rollouts, iteration.run),
        groups=pc.count_distinct(rollouts.column("group_id")).as_py(),
        rollouts=rollouts.rows,
        kept=_count(advantages, "kept"),
        trained=_count(iteration.find_table("updates"), "trained"),
        mean_reward=pc.mean(scores.column("reward")).as_py() if scores is not None else None,
        informative=informative,
        same=update is None or update.inputs.get("rollouts") in (None, rollouts.facts.content_hash),
    )


def _count(table: StoredTable | None, name: str) -> int | None:
    """Rows in which a column of truth values is true."""
    return None if table is None else pc.sum(table.column(name), min_count=0).as_py()
