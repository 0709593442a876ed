"""The other way round: what used a reward, a source of data, a source file or a policy, and what came of it."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rollbook.core.errors import ArtifactError, ConfigError, Problem, nearest
from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY, order_of
from rollbook.dvc.running_steps import label_of
from rollbook.project.ancestry import GET, policy_digest, updates_to
from rollbook.project.code import code_hashes, file_of_name, name_of_file
from rollbook.project.plan_file import DECLARED_STAGES, RESCORE_STAGE
from rollbook.project.run.store import Store
from rollbook.settings.config import labels_of
from rollbook.tables.run_info import RunInfo

COMMAND = "rollbook lineage"
JUDGED = "judged"
LISTED, NEAREST = 12, 5
"""As many names are listed whole; of more, so many that come near."""
LOOKING = ("evaluate_policy@", f"{RESCORE_STAGE}@")
"""Steps that no policy comes of."""


@dataclass(frozen=True)
class Use:
    """A step that used the thing asked for.

    Attributes:
        step: such as `score_rollouts@i0003`.
        key: of the iteration.
        how: in a few words.
    """

    step: str
    key: str
    how: str


@dataclass(frozen=True)
class Uses:
    """What used a thing.

    Attributes:
        thing: as it was asked for, written out.
        uses: steps that used it themselves, in order.
        policies: iterations whose policy was made with it or from one that was, oldest first.
        arrows: from a step that used it, or from the nearest of these policies, to a policy that came of it.
    """

    thing: str
    uses: Sequence[Use]
    policies: Sequence[str]
    arrows: Sequence[tuple[str, str]]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def uses_of(run: Store, thing: str) -> Uses:
    """What used `reward:NAME`, `data:NAME`, `code:FILE` or `policy:POLICY`, as far as run_info is on disk.

    Raises:
        ConfigError: if the thing cannot be read, or nothing is called so.
        ArtifactError: if run_info is damaged, or there is no such policy.
    """
    kind, colon, name = thing.partition(":")
    if not (colon and name and kind in KINDS):
        hint = nearest(kind, (f"{each}:NAME" for each in KINDS))
        raise ConfigError([Problem("--uses", f"{thing!r} cannot be read; {hint}")], COMMAND)
    shown, found, trains = KINDS[kind](name, run)
    training = [use for use in found if trains(use)]
    return Uses(f"{kind}:{shown}", found, *_policies_after(run, training))


def _steps(run: Store) -> list[RunInfo]:
    """run_info of every step on disk by iteration, the steps of one in their order."""

    order = {name: place for place, name in enumerate(DECLARED_STAGES)}
    return sorted(
        run.all_infos(),
        key=lambda info: (order_of(info.iteration), order.get(info.stage, len(order))),
    )


def _use(info: RunInfo, how: str) -> Use:
    return Use(label_of(info.stage, info.iteration, info.rescore), info.iteration, how)


_Found = tuple[str, list[Use], Callable[[Use], bool]]
"""What was found is called, the steps, and whether a step's use of it goes into the policy of its iteration."""


def _reward(name: str, run: Store) -> _Found:
    uses, known = [], set()
    for info in _steps(run):
        for how, spec in _rewards_in(info.settings):
            names = {str(spec.get(each)) for each in ("name", "path", "label") if spec.get(each)}
            known |= names
            if name in names:
                weight = f", weight {spec['weight']:g}" if how != JUDGED else ""
                uses.append(_use(info, f"{how}{weight}"))
    _refuse_unknown("reward", name, uses, known)
    return name, uses, lambda use: use.step.startswith("score_rollouts@")


def _rewards_in(settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    scored = settings.get("score_rollouts")
    for spec in scored.get("rewards", []) if isinstance(scored, Mapping) else []:
        yield ("asked again" if "previous" in settings else "rewarded"), spec
    judged = settings.get("evaluate")
    if isinstance(judged, Mapping) and settings.get("wanted", True):
        yield JUDGED, judged["scorer"]


def _data(name: str, run: Store) -> _Found:
    """By name of a source or evaluation set, by a file that a source reads, or by a data file of a component."""
    uses, known = [], set()
    labels: set[str] = set()
    sets: set[str] = set()
    if prepared := run.info("prepare_data", BASE_KEY):
        data = prepared.settings["data"]
        for label, spec in _labelled(data["train"]):
            names = _names_of_source(spec) | {label}
            known |= names
            if _is_named(name, names):
                labels.add(label)
        for label, spec in data["evaluation"].items():
            names = _names_of_source(spec) | {label}
            known |= names
            if _is_named(name, names):
                sets.add(label)
        if labels or sets:
            uses.append(_use(prepared, "read"))
    for info in _steps(run):
        known |= set(info.files)
        if name in info.files:
            uses.append(_use(info, f"read version {short(info.files[name])}"))
        if info.stage == "prepare_prompts" and labels & info.settings["source_weights"].keys():
            uses.append(_use(info, _drawn(run, info.iteration, labels)))
        if info.stage == "evaluate_policy" and sets and info.settings.get("wanted", True):
            uses.append(_use(info, "judged on it"))
    _refuse_unknown("data", name, uses, known)
    # That data was prepared says nothing of who was asked it.
    return name, uses, lambda use: _trains(use) and not use.step.startswith("prepare_data@")


def _labelled(specs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    specs = list(specs)
    return zip(labels_of(str(spec["name"]) for spec in specs), specs, strict=True)


def _names_of_source(spec: Mapping[str, Any]) -> set[str]:
    """What a source can be called: its name, its path, a data set of a hub, its files."""
    files = spec.get("files") or []
    named = [spec.get(each) for each in ("name", "path", "dataset")]
    return {str(each) for each in (*named, *([files] if isinstance(files, str) else files)) if each}


def _is_named(name: str, names: set[str]) -> bool:
    """Whether a source is called so, or reads a file of this name by a pattern."""
    return name in names or any(glob.has_magic(each) and Path(name).match(each) for each in names)


def _drawn(run: Store, key: str, labels: set[str]) -> str:
    table = run.find_table("prompts", key)
    if table is None:
        return "asked prompts of it"
    sources = table.column("source")
    count = sum(int(pc.sum(pc.equal(sources, label)).as_py() or 0) for label in labels)
    return f"asked {count:,} prompts of it, of {len(sources):,}"


def _code(name: str, run: Store) -> _Found:
    name = name_of_file(Path(name)) if Path(name).is_file() else os.path.relpath(name)
    known = {file for info in run.all_infos() for file in info.code}
    matching = sorted(file for file in known if file == name or file.endswith(f"/{name}"))
    if len(matching) > 1 and name not in matching:
        what = f"{name!r} could be {', '.join(matching)}; write more of the path"
        raise ConfigError([Problem("--uses", what)], COMMAND)
    file = name if name in matching else (matching or [name])[0]
    today = code_hashes([file_of_name(file)]).get(file)
    uses = []
    for info in _steps(run):
        if (version := info.code.get(file)) is not None:
            now = "as it is now" if version == today else "another than now"
            uses.append(_use(info, f"ran version {short(version)}, {now}"))
    _refuse_unknown("code", name, uses, known)
    return file, uses, _trains


READ_AS = {
    ("prepare_prompts", "policies"): "rendered prompts for it",
    ("generate_rollouts", "policies"): "sampled from it",
    ("measure_logprobs", "policies"): "measured its log-probs",
    ("measure_logprobs", "reference"): "measured its log-probs as the reference",
    ("update_policy", "policies"): "trained on from it",
    ("evaluate_policy", "policies"): "judged it",
}
"""What a stage did with a policy that it read under a label."""
ONLY_IF = {
    ("measure_logprobs", "policies"): "needs_old",
    ("measure_logprobs", "reference"): "needs_reference",
}
"""Setting without which a stage opens a policy and does nothing with it."""


def _policy(name: str, run: Store) -> _Found:
    digest = policy_digest(run, name)
    uses = []
    for info in _steps(run):
        for label in [label for label, read in info.inputs.items() if read == digest]:
            role = (info.stage, label)
            if role not in ONLY_IF or info.settings.get(ONLY_IF[role]):
                uses.append(_use(info, READ_AS.get(role, "computed with an adapter on it")))
    return f"{name} ({short(digest)})", uses, _trains


def _trains(use: Use) -> bool:
    """Whether what a step made goes into the policy of its iteration; evaluations and re-scores only look at it."""
    return not use.step.startswith(LOOKING)


KINDS: Mapping[str, Callable[[str, Store], _Found]] = {
    "reward": _reward,
    "data": _data,
    "code": _code,
    "policy": _policy,
}


def _policies_after(run: Store, uses: Sequence[Use]) -> tuple[list[str], list[tuple[str, str]]]:
    """Iterations whose policy has one of these uses among its ancestors, and what each came of.

    All of them, if the base policy came of it.
    """
    steps: dict[str, list[str]] = {}
    for use in uses:
        steps.setdefault(use.key, []).append(use.step)
    infos = {info.iteration: info for info in run.infos("update_policy") if info.outputs}
    ways = {
        key: [each.iteration for each in updates_to(info.inputs["policies"], infos.values())]
        for key, info in infos.items()
    }
    found = [key for key, way in ways.items() if steps.keys() & {BASE_KEY, key, *way}]
    arrows: list[tuple[str, str]] = []
    for key in found:
        before = next((each for each in ways[key] if each in found), None)
        from_base = [before] if before else steps.get(BASE_KEY, [])
        arrows += [(each, key) for each in (*from_base, *steps.get(key, []))]
    return found, arrows


def _refuse_unknown(kind: str, name: str, uses: Sequence[Use], known: Iterable[str]) -> None:
    """Raises ConfigError if nothing used it and nothing is called so, ArtifactError if nothing is known at all."""
    known = set(known)
    if not known:
        raise ArtifactError(
            f"no step has left its run_info here that could have used {kind} {name!r}", GET
        )
    if not uses and name not in known:
        near = get_close_matches(name, known, n=NEAREST, cutoff=0)
        listed = nearest(name, known) if len(known) <= LISTED else f"nearest: {', '.join(near)}"
        what = f"no step that left its run_info here used {kind} {name!r}; {listed}"
        raise ConfigError([Problem("--uses", what)], COMMAND)
