"""Everything that is stored about what an id names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbook.views.show.finding import find, prompt_in

if TYPE_CHECKING:
    from rollbook.project.run.run import Run
    from rollbook.views.show.facts import Shown


def facts_of(run: Run, text: str, over_time: bool = False) -> Shown:
    """What an id, or the beginning of one, names, and everything that is stored about it.

    Args:
        run: that it is looked up in.
        text: of a rollout, group, prompt or policy.
        over_time: the prompt of it in all iterations, with answers.

    Raises:
        ArtifactError: if it names nothing or several things, or its tables are not on disk or damaged.
    """
    found = find(run, text)
    if over_time:
        found = prompt_in(found)
    # Each kind imports what it needs: a policy is shown without what an advantage takes.
    if found.kind == "rollout":
        from rollbook.views.show.rollouts import rollout_facts

        return rollout_facts(run, found)
    if found.kind == "group":
        from rollbook.views.show.groups import group_facts

        return group_facts(run, found)
    if found.kind == "prompt":
        from rollbook.views.show.prompts import prompt_facts

        return prompt_facts(run, found.id, over_time)
    from rollbook.views.show.policies import policy_facts

    return policy_facts(run, found)
