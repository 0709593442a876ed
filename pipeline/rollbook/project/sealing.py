"""Takes finished iterations out of the loop, so that dvc.lock stays short, and prunes policies that nothing needs.

Every step is a file that is there whole or not at all, in an order that loses nothing when it is cut off: what the
iterations were (.json, .yaml), what DVC keeps of them (.dvc), then they leave params.yaml and the lock files, and only
then policies are removed. From the .dvc file on, sealing the same range again goes on where it stopped; before, it
starts again. Between .dvc file and params.yaml DVC refuses to do anything, since both name the same outputs.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.core.atomic import TEMPORARY_PREFIX, replacing
from rollbook.core.errors import ArtifactError, ConfigError, Problem, RollbookError, nearest
from rollbook.core.ids import BASE_KEY, PARAMS_FILE
from rollbook.core.yaml import flow, read_yaml, without_entries
from rollbook.dvc import guard
from rollbook.dvc.lock import (
    LOCK_FILE,
    PIPELINE_FILE,
    RESCORES_LOCK_FILE,
    lock_of,
    parse_stages,
    texts_of,
    without,
)
from rollbook.dvc.running_steps import is_alive
from rollbook.project import check
from rollbook.project.plan_file import PLAN_FILE, RESCORE_STAGE
from rollbook.project.run.currency import Currency
from rollbook.project.run.run import Run
from rollbook.settings.config import Params, run_settings
from rollbook.settings.params import read_text, write_text
from rollbook.settings.recipe import IterationSettings
from rollbook.settings.sealed import VERSION, files_of, read_part
from rollbook.tables.artifacts import FOLDERS, path_of, read_json, write_json

if TYPE_CHECKING:
    from dvc.repo import Repo

PART = re.compile(r"([A-Za-z]+)([0-9]{4})(?:-\1([0-9]{4}))?")
COMMAND = "rollbook seal"
LOOP = "${iterations}"
SHOWN = 5


@dataclass(frozen=True)
class Sealing:
    """What is to be sealed.

    Attributes:
        part: name of the files, `i0001-i0010`.
        keys: the iterations, in order.
        pruned: those whose policy, optimizer state and critic go.
    """

    part: str
    keys: Sequence[str]
    pruned: Sequence[str]


def keys_of(part: str, params: Params) -> list[str]:
    """Iterations that `i0001-i0010` names.

    Raises:
        ConfigError: if one of them does not exist or is sealed, or follows one that is neither sealed nor named.
    """
    match = PART.fullmatch(part)
    if match is None or int(match[2]) > int(match[3] or match[2]):
        what = f"{part!r} names no range; write first and last iteration, such as i0001-i0010"
        raise ConfigError([Problem("RANGE", what)], COMMAND)
    numbers = range(int(match[2]), int(match[3] or match[2]) + 1)
    keys = [f"{match[1]}{number:04d}" for number in numbers]
    problems = []
    for key in keys:
        if key in params.sealed:
            what = f"{key} is sealed already, in sealed/{params.sealed[key].part}.json"
            problems.append(Problem("RANGE", what))
        elif key not in params.iterations:
            hint = nearest(key, params.iterations)
            problems.append(Problem("RANGE", f"there is no iteration {key!r}; {hint}"))
        elif (
            before := params.iterations[key].previous
        ) in params.iterations and before not in keys:
            what = f"{key} follows {before}, which is not sealed; begin with {params.chain(key)[0]}"
            problems.append(Problem("RANGE", what))
    if problems:
        raise ConfigError(problems[:SHOWN], COMMAND)
    return keys


def needed(keys: Collection[str], params: Params) -> set[str]:
    """Iterations among `keys` whose policy others need: to follow them, as their reference, or to train on from."""
    every = params.every_iteration
    followed = {item.previous for item in every.values()}
    others = [item for key, item in params.iterations.items() if key not in keys]
    ends = [key for key in every if key not in followed]
    wanted = {policy for item in others for policy in (item.previous, item.reference)}
    return (wanted | set(ends) | {every[key].reference for key in ends}) & set(keys)


@contextlib.contextmanager
def dvc_idle() -> Iterator[Repo]:
    """Holds DVC's lock, so that no `dvc repro` begins, and none is going on.

    Raises:
        RollbookError: if one is.
    """
    from dvc.exceptions import NotDvcRepoError
    from dvc.lock import LockError
    from dvc.repo import Repo, lock_repo

    busy = RollbookError("DVC is busy in this project", "seal when `dvc repro` has ended")
    try:
        repo = Repo()
    except NotDvcRepoError:
        raise RollbookError(
            f"{Path.cwd()} is no DVC project", "run from the project's folder"
        ) from None
    try:
        with lock_repo(repo):
            if any(is_alive(int(holder["pid"])) for holder in _holders(Path(repo.tmp_dir))):
                raise busy
            yield repo
    except LockError:
        raise busy from None


def seal(sealing: Sealing, run: Run, repo: Repo) -> None:
    """Seals iterations, and prunes.

    Args:
        sealing: what.
        run: that they are part of.
        repo: as `dvc_idle` gives it.

    Raises:
        RollbookError: if a step of them is not finished or not current, or its results are not in DVC's cache.
    """
    params, currency = run.params, run.currency
    _refuse_unfinished(sealing.keys, currency)
    _refuse_stale(sealing.keys, currency)
    entries = _entries(sealing.keys, params)
    _refuse_changed(entries, repo)
    definitions, locked, outputs = files_of(sealing.part)
    text = lock_of(entries.values())
    write_json(definitions_of(sealing, params, currency.plan), definitions)
    _write_text(text, locked)
    _write_text(_outputs_text(sealing.part, text, sealing.pruned), outputs)
    finish(sealing.part)


def finish(part: str) -> None:
    """Does what is left to do once the .dvc file of a part is there; harmless if that is nothing."""
    content = read_part(part)
    keys = content["iterations"].keys()
    if keys & (read_yaml(PARAMS_FILE).get("iterations") or {}).keys():
        write_text(without_entries(read_text(), "iterations", keys))
    names = texts_of(files_of(part)[1].read_text(encoding="utf-8")).keys()
    for lock in (LOCK_FILE, RESCORES_LOCK_FILE):
        _shorten(lock, names)
    guard.remember()
    _prune(part, content["pruned"])


def keep_again(part: str, key: str, repo: Repo) -> None:
    """Makes DVC keep a pruned policy that was made again; it must be in its place, byte for byte."""
    definitions, locked, outputs = files_of(part)
    content = read_part(part)
    content["pruned"] = [each for each in content["pruned"] if each != key]
    write_json(content, definitions)
    entries = locked.read_text(encoding="utf-8")
    _write_text(_outputs_text(part, entries, content["pruned"]), outputs)
    repo.commit(outputs.as_posix(), force=True)


def size_of(part: str, keys: Collection[str]) -> int:
    """Bytes of the policies, optimizer states and critics of some iterations of a part."""
    paths = {path.as_posix() for key in keys for path in _policy_paths(key)}
    text = files_of(part)[1].read_text(encoding="utf-8")
    return sum(out["size"] for out in _outputs(text) if out["path"] in paths)


# --- may it be sealed? ----------------------------------------------------------------------------


def _refuse_unfinished(keys: Collection[str], currency: Currency) -> None:
    if waiting := [key for key in currency.unfinished if key in keys]:
        raise RollbookError(
            f"not finished: {', '.join(waiting)}", "run `dvc repro`, or seal a shorter range"
        )


def _refuse_stale(keys: Collection[str], currency: Currency) -> None:
    found = currency.reruns
    if stale := [step for step in found if step.key in keys or step.key == BASE_KEY]:
        raise RollbookError(
            f"settings, code or inputs changed since they ran: {check.describe(stale, currency.cause)}",
            "undo the change, or run `dvc repro`; what is sealed stays as it is",
        )


def _refuse_changed(entries: Mapping[str, str], repo: Repo) -> None:
    """Raises if what lies on disk is not what dvc.lock says, or DVC's cache lacks it."""
    from dvc.stage import PipelineStage

    if PLAN_FILE.exists():
        read_json(PLAN_FILE)  # DVC reads it too, and says less of one that is damaged
    stages = {each.name: each for each in repo.index.stages if isinstance(each, PipelineStage)}
    said = (text for name in entries for text in _said(stages[name].status()))
    changed = list(dict.fromkeys(said))
    if changed:
        raise ArtifactError(
            f"not as dvc.lock says: {'; '.join(changed[:SHOWN])}",
            "`dvc checkout` takes it from the cache, `dvc commit` puts it there, `dvc repro` makes it",
        )


def _said(status: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """What DVC says is not as it was, such as `artifacts/rollouts/i0001.parquet deleted`."""
    for name, changes in status.items():
        for change in changes:
            for paths in change.values() if isinstance(change, dict) else [{name: change}]:
                yield from (f"{path} {state}" for path, state in paths.items())


def _holders(folder: Path) -> Iterator[dict[str, Any]]:
    """Processes that DVC noted as reading or writing outputs; killed ones stay noted."""
    try:
        noted = json.loads((folder / "rwlock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    yield from noted.get("write", {}).values()
    for readers in noted.get("read", {}).values():
        yield from readers


# --- what is written ------------------------------------------------------------------------------


def definitions_of(sealing: Sealing, params: Params, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Content of sealed/PART.json: what params.yaml and the plan say of the iterations to be sealed."""
    items = {key: params.iterations[key] for key in sealing.keys}
    recipes = dict.fromkeys(item.recipe for item in items.values())
    return {
        "version": VERSION,
        "run": run_settings(params),
        "recipes": {
            name: params.recipes[name].model_dump(mode="json", serialize_as_any=True)
            for name in recipes
        },
        "iterations": {
            key: item.model_dump(mode="json", include=set(IterationSettings.model_fields))
            for key, item in items.items()
        },
        "plan": {key: plan[key] for key in sealing.keys},
        "evaluate_policy": params.evaluate_policy.model_dump(mode="json", serialize_as_any=True),
        "pruned": list(sealing.pruned),
    }


def _entries(keys: Sequence[str], params: Params) -> dict[str, str]:
    """Entries of the lock files that belong to iterations, those of stored re-scores among them."""
    stages = read_yaml(PIPELINE_FILE)["stages"]
    looped = [name for name, said in stages.items() if said.get("foreach") == LOOP]
    locked = texts_of(LOCK_FILE.read_text(encoding="utf-8"))
    names = [f"{name}@{key}" for key in keys for name in looped]
    found = {name: locked[name] for name in names if name in locked}
    if RESCORES_LOCK_FILE.exists():
        locked = texts_of(RESCORES_LOCK_FILE.read_text(encoding="utf-8"))
        names = [f"{RESCORE_STAGE}@{name}-{key}" for key in keys for name in params.rescores]
        found |= {name: locked[name] for name in names if name in locked}
    return found


def _outputs(lock_text: str) -> Iterator[dict[str, Any]]:
    """Outputs in a lock file: path, md5, size, and what else DVC says of them."""
    return (out for entry in parse_stages(lock_text).values() for out in entry.get("outs") or [])


def _outputs_text(part: str, lock_text: str, pruned: Collection[str]) -> str:
    """The .dvc file: all outputs in a lock file but the policies of pruned iterations."""
    gone = {path.as_posix() for key in pruned for path in _policy_paths(key)}
    lines = [
        f"# Made by `{COMMAND} {part}`: {part}.json and {part}.yaml say what these are.",
        "wdir: ..",
        "outs:",
    ]
    for out in _outputs(lock_text):
        if out["path"] not in gone:
            fields = [f"{name}: {flow(value)}" for name, value in out.items()]
            lines += [f"- {fields[0]}", *(f"  {field}" for field in fields[1:])]
    return "\n".join([*lines, ""])


def _write_text(text: str, path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _shorten(lock: Path, names: Collection[str]) -> None:
    """Takes entries out of a lock file; one that has none left goes."""
    if not lock.exists():
        return
    before = lock.read_text(encoding="utf-8")
    after = without(before, names)
    if not after:
        lock.unlink()
    elif after != before:
        _write_text(after, lock)


# --- what is removed ------------------------------------------------------------------------------


def _policy_paths(key: str) -> list[Path]:
    return [path_of(kind, key) for kind in FOLDERS]


def _prune(part: str, pruned: Collection[str]) -> None:
    """Removes `FOLDERS` from the workspace, and from the project's own cache if nothing uses them.

    A cache that lies elsewhere is left alone: other projects may use it, and `dvc gc` knows how to ask them.
    """
    paths = [path for key in pruned for path in _policy_paths(key)]
    for path in paths:
        leaving = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
        if path.exists():
            shutil.rmtree(leaving, ignore_errors=True)
            path.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)
    text = files_of(part)[1].read_text(encoding="utf-8")
    wanted = {path.as_posix() for path in paths}
    trees = [out["md5"] for out in _outputs(text) if out["path"] in wanted]
    if trees:
        _prune_cache(trees)


def _prune_cache(trees: Iterable[str]) -> None:
    from dvc.repo import Repo

    repo = Repo()
    cache = repo.cache.local
    if not Path(cache.path).resolve().is_relative_to(Path.cwd().resolve()):
        return
    here = [Path(cache.oid_to_path(tree)) for tree in trees]
    if not any(file.exists() for file in here):
        return
    used = {item.value for found in repo.used_objs(force=True).values() for item in found}
    for tree in trees:
        listed = Path(cache.oid_to_path(tree))
        if tree in used or not listed.exists():
            continue
        for entry in json.loads(listed.read_text(encoding="utf-8")):
            if entry["md5"] not in used:
                Path(cache.oid_to_path(entry["md5"])).unlink(missing_ok=True)
        listed.unlink(missing_ok=True)  # last: until then it says what else is to go
