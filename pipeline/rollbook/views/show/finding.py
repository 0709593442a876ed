"""From what someone typed to the rollout, group, prompt or policy that it names.

i0003/4a7f…/02     a rollout, a group without its last part; both with eval:<set>/ before them in an evaluation
4a7f…              a prompt, or a policy by its digest
i0003              a policy

Each part but the set may be cut short as long as it is the beginning of one thing only. An id of a rollout says which
iteration's tables to open; ids of prompts are looked up in the tables of prompts, which have one row per prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from rollbook.core.errors import ArtifactError, closest
from rollbook.core.hashing import FACTS_FILE
from rollbook.core.ids import EVALUATION, parts_of, parts_of_group
from rollbook.project.ancestry import EMPTY, GET, SHORTEST_DIGEST
from rollbook.project.run.policies import recorded_digest
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import ROOT, path_of

CANDIDATES = 10
"""Ids named where one is not unique."""
NEAREST = 3
"""Ids named where there is none such."""
HEX = re.compile(r"[0-9a-f]+")
DATA = ("evaluation", "train")


@dataclass(frozen=True)
class Found:
    """What an id names.

    Attributes:
        kind: rollout, group, prompt or policy.
        id: the whole of it; of a policy its iteration.
        key: iteration whose tables hold it; empty for a prompt.
    """

    kind: str
    id: str
    key: str = ""

    @property
    def table(self) -> str:
        """Kind of the table that holds a rollout or group."""
        return table_of(self.id)


def table_of(identity: str) -> str:
    """Kind of the table that holds the rollout or group of this id."""
    return "evaluations" if identity.startswith(EVALUATION) else "rollouts"


def find(run: Store, text: str) -> Found:
    """What `text` names.

    Raises:
        ArtifactError: if it names nothing or several things; the message says which ids come near.
    """
    text = text.strip().rstrip("/")
    if (Path(text) / FACTS_FILE).is_file():
        return _by_name(run, recorded_digest(Path(text)))
    if Path(text).parent == ROOT / "policies":
        return _by_name(run, Path(text).name)
    if "/" in text or text.startswith(EVALUATION):
        return _in_iteration(run, text)
    return _by_name(run, text)


def _in_iteration(run: Store, text: str) -> Found:
    """A rollout or group: an iteration, a prompt, and the place among its answers."""
    table = table_of(text)
    keys = run.keys_with(table)
    parts = parts_of(text, {*keys, *run.made_keys})
    if parts is None:
        raise ArtifactError(
            f"{text!r} has more parts than an id of a rollout",
            "<iteration>/<prompt>/<number>; in an evaluation with eval:<set>/ before it",
        )
    if not keys:
        raise ArtifactError(
            f"there are no {table} on disk",
            GET,
        )
    head, wanted = parts.head, parts.iteration
    if wanted not in keys and (wanted in run.made_keys or run.md5(table, wanted)):
        raise ArtifactError(
            f"{path_of(table, wanted)}: is not on disk", run.fetch_hint(table, wanted)
        )
    key = _one(text, [f"{head}{each}" for each in keys], f"{head}{wanted}").removeprefix(head)
    stored = run.table(table, key)
    groups = pc.unique(stored.column("group_id")).to_pylist()
    group = _one(text, groups, f"{head}{key}/{parts.prompt_id}")
    if not parts.sample:
        return Found("group", group, key)
    rollouts = stored.where("group_id", group, ["rollout_id"])["rollout_id"].to_pylist()
    begin = f"{group}/{parts.sample}"
    if not any(each.startswith(begin) for each in rollouts):  # as a number: 2 for 02
        width = max(len(each.rpartition("/")[2]) for each in rollouts)
        begin = f"{group}/{parts.sample.zfill(width)}"
    return Found("rollout", _one(text, rollouts, begin), key)


def prompt_in(found: Found) -> Found:
    """The prompt that a rollout or group is about.

    Raises:
        ArtifactError: if it is a policy.
    """
    if found.kind == "policy":
        raise ArtifactError(
            f"{found.id} is a policy, and --over-time follows a prompt", "give the id of a prompt"
        )
    if found.kind == "prompt":
        return found
    group = found.id.rpartition("/")[0] if found.kind == "rollout" else found.id
    return Found("prompt", parts_of_group(group).prompt_id)


def _by_name(run: Store, text: str) -> Found:
    """A policy by iteration or digest, or a prompt."""
    if text in run.made_keys:
        return Found("policy", text, text)
    prompts = _prompts(run, text) if HEX.fullmatch(text) else []
    policies: dict[str, str] = {}
    if HEX.fullmatch(text) and len(text) >= SHORTEST_DIGEST and not (len(text) == 16 and prompts):
        for key in run.made_keys:
            if (digest := run.policy_digest(key)).startswith(text):
                policies.setdefault(digest, key)
    keys = [key for key in run.made_keys if text and key.startswith(text)]
    names = {
        **{prompt: Found("prompt", prompt) for prompt in prompts},
        **{digest: Found("policy", key, key) for digest, key in policies.items()},
        **{key: Found("policy", key, key) for key in keys},
    }
    if len(names) == 1:
        return next(iter(names.values()))
    if names:
        raise _ambiguous(text, [f"{found.kind} {name}" for name, found in names.items()])
    known = [*run.made_keys, *(_prompts(run, "") if HEX.fullmatch(text) else ())]
    if not known or run.md5("policies", text):
        raise ArtifactError(f"nothing of {text!r} is in the workspace" if known else EMPTY, GET)
    raise _unknown(text, known)


def _prompts(run: Store, beginning: str) -> list[str]:
    """Prompts whose id begins so: those that were asked, else those in the data."""
    found: set[str] = set()
    evaluation, train = (("data", name) for name in DATA)
    asked = [("prompts", key) for key in reversed(run.keys_with("prompts"))]
    for places in ([evaluation, *asked], [train]):
        for kind, key in places:
            if not run.has(kind, key):
                continue
            ids = run.table(kind, key).column("prompt_id")
            if beginning:
                ids = ids.filter(pc.starts_with(ids, beginning))
            found.update(ids.to_pylist())
            if beginning in found:
                return [beginning]
        if found:
            break
    return sorted(found)


def _one(text: str, names: Sequence[str], beginning: str) -> str:
    """The one of `names` that is `beginning`, or begins with it."""
    if beginning in names:
        return beginning
    found = [name for name in names if name.startswith(beginning)]
    if not found:
        raise _unknown(text, names, beginning)
    if len(found) > 1:
        raise _ambiguous(text, found)
    return found[0]


def _ambiguous(text: str, names: Sequence[str]) -> ArtifactError:
    shown = [f"  {name}" for name in sorted(names)[:CANDIDATES]]
    more = len(names) - len(shown)
    return ArtifactError(
        "\n".join(
            [
                f"{text!r} is the beginning of {len(names)} ids:",
                *shown,
                *([f"  … and {more} more"] if more else []),
            ]
        ),
        "give more of the one you mean",
    )


def _unknown(text: str, names: Iterable[str], looked_for: str = "") -> ArtifactError:
    """Nearest are iterations by their numbers, and ids that agree with it the longest from the left: ids are hashes.

    Of those that do so equally, the ones with the same end: i0003 for i3.
    """
    wanted = looked_for or text

    def distance(name: str) -> tuple[int, int, str]:
        return -_alike(name, wanted), -_alike(name[::-1], wanted[::-1]), name

    names = [*names]
    near = closest(wanted, names, NEAREST) or sorted(names, key=distance)[:NEAREST]
    hint = f"nearest: {', '.join(near)}" if near else GET
    return ArtifactError(f"there is no rollout, group, prompt or policy {text!r}", hint)


def _alike(one: str, other: str) -> int:
    """Characters that two texts have in common from the left."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
