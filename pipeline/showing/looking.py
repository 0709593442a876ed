"""From an id to facts: the one entry of `rollbook show`."""

from __future__ import annotations

from pipeline.errors import ArtifactError
from pipeline.showing.chain import Chain
from pipeline.showing.facts import Facts
from pipeline.showing.finding import Found, find


def facts_of(text: str, over_time: bool = False) -> Facts:
    """What an id, or the beginning of one, names, and everything that is stored about it.

    Args:
        text: of a rollout, group, prompt or policy.
        over_time: the prompt of it in all iterations, with answers.

    Raises:
        ArtifactError: if it names nothing or several things, or its tables are not on disk or damaged.
    """
    chain = Chain()
    found = find(text, chain)
    if over_time:
        found = _prompt(found)
    # Each kind imports what it needs: a policy is shown without what an advantage takes.
    if found.kind == "rollout":
        from pipeline.showing.rollouts import rollout_facts

        return rollout_facts(found, chain)
    if found.kind == "group":
        from pipeline.showing.groups import group_facts

        return group_facts(found, chain)
    if found.kind == "prompt":
        from pipeline.showing.prompts import prompt_facts

        return prompt_facts(found.id, chain, over_time)
    from pipeline.showing.policies import policy_facts

    return policy_facts(found, chain)


def _prompt(found: Found) -> Found:
    """The prompt that a rollout or group is about.

    Raises:
        ArtifactError: if it is a policy.
    """
    if found.kind == "policy":
        raise ArtifactError(
            f"{found.id} is a policy, and --over-time follows a prompt", "give the id of a prompt"
        )
    parts = found.id.split("/")
    place = {"rollout": -2, "group": -1, "prompt": -1}[found.kind]
    return Found("prompt", parts[place])
