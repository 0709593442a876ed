"""A recipe in words: what is asked, rewarded, compared and optimised, one line each, for people who look at a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.component import Component
from pipeline.config import Data, Recipe
from pipeline.field_docs import headline_of

Line = tuple[str, str]
"""What it is about, and the words."""


def recipe_in_words(recipe: Recipe, data: Data, references: Sequence[str]) -> list[Line]:
    """The recipe, as far as it decides what an iteration learns.

    Args:
        recipe: validated, defaults filled in.
        data: where prompts come from.
        references: iterations whose policies are frozen for the KL term.
    """
    update, compute = recipe.update_policy, recipe.compute_advantages
    kept = "; groups without a signal are left out" if compute.drop_zero_signal else ""
    return [
        ("prompts", _prompts(recipe, data)),
        ("rollouts", _rollouts(recipe)),
        *_rewards(recipe),
        ("advantages", f"{_told(compute.estimator)}{kept}"),
        ("loss", _told(update.loss)),
        ("KL", _kl(recipe, references)),
        ("update", _update(recipe)),
    ]


def _prompts(recipe: Recipe, data: Data) -> str:
    prepare = recipe.prepare_prompts
    drawn = f", {prepare.oversample:g} times as many drawn" if prepare.oversample > 1 else ""
    preferred = f", {prepare.prefer} ones preferred" if prepare.prefer != "any" else ""
    sources = ", ".join(data.train_labels)
    return f"{prepare.prompts_per_iteration:,} an iteration from {sources}{drawn}{preferred}"


def _rollouts(recipe: Recipe) -> str:
    generate = recipe.generate_rollouts
    cuts = [
        f"{name} {value:g}"
        for name, value, off in (
            ("top_p", generate.top_p, 1.0),
            ("top_k", generate.top_k, 0),
            ("min_p", generate.min_p, 0.0),
        )
        if value != off
    ]
    sampled = ", ".join([f"temperature {generate.temperature:g}", *cuts])
    greedy = " and a greedy one" if generate.greedy else ""
    return (
        f"{generate.group_size} answers{greedy} to each prompt, {sampled}, at most "
        f"{generate.max_completion_tokens:,} tokens, by {generate.engine.name}"
    )


def _rewards(recipe: Recipe) -> Iterator[Line]:
    rewards = recipe.score_rollouts.rewards
    for reward in rewards:
        weight = f", weight {reward.weight:g}" if len(rewards) > 1 or reward.weight != 1 else ""
        yield f"reward{weight}", _told(reward)


def _kl(recipe: Recipe, references: Sequence[str]) -> str:
    named = ", ".join(dict.fromkeys(references))
    update, compute = recipe.update_policy, recipe.compute_advantages
    if compute.needs_reference:
        return f"to {named}, taken off the rewards: coefficient {compute.kl_coef}, {compute.kl_estimator}"
    if update.loss.needs_reference:
        return f"to {named}, in the loss: coefficient {update.loss.kl_coef}, {update.loss.kl_estimator}"
    return "none"


def _update(recipe: Recipe) -> str:
    update = recipe.update_policy
    epochs = f" over {update.epochs} epochs" if update.epochs > 1 else ""
    steps = f"{update.optimizer_steps} optimizer step{'' if update.optimizer_steps == 1 else 's'}"
    against = {"sampling": "the engine's log-probs", "measured": "measured log-probs"}
    ratios = against.get(str(update.old_logprobs), str(update.old_logprobs))
    lora = ", LoRA" if update.lora is not None else ""
    return (
        f"{steps} an iteration{epochs}, learning rate {update.learning_rate:g}{lora}, "
        f"ratios against {ratios}"
    )


def _told(component: Component) -> str:
    """Its name, and what it does in the words of its file; one of the user's own is called by its path."""
    name = str(getattr(component, "path", None) or component.name)
    words = headline_of(type(component))
    return f"{name}: {words}" if words else name
