"""A recipe is told from plain settings: those that params.yaml resolves to, and those of older code."""

from __future__ import annotations

from typing import Any

from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_words import (
    recipe_in_words,
    stretches,
)

REWARDS = [{"name": "numeric_answer"}]


def settings(**sections: Any) -> dict[str, Any]:
    recipe = Recipe.model_validate({"score_rollouts": {"rewards": REWARDS}, **sections})
    return recipe.model_dump(mode="json", serialize_as_any=True)


def test_what_is_asked_rewarded_compared_and_optimised() -> None:
    asked = settings(
        prepare_prompts={"prompts_per_iteration": 1200, "oversample": 1.5},
        generate_rollouts={"engine": {"name": "transformers"}, "group_size": 4, "top_p": 0.9},
        compute_advantages={"estimator": {"name": "group"}, "drop_zero_signal": True},
        update_policy={"loss": {"name": "dapo"}, "optimizer_steps": 1, "learning_rate": 1e-6},
    )
    told = dict(recipe_in_words(asked, ["arithmetic", "file"]))
    assert told["prompts"] == "1,200 an iteration from arithmetic, file, 1.5 times as many drawn"
    assert told["rollouts"].startswith(
        "4 answers to each prompt, temperature 1, top_p 0.9, at most"
    )
    assert told["reward"] == "numeric_answer"
    assert told["advantages"] == "group; groups without a signal are left out"
    assert (told["loss"], told["KL"]) == ("dapo", "none")
    assert told["update"] == (
        "1 optimizer step an iteration, learning rate 1e-06, ratios against measured log-probs"
    )


def test_weights_are_told_where_they_say_something() -> None:
    rewards = [*REWARDS, {"name": "format", "pattern": "boxed", "weight": 0.2}]
    several = recipe_in_words(settings(score_rollouts={"rewards": rewards}))
    assert ("reward, weight 1", "numeric_answer") in several
    assert ("reward, weight 0.2", "format") in several


def test_kl_says_where_it_acts_and_towards_what() -> None:
    def kl(**sections: Any) -> str:
        return dict(recipe_in_words(settings(**sections), references=["i0000", "i0000"]))["KL"]

    in_loss = {"loss": {"name": "grpo", "kl_coef": 0.04}}
    assert kl(update_policy=in_loss) == "to i0000, in the loss: coefficient 0.04, k3"
    followed = {"kl_coef": {"start": 0.2, "target": 0.05}}
    assert kl(compute_advantages=followed) == (
        "to i0000, taken off the rewards: coefficient start 0.2, target 0.05, horizon 10000, k1"
    )


def test_a_loss_that_compares_with_the_reference_itself() -> None:
    dpo = settings(compute_advantages={"estimator": "pairs"}, update_policy={"loss": "dpo"})
    told = dict(recipe_in_words(dpo, references=["i0000"]))
    assert told["KL"] == "no term of its own: the loss compares with i0000"
    assert dict(recipe_in_words(dpo))["KL"].endswith("compares with the reference")
    assert "ratios against" not in told["update"]
    assert "critic" not in told


def test_a_critic_has_a_line_of_its_own() -> None:
    ppo = settings(
        compute_advantages={"estimator": "gae"}, update_policy={"critic": {"name": "head"}}
    )
    assert dict(recipe_in_words(ppo))["critic"] == "head"
    told = dict(recipe_in_words(ppo, explained=True))
    assert told["critic"].startswith("head: a critic that is")
    assert "ratios against measured log-probs" in told["update"]


def test_components_are_explained_in_the_words_of_their_files() -> None:
    brief, explained = (
        dict(recipe_in_words(settings(), explained=asked)) for asked in (False, True)
    )
    assert brief["loss"] == "dapo"
    assert explained["loss"].startswith("dapo: ")
    assert len(explained["reward"]) > len("numeric_answer: ")


def test_a_step_of_older_code_is_told_as_far_as_it_was_recorded() -> None:
    older = settings()
    del older["prepare_prompts"]["oversample"], older["update_policy"]["learning_rate"]
    del older["generate_rollouts"]
    older["compute_advantages"]["estimator"] = {"name": "no_longer_there"}
    older["update_policy"]["loss"] = {"name": "dapo", "no_longer_there": 1}
    told = dict(recipe_in_words(older))
    assert "times as many" not in told["prompts"]
    assert "learning rate unknown" in told["update"]
    assert told["rollouts"].startswith("unknown answers")
    assert (told["loss"], told["KL"]) == ("dapo", "none")
    assert "ratios against measured" in told["update"]
    assert told["advantages"] == "no_longer_there"
    assert dict(recipe_in_words({}))["loss"] == "unknown"


def test_neighbours_under_one_recipe_are_one_stretch() -> None:
    assert stretches(["a1", "a2", "b3", "a4"], lambda each: each[0]) == [
        ["a1", "a2"],
        ["b3"],
        ["a4"],
    ]
