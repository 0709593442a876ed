"""The lineage of a policy in facts: for each iteration what was read and made, by which rewards and which code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.ancestry import Ancestor, Ancestry
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import path_of
from rollbook.tables.run_info import RunInfo
from rollbook.views.model_card import evaluated


@dataclass(frozen=True)
class UsedComponent:
    """A component as it was used.

    Attributes:
        name: in params.yaml; of one of the user's own, its path.
        settings: what else was set; what is unset is left out.
    """

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    """One iteration of a lineage.

    Attributes:
        key: of the iteration.
        recipe: its name, if params.yaml still knows it.
        policy, previous_policy: digest of the policy it made, and of the one that it trained on and sampled from.
        previous: key of that one.
        reference: key of the reference policy.
        reference_policy: its digest.
        reference_used: whether its log-probs were measured.
        rollouts: path of the table.
        rollouts_hash: content hash of what was trained on.
        rows: rollouts generated.
        replaced: kinds of tables that were made again since, so that what lies on disk is not what was trained on.
        prompts_hash: content hash of the prompts.
        engine, rewards, estimator, critic, loss: components, as they were; None: there was no critic.
        method: all settings by place, but what is off.
        commits: that its stages ran at, in order.
        code: hash of every source file, by path.
        code_digest: of all of it.
        files: hash of every data file of its components, by path.
        evaluation: scores by set; empty if this policy was not evaluated.
        finished: when its update ended, ISO 8601.
        packages: versions that its update ran with.
    """

    key: str
    recipe: str
    policy: str
    previous: str
    previous_policy: str
    reference: str
    reference_policy: str
    reference_used: bool
    rollouts: str
    rollouts_hash: str
    rows: int
    replaced: Sequence[str]
    prompts_hash: str
    engine: UsedComponent
    rewards: Sequence[UsedComponent]
    estimator: UsedComponent
    critic: UsedComponent | None
    loss: UsedComponent
    method: Mapping[str, str]
    commits: Sequence[str]
    code: Mapping[str, str]
    code_digest: str
    files: Mapping[str, str]
    evaluation: Mapping[str, Mapping[str, float]]
    finished: str
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Lineage:
    """A policy's way from its base.

    Attributes:
        policy: its digest.
        key: of the iteration that made it.
        base, base_policy: name and digest of the base policy.
        base_evaluation: scores of the base policy by set.
        sources: of the training prompts.
        links: iterations, oldest first.
    """

    policy: str
    key: str
    base: str
    base_policy: str
    base_evaluation: Mapping[str, Mapping[str, float]]
    sources: Sequence[UsedComponent]
    links: Sequence[Link]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def lineage_of(run: Store, ancestry: Ancestry, recipes: Mapping[str, str]) -> Lineage:
    """The facts of an ancestry.

    Args:
        run: that it is part of.
        ancestry: of the policy.
        recipes: name of each iteration's recipe, where it is known.
    """
    keys = {ancestry.base_digest: BASE_KEY}
    links = []
    for update in ancestry.updates:
        links.append(_link(run, update, keys, recipes.get(update.key, "")))
        keys[update.digest] = update.key
    data = run.info("prepare_data", BASE_KEY)
    return Lineage(
        policy=ancestry.digest,
        key=ancestry.key,
        base=ancestry.base_name,
        base_policy=ancestry.base_digest,
        base_evaluation=evaluated(run, BASE_KEY, ancestry.base_digest)[1],
        sources=[part_of(source) for source in data.settings["data"]["train"]] if data else [],
        links=links,
    )


def part_of(spec: Mapping[str, Any]) -> UsedComponent:
    """A component from its settings."""
    rest = {
        name: value
        for name, value in spec.items()
        if name not in ("name", "path") and value not in (None, False, "", [], {})
    }
    return UsedComponent(str(spec.get("path") or spec["name"]), rest)


def _link(run: Store, update: Ancestor, keys: Mapping[str, str], recipe: str) -> Link:
    settings, infos = update.settings, update.infos
    measured = infos.get("measure_logprobs", RunInfo())
    reference = measured.inputs.get("reference", "")
    critic = settings["update_policy"]["update"].get("critic")
    commits = [commit for info in infos.values() if (commit := info.environment.git.shown)]
    return Link(
        key=update.key,
        recipe=recipe,
        policy=update.digest,
        previous=keys[update.digest_before],
        previous_policy=update.digest_before,
        reference=keys.get(reference, ""),
        reference_policy=reference,
        reference_used=bool(measured.settings.get("needs_reference")),
        rollouts=path_of("rollouts", update.key).as_posix(),
        rollouts_hash=update.update.inputs["rollouts"],
        rows=update.rollouts,
        replaced=update.replaced,
        prompts_hash=infos["generate_rollouts"].inputs["prompts"],
        engine=part_of(settings["generate_rollouts"]["generate"]["engine"]),
        rewards=[part_of(each) for each in settings["score_rollouts"]["score_rollouts"]["rewards"]],
        estimator=part_of(settings["compute_advantages"]["compute_advantages"]["estimator"]),
        critic=None if critic is None else part_of(critic),
        loss=part_of(settings["update_policy"]["update"]["loss"]),
        method=update.method,
        commits=list(dict.fromkeys(commits)),
        code=update.code,
        code_digest=update.code_digest,
        files={file: of for info in infos.values() for file, of in info.files.items()},
        evaluation=evaluated(run, update.key, update.digest)[1],
        finished=update.update.finished,
        packages=update.environment.packages,
    )
