"""What a stored policy was made from: the chain of updates back to its base, found by digests.

Read from run_info, which stays when policies are pruned. Nothing here looks at what params.yaml says now, but for the
names of recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.artifacts import keys_of, path_of, read_facts, read_json
from pipeline.config import BASE_KEY
from pipeline.errors import ArtifactError, nearest
from pipeline.hashing import FACTS_FILE

TRAINING = (
    "prepare_prompts",
    "generate_rollouts",
    "score_rollouts",
    "compute_advantages",
    "update_policy",
)
"""Stages whose settings make an iteration's method."""
SHORTEST_DIGEST = 4


@dataclass(frozen=True)
class Update:
    """One iteration on the way to a policy.

    Attributes:
        key: of the iteration.
        digest: of the policy it made.
        rollouts: made in it.
        settings: resolved, by stage, as they were when it ran.
        environment: commit and packages its update ran with.
    """

    key: str
    digest: str
    rollouts: int
    settings: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Any]


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
    updates: Sequence[Update]

    @property
    def key(self) -> str:
        """The iteration that made the policy."""
        return self.updates[-1].key if self.updates else BASE_KEY


def find_policy(name: str) -> Path:
    """Folder of a policy given by iteration key, by the first digits of its digest, or by path.

    Raises:
        ArtifactError: if there is none, or several.
    """
    if (Path(name) / FACTS_FILE).is_file():
        return Path(name)
    keys = keys_of("policies")
    if name in keys:
        return path_of("policies", name)
    digests = {key: read_facts(path_of("policies", key)).content_hash for key in keys}
    found = [key for key, digest in digests.items() if digest.startswith(name)]
    if len(name) < SHORTEST_DIGEST or not found:
        raise ArtifactError(
            f"there is no policy {name!r} on disk; {nearest(name, keys)}",
            "give an iteration, the first digits of a digest, or a policy folder; `dvc checkout` restores folders",
        )
    if len({digests[key] for key in found}) > 1:
        raise ArtifactError(f"the digests of {', '.join(found)} all begin with {name!r}; give more")
    return path_of("policies", found[0])


def ancestry_of(digest: str) -> Ancestry:
    """How the policy of this digest came to be.

    Raises:
        ArtifactError: if a run_info file on the way is missing, or rollouts are not those that were trained on.
    """
    updates = {
        info["outputs"]["policies"]: info for info in _all("update_policy") if info["outputs"]
    }
    made: list[Update] = []
    at = digest
    while at in updates and len(made) <= len(updates):
        info = updates[at]
        made.append(_update(info))
        at = info["inputs"]["policies"]
    init = read_json(path_of("run_info/init_policy", BASE_KEY))
    if at != init["outputs"]["policies"]:
        raise ArtifactError(
            f"policy {at[:12]} was made neither by an update that left its run_info here nor by init_policy",
            "run in the project that trained it; `dvc checkout` restores missing run_info",
        )
    return Ancestry(digest, at, init["settings"]["policy"]["base"], made[::-1])


def _all(stage: str) -> list[dict[str, Any]]:
    kind = f"run_info/{stage}"
    return [read_json(path_of(kind, key)) for key in keys_of(kind)]


def _update(info: Mapping[str, Any]) -> Update:
    key = info["iteration"]
    rollouts = path_of("rollouts", key)
    if read_facts(rollouts).content_hash != info["inputs"]["rollouts"]:
        raise ArtifactError(
            f"{rollouts}: is not what the policy of {key} was trained on",
            "run `dvc repro` to bring the run up to date",
        )
    settings = {
        stage: read_json(path_of(f"run_info/{stage}", key))["settings"] for stage in TRAINING
    }
    return Update(
        key,
        info["outputs"]["policies"],
        pq.read_metadata(rollouts).num_rows,
        settings,
        info["environment"],
    )
