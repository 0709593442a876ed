"""A group: all answers to one prompt in one iteration, side by side."""

from __future__ import annotations

from statistics import fmean, pstdev

from pydantic import ValidationError

from rollbook.core.errors import ArtifactError
from rollbook.core.field_docs import headline_of
from rollbook.core.ids import parts_of_group
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.run import Run
from rollbook.project.run.stored import row_of
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.views.show.answers import AnswerGroup
from rollbook.views.show.decoding import decoder_for
from rollbook.views.show.facts import GroupFacts
from rollbook.views.show.finding import Found
from rollbook.views.show.prompts import evaluation_prompt_of, prompt_of
from rollbook.views.show.rollouts import provenance_of


def group_facts(run: Run, found: Found) -> GroupFacts:
    """Everything about a group.

    Raises:
        ArtifactError: if its table is not on disk, or damaged.
    """
    iteration = run.iteration(found.key)
    group = AnswerGroup(found.id, iteration)
    first = row_of(group.rows["rollouts"])
    if first is None:
        raise ArtifactError(f"{group.completions.path}: has no group {found.id}")
    provenance = provenance_of(group, first["policy_digest"])
    statistics = row_of(group.rows["advantages"]) if "advantages" in group.rows else None
    rewards = [
        answer.reward for answer in group.answers if answer.reward is not None and not answer.greedy
    ]
    mean, std = (fmean(rewards), pstdev(rewards)) if rewards else (None, None)
    name, words = _estimator(iteration) if group.in_training else ("", "")
    return GroupFacts(
        group_id=found.id,
        evaluation_set=parts_of_group(found.id).evaluation_set,
        prompt=prompt_of(
            iteration, first["prompt_id"], decoder_for(provenance.policy_in.key, run)[0]
        )
        if group.in_training
        else evaluation_prompt_of(run, first["prompt_id"], first["prompt"]),
        answers=group.answers,
        mean=statistics["group_mean"] if statistics else mean,
        std=statistics["group_std"] if statistics else std,
        informative=statistics["informative"] if statistics else None,
        kept=sum(bool(answer.kept) for answer in group.answers) if statistics else None,
        estimator=name,
        words=words,
        provenance=provenance,
    )


def _estimator(iteration: Iteration) -> tuple[str, str]:
    """Name of the estimator, and what it does in one line; empty where this Rollbook does not have it."""
    recorded = iteration.settings("compute_advantages").get("compute_advantages", {})
    name = str(recorded.get("estimator", {}).get("name", ""))
    try:
        return name, headline_of(type(ComputeAdvantages.model_validate(recorded).estimator))
    except ValidationError:
        return name, ""
