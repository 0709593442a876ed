"""What a stored policy was made from: the chain of updates back to its base, found by digests.

Told by run_info, which stays when policies are pruned, or not pulled. Nothing here looks at what params.yaml says
now: names of recipes are the caller's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError, nearest
from rollbook.core.hashing import FACTS_FILE, short
from rollbook.core.ids import BASE_KEY, ITERATION_KEY
from rollbook.core.yaml import leaves
from rollbook.dvc.running_steps import dvc_is_at_work, label_of, running_steps
from rollbook.project.run.policies import recorded_digest
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import path_of
from rollbook.tables.run_info import Environment, RunInfo

TRAINING = (
    "prepare_prompts",
    "generate_rollouts",
    "score_rollouts",
    "compute_advantages",
    "update_policy",
)
"""Stages whose settings make an iteration's method."""
BESIDE = ("measure_logprobs", "evaluate_policy")
"""Stages of an iteration that its policy can be there without."""
SHORTEST_DIGEST = 4
EMPTY = "nothing of this run is in the workspace yet"
GET = "`rollbook pull` brings what was made before but policies, `dvc repro` makes it"
EVERY_ITERATION = ("seed", "draws")
"""Settings that differ between iterations by design, or are said elsewhere."""
OFF = ("None", "False", "", "[]", "{}")


@dataclass(frozen=True)
class Ancestor:
    """One iteration on the way to a policy.

    Attributes:
        key: of the iteration.
        infos: run_info of its stages, by name.
        rollouts: rows that were generated.
        replaced: kinds of tables that were made again since: those on disk, or their run_info, are not of this update.
    """

    key: str
    infos: Mapping[str, RunInfo]
    rollouts: int
    replaced: Sequence[str]

    @property
    def update(self) -> RunInfo:
        """run_info of its update."""
        return self.infos["update_policy"]

    @property
    def digest(self) -> str:
        """Of the policy it made."""
        return self.update.outputs["policies"]

    @property
    def digest_before(self) -> str:
        """Of the policy it trained on."""
        return self.update.inputs["policies"]

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Resolved, by stage, as they were when it ran."""
        return {stage: self.infos[stage].settings for stage in TRAINING}

    @property
    def environment(self) -> Environment:
        """Commit and packages its update ran with."""
        return self.update.environment

    @property
    def commit(self) -> str:
        """That its update ran at; says so if files were changed since."""
        return self.environment.git.shown or "unknown"

    @property
    def code(self) -> Mapping[str, str]:
        """Hash of every source file that its training stages ran, by path."""
        return {file: of for stage in TRAINING for file, of in self.infos[stage].code.items()}

    @property
    def code_digest(self) -> str:
        """Of all of that code; 32 hex digits."""
        text = json.dumps([self.infos[stage].code for stage in TRAINING], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def method(self) -> dict[str, str]:
        """Settings by place; what is unset or off, and what differs between iterations by design, is left out."""
        found: dict[str, str] = {}
        for stage, settings in self.settings.items():
            for name, value in settings.items():
                # A stage reads its own section whole, and single values of others, which stand in these.
                if isinstance(value, Mapping) and name not in EVERY_ITERATION:
                    texts = {place: str(leaf) for place, leaf in leaves(value)}
                    found |= {
                        f"{stage}.{at}": text for at, text in texts.items() if text not in OFF
                    }
        return found


@dataclass(frozen=True)
class Ancestry:
    """A policy's way from its base.

    Attributes:
        digest: of the policy.
        base_digest: of the base policy.
        base: `policy.base` as it was.
        updates: oldest first; none for the base policy itself.
    """

    digest: str
    base_digest: str
    base: Mapping[str, Any]
    updates: Sequence[Ancestor]

    @property
    def key(self) -> str:
        """The iteration that made the policy."""
        return self.updates[-1].key if self.updates else BASE_KEY

    @property
    def base_name(self) -> str:
        """What the base policy is called, with its revision if it is of a hub."""
        name, revision = str(self.base.get("model") or self.base["name"]), self.base.get("revision")
        return name if revision is None else f"{name}@{revision}"

    def refuse_replaced(self) -> None:
        """Raises ArtifactError if tables on disk are not those that were trained on."""
        for update in self.updates:
            if update.replaced:
                raise ArtifactError(
                    f"{path_of(update.replaced[0], update.key)}: is not what the policy of {update.key} was trained on",
                    "run `dvc repro` to bring the run up to date",
                )


def short_commit(commit: str) -> str:
    """What `GitState.shown` says, with the first digits of the commit."""
    digits, _, rest = commit.partition(" ")
    return f"{short(digits)}{f' {rest}' if rest else ''}"


def span(keys: Sequence[str]) -> str:
    """Neighbouring iterations in words: the first and the last, or the only one."""
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"


def find_policy(run: Store, name: str) -> Path:
    """Folder of a policy given by iteration key, by the first digits of its digest, or by path.

    Raises:
        ArtifactError: if there is none, or several.
    """
    if (Path(name) / FACTS_FILE).is_file():
        return Path(name)
    digests = run.policies_on_disk()
    key = name if ITERATION_KEY.fullmatch(name) else "KEY"
    hint = (
        f"; `dvc checkout` restores folders, `dvc pull {path_of('policies', key)}` gets one, and "
        f"`rollbook seal --rebuild {key}` makes one again that sealing has pruned"
    )
    wanted = _named(name, digests, "on disk", hint)
    return run.place("policies", next(key for key, digest in digests.items() if digest == wanted))


def policy_digest(run: Store, name: str) -> str:
    """Digest of a policy given as for `find_policy`; its folder need not be here if its run_info is.

    Raises:
        ArtifactError: if there is none, or several.
    """
    if (Path(name) / FACTS_FILE).is_file():
        return recorded_digest(Path(name))
    made = {key: digest for key in run.made_keys if (digest := run.policy_digest(key))}
    return _named(name, {**made, **run.policies_on_disk()}, "in this project", "")


def _named(name: str, digests: Mapping[str, str], where: str, hint: str) -> str:
    """The digest that a key or its own first digits name."""
    if name in digests:
        return digests[name]
    found = [key for key, digest in digests.items() if digest.startswith(name)]
    if not digests:
        what = f"there is no policy {name!r} {where}, nor any other"
        raise ArtifactError(what, hint.removeprefix("; ") or GET)
    if name and found and len(name) < SHORTEST_DIGEST:
        begun = ", ".join(f"{key} ({short(digests[key])})" for key in found)
        raise ArtifactError(
            f"{name!r} is the beginning of a digest of {begun}",
            f"give an iteration, or {SHORTEST_DIGEST} digits and more",
        )
    if not (name and found):
        raise ArtifactError(
            f"there is no policy {name!r} {where}; {nearest(name, digests)}",
            _while_running()
            or f"give an iteration, the first digits of a digest, or a policy folder{hint}",
        )
    if len({digests[key] for key in found}) > 1:
        raise ArtifactError(f"the digests of {', '.join(found)} all begin with {name!r}; give more")
    return digests[found[0]]


def ancestry_of(run: Store, digest: str) -> Ancestry:
    """How the policy of this digest came to be.

    Raises:
        ArtifactError: if a run_info file on the way is missing.
    """
    way = updates_to(digest, run.infos("update_policy"))
    at = way[-1].inputs["policies"] if way else digest
    init = run.needed_info("init_policy", BASE_KEY)
    if at != init.outputs["policies"]:
        raise ArtifactError(
            f"policy {short(at)} was made neither by an update that left its run_info here nor by init_policy",
            _while_running()
            or "run in the project that trained it; `dvc checkout` restores missing run_info",
        )
    updates = [_ancestor(run, info.iteration) for info in reversed(way)]
    return Ancestry(digest, at, init.settings["policy"]["base"], updates)


def updates_to(digest: str, infos: Iterable[RunInfo]) -> list[RunInfo]:
    """run_info of the updates that led to a policy, newest first, back to one that no update made.

    Found by digest, so an update that changed nothing is no step of the way: its policy is the one it began with.

    Args:
        digest: of the policy.
        infos: run_info of all updates.
    """
    makers = {
        made: info
        for info in infos
        if (made := info.outputs.get("policies")) and made != info.inputs["policies"]
    }
    way: list[RunInfo] = []
    while digest in makers:
        info = makers.pop(digest)  # none is met twice, whatever the files say
        way.append(info)
        digest = info.inputs["policies"]
    return way


def _while_running() -> str:
    """What to say of things that are not here while steps run, which remove what they make again; else nothing."""
    running = [label_of(step.stage, step.key, step.rescore) for step in running_steps()]
    if not running and not dvc_is_at_work():
        return ""
    return f"{', '.join(running) or 'DVC'} is at work, and what is made again is away meanwhile; ask again then"


def _ancestor(run: Store, key: str) -> Ancestor:
    infos = {stage: run.needed_info(stage, key) for stage in TRAINING}
    infos |= {stage: info for stage in BESIDE if (info := run.info(stage, key))}
    replaced = [
        kind
        for kind, made, read in (
            ("prompts", "prepare_prompts", "generate_rollouts"),
            ("rollouts", "generate_rollouts", "update_policy"),
            ("scores", "score_rollouts", "compute_advantages"),
            ("advantages", "compute_advantages", "update_policy"),
        )
        if infos[made].outputs[kind] != infos[read].inputs[kind]
    ]
    here = run.facts("rollouts", key)
    if here and here.content_hash != infos["update_policy"].inputs["rollouts"]:
        replaced = list(dict.fromkeys(["rollouts", *replaced]))
    if here and not replaced:
        rows = run.table("rollouts", key).rows
    else:
        rows = sum(bar.done for bar in infos["generate_rollouts"].progress)
    return Ancestor(key, infos, rows, replaced)
