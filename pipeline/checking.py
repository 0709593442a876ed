"""What `check` says before anything runs: is the configuration sound, what runs again, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts import path_of, read_json
from pipeline.config import Params, run_settings
from pipeline.dependencies import Dependencies, models_in
from pipeline.dvc_lock import LOCK_FILE, RESCORES_LOCK_FILE, output_md5s
from pipeline.errors import ArtifactError, ConfigError, Problem, RollbookError
from pipeline.ids import BASE_KEY
from pipeline.lock_entries import Entry, read_entries
from pipeline.plan import load_stage, make_plan, planned
from pipeline.plan_file import ITERATION_STAGES, ONCE_STAGES, RESCORE_STAGE, planned_digest
from pipeline.prompt_format import PromptFormat
from pipeline.visible import listed

LARGE_POLICY_PARAMETERS = 10_000_000
HIGH_LEARNING_RATE = 1e-5
SHOWN_CHANGES = 6
KEPT = "until `dvc repro`, what they made stays: show, page, doctor, compare, verify and ui go on telling of it"
"""Said beside finished steps that would run again."""
WORDS = {"setting": "settings", "code": "code", "file": "data"}
"""What kinds of changes are called together."""


@dataclass(frozen=True)
class Change:
    """What is otherwise for a step than when it ran.

    Attributes:
        kind: a setting, a source file, or a file of data that settings name.
        place: in params.yaml, or path of the file.
        how: the old value and the new one; of a file whether it is new, gone or changed.
    """

    kind: Literal["setting", "code", "file"]
    place: str
    how: str

    def __str__(self) -> str:
        named = self.place if self.kind == "setting" else f"{self.kind} {self.place}"
        return f"{named}: {self.how}"


@dataclass(frozen=True)
class Rerun:
    """A finished step that would run again.

    Attributes:
        stage, key: which step.
        reasons: what changed for this step itself; empty if only something before it changed, or its run_info, which
            has what it ran with, is not here.
        seconds: what it took last time.
    """

    stage: str
    key: str
    reasons: tuple[Change, ...]
    seconds: float


def examine(params: Params) -> tuple[dict[str, Any], list[str], list[Rerun]]:
    """What both `dvc repro` and `rollbook check` look at: the plan, warnings, and finished steps that run again.

    Raises:
        ConfigError: for files that settings name and that are not there.
    """
    refuse_missing_files(params)
    plan = make_plan(params)
    return plan, list(warnings_for(params)), reruns(params, plan)


def warnings_for(params: Params) -> Iterator[str]:
    """Settings that are allowed and rarely meant."""
    yield from _other_run(params)
    yield from (f"policy.base: {caution}" for caution in params.policy.base.cautions())
    parameters = params.policy.base.parameter_count()
    size = (
        "a policy whose size is not known yet"
        if parameters is None
        else f"{parameters / 1e6:,.0f}M parameters"
    )
    large = parameters is None or parameters > LARGE_POLICY_PARAMETERS
    for name in dict.fromkeys(item.recipe for item in params.iterations.values()):
        recipe = params.recipes[name]
        rate = recipe.update_policy.learning_rate
        if large and rate > HIGH_LEARNING_RATE and recipe.update_policy.lora is None:
            yield (
                f"recipes.{name}.update_policy.learning_rate: {rate:g} is high for full fine-tuning of {size}; "
                f"usual is 1e-6, rarely above {HIGH_LEARNING_RATE:g}"
            )
        for model in models_in(recipe):
            yield from (f"recipes.{name}: {caution}" for caution in model.cautions())
        for field in PromptFormat.model_fields:
            asked, judged = (
                getattr(recipe.prepare_prompts, field),
                getattr(params.evaluate_policy, field),
            )
            if asked != judged:
                yield f"recipes.{name}.prepare_prompts.{field} differs from evaluate_policy.{field}"


def _other_run(params: Params) -> Iterator[str]:
    """Says what of the run as a whole is not as it was when iterations were sealed: they stay as they are."""
    now = flat(run_settings(params))
    for part in dict.fromkeys(item.part for item in params.sealed.values()):
        then = flat(next(item.run for item in params.sealed.values() if item.part == part))
        for place in then:
            if now.get(place, then[place]) != then[place]:
                yield (
                    f"{place}: is {now[place]}, and was {then[place]} when {part} was trained, which is sealed and "
                    "does not change; what follows goes on from there"
                )


def refuse_missing_files(params: Params) -> None:
    """Raises ConfigError for files that settings name and that are not there."""
    missing = sorted(
        {
            file
            for model in models_in(params)
            for file in model.data_files()
            if not Path(file).exists()
        }
    )
    if missing:
        raise ConfigError([Problem(file, "there is no such file") for file in missing])


def reruns(params: Params, plan: Mapping[str, Any], lock_file: Path = LOCK_FILE) -> list[Rerun]:
    """Finished steps whose settings, code or inputs changed since dvc.lock was written, in order of execution.

    An upper bound: a step that comes out as before stops what follows it, and results that DVC
    has in its run cache are restored instead of made again.
    """
    return reruns_among(read_entries(lock_file), params, plan)


def reruns_among(entries: Iterable[Entry], params: Params, plan: Mapping[str, Any]) -> list[Rerun]:
    """As `reruns`, among steps that were read from dvc.lock before."""
    locked = _digests(entries)
    stale_paths: set[Path] = set()
    found = []
    for name, key in steps_of(params):
        if (name, key) not in locked:
            continue
        stage = load_stage(name)
        changed = planned_digest(plan, name, key) != locked[name, key]
        if changed or stale_paths.intersection(stage.input_paths(key, params)):
            stale_paths.update(stage.output_paths(key))
            info = _run_info(name, key)
            now = planned(params, name, key)
            known = changed and info
            reasons = tuple(changes(info, now, stage.settings.places())) if known else ()
            found.append(
                Rerun(name, key, reasons, float(info.get("seconds", {}).get("total", 0.0)))
            )
    return found


def unfinished(params: Params, lock_file: Path = LOCK_FILE) -> list[str]:
    """Iterations that have steps which never finished."""
    locked = _digests(read_entries(lock_file))
    return [
        key
        for key in params.iterations
        if any((name, key) not in locked for name in ITERATION_STAGES)
    ]


def waiting_rescores(
    params: Params,
    plan: Mapping[str, Any],
    lock_file: Path = LOCK_FILE,
    rescore_lock_file: Path = RESCORES_LOCK_FILE,
) -> dict[str, list[str]]:
    """Iterations by entry of `rescores:` that `rollbook rescore --stage` would score now: those whose tables are there
    and whose rewards, estimator, code or tables changed since, or that were never asked.
    """
    if not params.rescores:
        return {}
    made = output_md5s(lock_file)
    scored = {(item.rescore, item.key): item for item in read_entries(rescore_lock_file)}
    tables = load_stage(RESCORE_STAGE).input_paths

    def is_waiting(name: str, key: str) -> bool:
        if any(path.as_posix() not in made for path in tables(key, params)):
            return False
        entry = scored.get((name, key))
        planned = planned_digest(plan, RESCORE_STAGE, key, name)
        return entry is None or not entry.is_current(planned, made)

    return {
        name: [key for key in params.iterations if is_waiting(name, key)]
        for name in params.rescores
    }


def guard(found: list[Rerun], limit_hours: float) -> None:
    """Stops before more finished work than allowed is thrown away.

    Raises:
        RollbookError: naming the work, what changed, and the ways to go on.
    """
    hours = sum(step.seconds for step in found) / 3600
    if hours > limit_hours:
        raise RollbookError(
            f"{describe(found)}\nThat is more than runtime.max_rerun_hours: {limit_hours:g} allows.",
            "undo the change; or put it into a new recipe that `extends` the old one and point only new iterations "
            f"at it; or allow it with runtime.max_rerun_hours: {hours * 1.1:.1f}",
        )


def describe(found: list[Rerun]) -> str:
    """What would run again and why, in a few lines."""
    if not found:
        return "nothing that is finished runs again"
    seconds = sum(step.seconds for step in found)
    took = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
    lines = [
        f"{len(found)} finished steps run again, from {found[0].stage}@{found[0].key} on; they took {took}, because"
    ]
    reasons = _reasons(found)
    lines += [f"  - {reason}" for reason in reasons[:SHOWN_CHANGES]]
    if len(reasons) > SHOWN_CHANGES:
        lines.append(f"  - and {len(reasons) - SHOWN_CHANGES} more changes")
    if not reasons:
        lines.append(f"  - {causes(found)}")
    lines.append(
        "  (results that DVC still has in its run cache, as after undoing a change, are restored)"
    )
    return "\n".join(lines)


def causes(found: Sequence[Rerun]) -> str:
    """What changed, by kind in one line, such as `code (pipeline/evaluation.py)`; empty if nothing runs again."""
    places: dict[str, list[str]] = {}
    for reason in _reasons(found):
        places.setdefault(WORDS[reason.kind], []).append(reason.place)
    if found and not places:
        return "not known here: run_info, which has what they ran with, is not on this machine"
    return ", ".join(f"{word} ({listed(named, 2)})" for word, named in places.items())


def _reasons(found: Sequence[Rerun]) -> list[Change]:
    """All that changed, each once."""
    return list(dict.fromkeys(reason for step in found for reason in step.reasons))


def steps_of(params: Params) -> Iterator[tuple[str, str]]:
    """All steps, each after those it reads from."""
    yield from ((name, BASE_KEY) for name in ONCE_STAGES)
    yield "evaluate_policy", BASE_KEY
    done = {BASE_KEY, *params.sealed}
    waiting = dict(params.iterations)
    while waiting:
        ready = [key for key, item in waiting.items() if item.previous in done]
        for key in ready:
            yield from ((name, key) for name in ITERATION_STAGES)
            done.add(key)
            del waiting[key]


def _digests(entries: Iterable[Entry]) -> dict[tuple[str, str], str]:
    """Digest that each finished step was run with."""
    return {(item.stage, item.key): item.digest for item in entries if item.digest is not None}


def _run_info(name: str, key: str) -> dict[str, Any]:
    try:
        return read_json(path_of(f"run_info/{name}", key))
    except ArtifactError:
        return {}


def changes(
    info: Mapping[str, Any], now: Dependencies, places: Mapping[str, str]
) -> Iterator[Change]:
    """What differs between the settings and code of the last run and those of now, by place in params.yaml."""
    before, after = (
        flat({places.get(name, name): value for name, value in settings.items()})
        for settings in (info.get("settings", {}), now.settings)
    )
    for place in sorted(before.keys() | after.keys()):
        if before.get(place) != after.get(place):
            how = f"{before.get(place, 'unset')} → {after.get(place, 'unset')}"
            yield Change("setting", place, how)
    kinds: tuple[tuple[Literal["code", "file"], Mapping[str, str], Mapping[str, str]], ...] = (
        ("code", info.get("code", {}), now.code),
        ("file", info.get("files", {}), now.files),
    )
    for kind, old, new in kinds:
        for file in sorted(old.keys() | new.keys()):
            if old.get(file) != new.get(file):
                how = "new" if file not in old else "gone" if file not in new else "changed"
                yield Change(kind, file, how)


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Leaves of nested JSON values by their place, such as `loss.name`."""
    if isinstance(value, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {place: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found |= flat(item, f"{place}.{key}" if place else str(key))
    return found
