"""A policy: what it was made from, where it is, and how it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from pipeline.ancestry import GET, updates_to
from pipeline.artifacts import path_of, read_facts, read_metrics
from pipeline.errors import ArtifactError
from pipeline.ids import BASE_KEY
from pipeline.run.store import Store
from pipeline.showing.chain import Chain
from pipeline.showing.facts import Evaluation, Number, PolicyFacts, TrainedOn
from pipeline.showing.finding import Found
from pipeline.showing.provenance import made_by, missing_of, origin_of, tracked
from pipeline.showing.tables import Stored, stored


def policy_facts(found: Found, chain: Chain) -> PolicyFacts:
    """Everything about the policy that an iteration made.

    Raises:
        ArtifactError: if neither the policy nor its run_info is on disk.
    """
    key, is_base = found.key, found.key == BASE_KEY
    stage = "init_policy" if is_base else "update_policy"
    path, info = path_of("policies", key), chain.info(stage, key)
    digest = chain.digest(key) or (read_facts(path).content_hash if path.is_dir() else "")
    if not digest:
        raise ArtifactError(
            f"{path_of(f'run_info/{stage}', key)}: does not exist, and neither does the policy",
            GET,
        )
    before = str(info.get("inputs", {}).get("policies", ""))
    reference = _reference(key, chain)
    base = chain.settings("init_policy", BASE_KEY).get("policy", {}).get("base", {})
    settings = chain.settings(stage, key)
    return PolicyFacts(
        policy=chain.link(digest, key=key),
        path=path.as_posix(),
        md5=chain.md5(path.as_posix()),
        recipe="" if is_base else chain.recipe(key),
        sealed=chain.sealed[key].part if key in chain.sealed else "",
        base=base,
        previous=chain.link(before, key) if before else None,
        reference=chain.link(reference, key) if reference else None,
        steps_back=_steps_back(digest, chain),
        trained_on=None if is_base else _trained_on(key, chain),
        settings=settings.get("update", settings),
        metrics=_metrics(stage, key),
        evaluations=evaluations_of(_metrics("evaluate_policy", key)),
        made=made_by(info),
        mlflow=tracked(key, digest),
        missing=[]
        if is_base
        else missing_of(("rollouts", "scores", "advantages", "updates"), key, chain),
    )


def evaluations_of(metrics: Mapping[str, Any]) -> list[Evaluation]:
    """Scores of each set."""
    from pipeline.report import evaluation_scores

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


def _metrics(stage: str, key: str) -> Mapping[str, Number]:
    path = path_of(f"metrics/{stage}", key)
    return read_metrics(path) if path.exists() else {}


def _reference(key: str, chain: Chain) -> str:
    """Digest of the reference policy, where log-probs under one were measured."""
    logprobs = stored("logprobs", key)
    if logprobs is None or not logprobs.rows:
        return ""
    column = logprobs.column("ref_logprobs")
    read = chain.info("measure_logprobs", key).get("inputs", {})
    return str(read.get("reference", "")) if column.null_count < len(column) else ""


def _steps_back(digest: str, chain: Chain) -> int | None:
    """Updates between the base and this policy that changed something; None if the way does not end at the base."""
    way = updates_to(digest, Store().infos("update_policy"))
    first = way[-1].inputs["policies"] if way else digest
    return len(way) if first == chain.digest(BASE_KEY) else None


def _trained_on(key: str, chain: Chain) -> TrainedOn | None:
    rollouts = stored("rollouts", key)
    if rollouts is None:
        return None
    advantages, scores = stored("advantages", key), stored("scores", key)
    informative = None
    if advantages is not None:
        groups = advantages.column("group_id").filter(advantages.column("informative"))
        informative = pc.count_distinct(groups).as_py()
    return TrainedOn(
        origin=origin_of(rollouts, chain),
        groups=pc.count_distinct(rollouts.column("group_id")).as_py(),
        rollouts=rollouts.rows,
        kept=_count(advantages, "kept"),
        trained=_count(stored("updates", key), "trained"),
        mean_reward=pc.mean(scores.column("reward")).as_py() if scores is not None else None,
        informative=informative,
        same=chain.info("update_policy", key).get("inputs", {}).get("rollouts")
        in (None, rollouts.facts.content_hash),
    )


def _count(table: Stored | None, name: str) -> int | None:
    """Rows in which a column of truth values is true."""
    return None if table is None else pc.sum(table.column(name), min_count=0).as_py()
