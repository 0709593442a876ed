"""Pruned policies made again: the updates after the last policy that was kept, from their stored inputs.

Each update runs with the settings and threads it was recorded with, on the tables it read, and must give the policy,
the optimizer state and the critic it gave then. The code is today's; an update that it would do otherwise is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from rollbook.core.atomic import replacing
from rollbook.core.errors import RollbookError
from rollbook.core.runtime import Runtime
from rollbook.core.scratch import SCRATCH
from rollbook.project.plan import load_stage
from rollbook.project.replay.differing import other_labels
from rollbook.project.replay.environment import ran_on, recorded_runtime
from rollbook.project.run.run import Run
from rollbook.rl.context import Context
from rollbook.settings.config import Params
from rollbook.tables.artifacts import FOLDERS, Facts, path_of, write_folder
from rollbook.tables.run_info import RunInfo

WORK = SCRATCH / "rebuilt"
STAGE = "update_policy"


def updates_to(key: str, params: Params) -> list[str]:
    """Iterations whose updates lead from the last kept policy to that of `key`; none if it is kept itself."""
    found: list[str] = []
    while key in params.sealed and not params.sealed[key].kept:
        found.append(key)
        key = params.sealed[key].previous
    return found[::-1]


def rebuild(key: str, params: Params) -> None:
    """Puts the pruned policy, optimizer state and critic of `key` back in their place, byte for byte.

    Raises:
        RollbookError: if an update gives another policy than it gave then.
        ArtifactError: if a stored input is missing or damaged.
    """
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        for each in updates_to(key, params):
            _update(each, params)
        for kind in FOLDERS:
            with replacing(path_of(kind, key)) as temporary:
                shutil.move(_made(kind, key), temporary)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


def _update(key: str, params: Params) -> None:
    """Runs one update again; what its predecessor made is removed when it is done."""
    stage, info = load_stage(STAGE), Run().needed_info(STAGE, key)
    settings = stage.settings.model_validate(info.settings)
    context = Context(key, _runtime(info), STAGE)
    inputs = stage.read(key, params, _made_or_stored)
    _compare(key, "read", inputs.facts, info.inputs, info)
    outputs = stage.run(settings, inputs, context)
    read = {label: fact.content_hash for label, fact in inputs.facts.items()}
    made_now = {
        item.label: write_folder(
            outputs.folders[item.label],
            item.kind,
            key,
            read,
            info.digest,
            at=_made(item.kind, key),
        )
        for item in stage.outputs
        if item.kind in FOLDERS
    }
    _compare(key, "made", made_now, info.outputs, info)
    for kind in FOLDERS:
        shutil.rmtree(_made(kind, params.sealed[key].previous), ignore_errors=True)


def _runtime(info: RunInfo) -> Runtime:
    """As recorded, as far as today's settings know it."""
    recorded = recorded_runtime(info)
    known = {name: value for name, value in recorded.items() if name in Runtime.model_fields}
    return Runtime.model_validate(known)


def _made_or_stored(kind: str, path: Path) -> Path:
    made = _made(kind, path.name)
    return made if made.exists() else path


def _made(kind: str, key: str) -> Path:
    return WORK / kind / key


def _compare(
    key: str, did: str, now: Mapping[str, Facts], then: Mapping[str, str], info: RunInfo
) -> None:
    hashes = {label: facts.content_hash for label, facts in now.items()}
    for label in other_labels(hashes, then):
        raise RollbookError(
            f"{STAGE}@{key}: {did} other {label} than then ({hashes[label][:12]}, then {then[label][:12]}); "
            "nothing was put in place",
            f"it ran with {ran_on(info)}; the same code, packages and processor give the same bytes, and "
            f"`rollbook replay {STAGE}@{key}` says what differs",
        )
