"""Every preset says where each value comes from, sets the whole of its source, and trains."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.components.prompt_format import PromptFormat
from rollbook.core.component import Model
from rollbook.core.yaml import parse_yaml
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params, resolve_recipes
from rollbook.settings.preset_recipe import Task, preset_recipe
from rollbook.settings.presets import FOLDER, presets, read_preset
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_sections import (
    ComputeAdvantages,
    GenerateRollouts,
    PreparePrompts,
    UpdatePolicy,
)
from rollbook.settings.recipe_words import SIZES
from rollbook.tables.artifacts import path_of, read_facts, read_table
from tests.in_process import make_base, train
from tests.unit.settings.test_params import shipped

PRESETS = presets()
EXPECTED = {
    "cispo",
    "dapo",
    "deepseekmath",
    "dpo",
    "dr_grpo",
    "expert_iteration",
    "gspo",
    "intellect2",
    "open_instruct",
    "ppo",
    "ppo_network",
    "reinforce_plus_plus",
    "rloo",
    "sapo",
    "scale_rl",
    "trl",
    "verl",
}
SECTIONS: dict[str, type[Model]] = {
    "prepare_prompts": PreparePrompts,
    "generate_rollouts": GenerateRollouts,
    "compute_advantages": ComputeAdvantages,
    "update_policy": UpdatePolicy,
}
LEFT_OUT = {
    "prefer_among",  # only with prefer: informative
    "min_p",  # no source cuts with it
    "greedy",  # only remax
    "kl_estimator",  # only where there is a KL
    "kl_bias_correction",  # the same
    "skip_zero_gradient",  # how an update is computed, and not what
    "share_prompts",  # the same
    "lora",  # all published runs train whole weights
    "critic",  # only gae
    *PromptFormat.model_fields,
    "name",
    "path",
}
SMALL: dict[str, Any] = {
    "data__train": [{"name": "arithmetic", "below": 20}],
    "data__evaluation": {},
    "policy__base": {"name": "tiny", "warm_start_steps": 30, "warm_start_batch": 64},
    "recipes__grpo__score_rollouts__rewards": [
        {"name": "format", "pattern": "regex", "regex": ".*[02468]"}
    ],
}
"""A task that a hardly trained policy sometimes solves: an answer that ends in an even digit."""
every_preset = pytest.mark.parametrize("name", PRESETS)


def test_the_menu() -> None:
    assert set(PRESETS) == EXPECTED


@every_preset
def test_the_header_names_source_and_version(name: str) -> None:
    preset = read_preset(name)
    assert re.search(r"arXiv \d{4}\.\d{5}|TRL \d|\(\w+ \d{4}\)", preset.title)
    assert preset.summary.endswith(".")


@every_preset
def test_every_value_says_where_it_comes_from(name: str) -> None:
    lines = read_preset(name).text.splitlines()
    bare = [line for line in lines if not line.endswith(":") and " # " not in line]
    assert not bare
    assert max(map(len, (FOLDER / f"{name}.yaml").read_text().splitlines())) <= 120


@every_preset
def test_every_setting_is_explicit(name: str) -> None:
    settings = read_preset(name).settings
    recipe = _recipe(name)
    for section, cls in SECTIONS.items():
        assert not set(cls.model_fields) - set(settings[section]) - LEFT_OUT, section
    for section, field in (("compute_advantages", "estimator"), ("update_policy", "loss")):
        component = getattr(getattr(recipe, section), field)
        refused = {*LEFT_OUT, *getattr(component, "unused_settings", ())}
        missing = set(type(component).model_fields) - set(settings[section][field]) - refused
        assert not missing, field
    if (critic := recipe.update_policy.critic) is not None:
        missing = set(type(critic).model_fields) - set(settings["update_policy"]["critic"])
        assert not missing - LEFT_OUT
    loss = settings["update_policy"]["loss"]
    assert not recipe.update_policy.loss.has_kl or "kl_bias_correction" in loss


def test_no_preset_sets_half_of_its_source() -> None:
    dr_grpo = _recipe("dr_grpo")
    assert dr_grpo.update_policy.loss.aggregation == "constant_length"
    assert dr_grpo.compute_advantages.estimator.settings()["scale"] == "none"
    dapo = _recipe("dapo")
    clip = dapo.update_policy.loss.settings()
    assert (clip["clip_low"], clip["clip_high"], clip["kl_coef"]) == (0.2, 0.28, 0)
    assert dapo.update_policy.loss.aggregation == "token_mean"
    assert dapo.prepare_prompts.oversample > 1 and dapo.compute_advantages.drop_zero_signal
    overlong = dapo.score_rollouts.rewards[-1].settings()
    assert (overlong["name"], overlong["cache_tokens"]) == ("soft_overlong", 4096)
    assert overlong["max_completion_tokens"] == dapo.generate_rollouts.max_completion_tokens
    assert dapo.update_policy.mask_truncated
    paper = _recipe("deepseekmath").update_policy
    assert (paper.loss.kl_coef, paper.loss.kl_bias_correction) == (0.04, False)
    assert paper.loss.aggregation == "row_mean" and paper.optimizer_steps == 1
    rloo = _recipe("rloo")
    assert rloo.compute_advantages.kl_coef == 0.03 and rloo.update_policy.loss.kl_coef == 0
    assert not rloo.update_policy.loss.uses_ratio, "the paper clips nothing"
    assert rloo.update_policy.loss.aggregation == "row_sum"
    assert _recipe("intellect2").update_policy.loss.settings()["delta"] == 4
    gspo = _recipe("gspo").update_policy.loss
    assert (gspo.ratio, gspo.aggregation) == ("sequence_mean", "row_mean")
    scale_rl = _recipe("scale_rl")
    assert scale_rl.compute_advantages.estimator.settings()["normalize"]
    assert scale_rl.update_policy.loss.settings()["cap"] == 5
    assert scale_rl.update_policy.mask_truncated
    trl = _recipe("trl")
    assert trl.compute_advantages.estimator.settings()["std_ddof"] == 1
    assert _recipe("verl").update_policy.loss.settings()["delta"] == 3
    dpo, imitation = _recipe("dpo"), _recipe("expert_iteration")
    assert dpo.compute_advantages.estimator.makes == "pairs" and dpo.needs_reference
    assert dpo.update_policy.loss.settings()["beta"] == 0.1
    assert (
        dpo.update_policy.rollout_correction == "off" == imitation.update_policy.rollout_correction
    )
    chosen = imitation.compute_advantages.estimator.settings()
    assert (chosen["keep"], chosen["min_reward"]) == (10, 1.0)
    network = _recipe("ppo_network").update_policy
    assert network.critic is not None
    assert (network.critic.learning_rate, network.learning_rate) == (1e-5, 1e-6)
    ppo = _recipe("ppo")
    assert ppo.compute_advantages.estimator.settings()["lam"] == 0.95
    assert ppo.compute_advantages.kl_coef == 0.2 and ppo.generate_rollouts.group_size == 1


@every_preset
def test_sizes_come_from_the_recipe_and_the_method_stays(name: str) -> None:
    task = _task(Params.model_validate(_raw()))
    made = _recipe(name, sizes=True)
    for section, fields in SIZES.items():
        for field in fields:
            assert getattr(getattr(made, section), field) == getattr(
                getattr(task.recipe, section), field
            )
    published = _recipe(name)
    assert made.update_policy.loss == published.update_policy.loss
    assert made.compute_advantages == published.compute_advantages
    rates = [each.update_policy for each in (made, published)]
    if all(each.critic is not None and each.critic.learning_rate for each in rates):
        one, two = (each.critic.learning_rate / each.learning_rate for each in rates)
        assert one == pytest.approx(two)
    for reward in made.score_rollouts.rewards:
        if reward.name == "soft_overlong":
            assert reward.settings()["max_completion_tokens"] == 8
            assert reward.settings()["cache_tokens"] == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Params, Path]:
    """A folder with the base policy; every preset is a recipe, and a branch of two iterations from the base."""
    raw = _raw()
    for name in PRESETS:
        raw["recipes"][name] = _settings(name, sizes=True)
        chain = itertools.pairwise(["i0000", *_keys(name)])
        raw["iterations"] |= {
            key: {"previous": previous, "recipe": name, "reference": "i0000"}
            for previous, key in chain
        }
    params = parse_params(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("presets"))
        make_base(params)
    return params, folder


@every_preset
def test_every_preset_trains_two_iterations(
    name: str, trained: tuple[Params, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    params, folder = trained
    monkeypatch.chdir(folder)
    outputs = train(_keys(name), params)
    policies = {
        read_facts(path_of("policies", key)).content_hash for key in ("i0000", *_keys(name))
    }
    assert len(policies) == 3, "every update changes the parameters"
    for key in _keys(name):
        kept = read_table(path_of("advantages", key), "advantages")[0]["kept"].to_numpy()
        updates, _ = read_table(path_of("updates", key), "updates")
        steps, _ = read_table(path_of("optimizer_steps", key), "optimizer_steps")
        trained_rows = updates["trained"].to_numpy()
        assert trained_rows.any() and not (trained_rows & ~kept).any()
        for column in ("loss", "grad_norm"):
            assert np.isfinite(steps[column].to_numpy()).all()
        assert any(norm > 0 for norm in steps["grad_norm"].to_pylist())
        metrics = outputs[key]["update_policy"].metrics
        assert not math.isnan(metrics["ratio/mean"])


def _keys(name: str) -> list[str]:
    letters = name.replace("_", "").replace("2", "two")
    return [f"{letters}{number:04d}" for number in (1, 2)]


def _raw() -> dict[str, Any]:
    raw = shipped(**SMALL)
    raw["iterations"] = {}
    sizes = raw["recipes"]["grpo"]
    sizes["prepare_prompts"]["prompts_per_iteration"] = 16
    sizes["generate_rollouts"]["group_size"] = 4
    sizes["update_policy"]["optimizer_steps"] = 2
    return raw


def _task(params: Params) -> Task:
    raw = _raw()["recipes"]
    return Task("grpo", resolve_recipes(raw)[0]["grpo"], params.recipes["grpo"])


def _settings(name: str, sizes: bool) -> dict[str, Any]:
    task = _task(Params.model_validate(_raw()))
    return parse_yaml(preset_recipe(read_preset(name), task, sizes), name)


def _recipe(name: str, sizes: bool = False) -> Recipe:
    return Recipe.model_validate(_settings(name, sizes))
