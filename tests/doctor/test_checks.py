"""Every check on small stored runs: what it must say something of, and the nearest thing it must not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollbook.core.ids import BASE_KEY, prompt_id_of
from rollbook.core.registry import menu
from rollbook.settings.config import Params
from rollbook.settings.presets import presets, read_preset
from rollbook.tables.artifacts import path_of, schema_of
from tests.doctor.spoiled import SPOILED
from tests.doctor.stored import (
    GROUPS,
    KEYS,
    MIXED,
    RIGHT,
    WRONG,
    metrics,
    params_of,
    said,
    store,
    store_advantages,
    store_evaluation,
    write_rows,
)

Case = Callable[[], Params | None]
GRPO = "recipes__grpo__"
UPDATE = "recipes.grpo.update_policy"
REWARDS = "recipes.grpo.score_rollouts.rewards"
LOSS = f"{GRPO}update_policy__loss"
OVERLONG = {"name": "soft_overlong", "max_completion_tokens": 100, "cache_tokens": 10}
HALF = [MIXED] * GROUPS


def _metrics(name: str, *values: float, **beside: float) -> Case:
    """Iterations with these values of a metric, and the same values of others."""

    def case() -> None:
        for key, value in zip(KEYS, values, strict=False):
            metrics(key, **{name: value}, **beside)

    return case


def _rewards(*iterations: Sequence[Sequence[float | None]], **settings: Any) -> Case:
    """Iterations with these rewards."""

    def case() -> Params:
        for key, rewards in zip(KEYS, iterations, strict=False):
            store(key, rewards)
        return params_of(**settings)

    return case


def _answers(
    texts: Sequence[Sequence[str]], rewards: Sequence[Sequence[float]], **beside: Any
) -> Case:
    """An iteration with these answers."""

    def case() -> None:
        store("i0001", rewards, texts, **beside)

    return case


def _both(first: Case, second: Case) -> Case:
    """What two cases store."""

    def case() -> Params | None:
        first()
        return second()

    return case


def _without(kind: str, case: Case) -> Case:
    """A case of whose first iteration one table was not pulled."""

    def changed() -> Params | None:
        params = case()
        path_of(kind, "i0001").unlink()
        return params

    return changed


def _settings(case: Case, **changes: Any) -> Case:
    """A case under other settings."""

    def changed() -> Params:
        case()
        return params_of(**changes)

    return changed


def _components(*iterations: Mapping[str, float], flat: str = "") -> Case:
    """Iterations whose reward functions have these means, with some noise; `flat` is the label of one without."""

    def drawn(label: str, mean: float) -> Sequence[Sequence[float]]:
        numbers, size = random.Random(label), 0.0 if label == flat else 0.1
        return [[numbers.gauss(mean, size) for _ in range(4)] for _ in range(GROUPS)]

    def case() -> Params:
        for key, means in zip(KEYS, iterations, strict=False):
            parts = {label: drawn(label, mean) for label, mean in means.items()}
            totals = [
                [sum(each) for each in zip(*groups, strict=True)]
                for groups in zip(*parts.values(), strict=True)
            ]
            store(key, totals, components=parts)
        rewards = [{"name": "numeric_answer"}, {"name": "length", "target_tokens": 3}]
        return params_of(**{f"{GRPO}score_rollouts__rewards": rewards})

    return case


def _lengths(*pairs: tuple[int, int]) -> Case:
    """Iterations whose right and wrong answers have these numbers of characters."""

    def case() -> None:
        for key, (right, wrong) in zip(KEYS, pairs, strict=True):
            store(key, [MIXED] * GROUPS, [["1" * right, "2" * wrong] * 2] * GROUPS)

    return case


def _evaluations(*means: float, rewards: Sequence[float] = (0.2, 0.5, 0.8)) -> Case:
    """Base policy and iterations of which so many of 40 held-out prompts are right, and their mean rewards."""

    def case() -> None:
        for key, share in zip((BASE_KEY, *KEYS), means, strict=True):
            store_evaluation(key, [float(place < 40 * share) for place in range(40)])
        for key, mean in zip(KEYS, rewards, strict=True):
            store(key, [[mean + 0.1, mean - 0.1] * 2 for _ in range(GROUPS)])

    return case


def _base(length: int, reason: str = "stop", **changes: Any) -> Case:
    """A base policy whose answers have so many characters, evaluated; nothing is trained yet."""

    def case() -> Params:
        store_evaluation(BASE_KEY, [0.0, 1.0] * 20, length, reason)
        return params_of(**changes)

    return case


def _data(train: str, held_out: str) -> Case:
    """One training prompt and one evaluation prompt."""

    def case() -> None:
        for key, set_name, text in (("train", "train", train), ("evaluation", "heldout", held_out)):
            messages = [{"role": "user", "content": text}]
            row = {
                "prompt_id": prompt_id_of(messages, "12"),
                "messages": messages,
                "reference_answer": "12",
                "source": "file",
                "set": set_name,
            }
            write_rows("data", key, [row])

    return case


def _beside(value: float | None, reward: Mapping[str, Any] = OVERLONG) -> Case:
    """Right and wrong answers, and a further reward function that gives all of them this."""

    def case() -> Params:
        parts = {"numeric_answer": HALF, str(reward["name"]): [[value] * 4] * GROUPS}
        store("i0001", HALF, components=parts)
        rewards = [{"name": "numeric_answer"}, reward]
        return params_of(**{f"{GRPO}score_rollouts__rewards": rewards})

    return case


def _votes(spread: float, **settings: Any) -> Case:
    """Answers rewarded by a judge whose four votes have this deviation."""

    def case() -> Params:
        within = [[0.4, 0.6, 0.4, 0.6]] * GROUPS
        store("i0001", within, components={"judge": within}, logged={"judge_spread": spread})
        judge = {
            "name": "judge",
            "base_url": "http://127.0.0.1:1/v1",
            "model": "m",
            "rubric": "r",
            "votes": 4,
        }
        return params_of(**{f"{GRPO}score_rollouts__rewards": [judge]}, **settings)

    return case


def _faded(coefficient: float) -> Case:
    """A KL coefficient that follows a target from 0.01, and ended at this."""

    def case() -> Params:
        metrics("i0001", kl=0.01, kl_coef=coefficient)
        return params_of(**{LOSS: {"name": "dapo", "kl_coef": {"start": 0.01, "target": 0.05}}})

    return case


def _bonus(used: float, **bonus: float) -> Case:
    """Entropy that doubles under a bonus that follows a target and was so large in the last iteration."""

    def case() -> Params:
        for key, entropy in zip(KEYS, (0.8, 1.7), strict=False):
            metrics(key, entropy=entropy)
        steps = [
            {**STEP, "optimizer_step": number, "entropy_coef": coefficient}
            for number, coefficient in enumerate((0.0, used, 0.0))
        ]
        write_rows("optimizer_steps", "i0002", steps)
        return params_of(**{LOSS: {"name": "dapo", "entropy_coef": bonus}})

    return case


def _takes_over(reward: float) -> Case:
    """Different answers at first, of which a quarter is right; then one text for all, with this reward."""

    def case() -> None:
        store("i0001", [[1.0, 0.0, 0.0, 0.0]] * GROUPS, NUMBERS)
        store("i0002", [[reward] * 4] * GROUPS, [["7"] * 4] * GROUPS)

    return case


def _corrected(size: float) -> Case:
    """Engine and trainer differ by so much, and rollout correction is on."""
    update = {"old_logprobs": "measured", "rollout_correction": {"weights": "token_truncate"}}
    changes = {f"{GRPO}update_policy__{name}": value for name, value in update.items()}
    return _settings(_metrics("sampling__sampling_logp_difference__mean", size), **changes)


def _noise(size: float) -> Sequence[Sequence[float]]:
    """Half of the groups all right but for noise of this size, half of them mixed."""
    noisy = [[1 + size * place for place in range(4)] for _ in range(GROUPS)]
    return [*noisy, *[MIXED] * GROUPS]


def _pairs(same: bool, likelihood: float, rewards: Sequence[float] = WRONG) -> Case:
    texts = [[str(g) if same else f"{g}{i}" for i in range(4)] for g in range(GROUPS)]
    mixed = [[1.0] * 4, *[list(rewards)] * (GROUPS - 1)]
    return _answers(texts, mixed, likelihood=likelihood)


def _adaptive_kl(value: float) -> Case:
    return _settings(
        _metrics("kl", value),
        **{LOSS: {"name": "dapo", "kl_coef": {"start": 0.01, "target": 0.05}}},
    )


STEP = {**dict.fromkeys(schema_of("optimizer_steps").columns, 1), "iteration": "i0002"}
ONE_STEP = {f"{GRPO}update_policy__optimizer_steps": 1, f"{GRPO}update_policy__epochs": 1}
NOT_DIVIDED = {f"{GRPO}compute_advantages__estimator": {"name": "group", "scale": "none"}}
FOLLOWS = {LOSS: {"name": "dapo", "kl_coef": {"start": 4.0, "target": 0.05}}}


def _paired(rewards: Sequence[Sequence[float]], min_gap: float = 0.0, **settings: Any) -> Case:
    """An iteration whose estimator made pairs of these rewards."""
    estimator = {"name": "pairs", "min_gap": min_gap}

    def case() -> Params:
        store("i0001", rewards)
        store_advantages("i0001", rewards, estimator)
        return params_of(**{**DPO, f"{GRPO}compute_advantages__estimator": estimator}, **settings)

    return case


def _explained(value_loss: float, *explained: float, **settings: Any) -> Case:
    """Iterations of PPO whose critic explained so much before each update, and had this loss in all of them."""
    beside = {"value_loss": value_loss, **RETURNS}
    return _settings(_metrics("explained_variance", *explained, **beside), **{**PPO, **settings})


def _decided(
    accuracies: Sequence[float], margins: Sequence[float], variant: str = "sigmoid", **settings: Any
) -> Case:
    """Iterations of DPO whose pairs were told apart so far."""

    def case() -> Params:
        for key, accuracy, margin in zip(KEYS, accuracies, margins, strict=True):
            metrics(key, rewards__accuracies=accuracy, rewards__margins=margin)
        return params_of(**{**DPO, LOSS: {"name": "dpo", "variant": variant}, **settings})

    return case


DPO = {f"{GRPO}compute_advantages__estimator": "pairs", LOSS: "dpo"}
CRITIC = f"{GRPO}update_policy__critic"
PPO = {
    f"{GRPO}compute_advantages__estimator": "gae",
    CRITIC: {"name": "head", "learning_rate": 0.01},
}


def _switched(name: str, *values: float, critic: str | None = "network") -> Case:
    """Iterations under a critic, the second of which has another or none."""

    def case() -> Params:
        keys = [f"i{place:04d}" for place in range(1, len(values) + 1)]
        for key, value in zip(keys, values, strict=True):
            metrics(key, **{"value_loss": 0.1, **RETURNS, name: value})
        other: dict[str, Any] = {"extends": "grpo", "update_policy": {"critic": critic}}
        if critic is None:
            other["compute_advantages"] = {"estimator": "group"}
        changes = {"recipes__other": other, f"iterations__{keys[1]}__recipe": "other"}
        return params_of(keys, **PPO, **changes)

    return case


RETURNS = {"returns__mean": 0.5, "returns__std": 0.4}
"""A value loss of 0.08 is that of the best constant, 0.205 that of a critic that says 0."""
CRITIC_RATE = "update_policy.critic.learning_rate"
NEAR = [[1.0, 0.9, 1.0, 0.9]] * GROUPS
ALONE = [[1.0]] * GROUPS + [[0.0]]
KL_ON = {LOSS: {"name": "dapo", "kl_coef": 0.04}}
EMPTY = [["", "5", "", "6"]] * GROUPS
NUMBERS = [[str(10 * group + place) for place in range(4)] for group in range(GROUPS)]
SAME = [["7", "7", f"{group}", "8"] for group in range(GROUPS)]
FEW_CUT = [*[True, False, False, False] * 5, *[False] * 60]
"""The first answer of every fourth group."""

FIRES: dict[str, dict[str, Case]] = {
    "group_size": {
        "two": _rewards([MIXED[:2]] * GROUPS, **{f"{GRPO}generate_rollouts__group_size": 2})
    },
    "zero_signal": {"two kinds of prompts": _rewards([RIGHT, WRONG] * 10)},
    "difficulty": {
        "easy": _rewards([RIGHT] * GROUPS + [WRONG]),
        "hard": _rewards([WRONG] * GROUPS + [RIGHT]),
        "learned": _rewards(HALF, [RIGHT] * GROUPS),
        "unlearned": _rewards(HALF, [WRONG] * GROUPS),
        "groups of one beside": _rewards([RIGHT] * GROUPS + [WRONG[:1]] * GROUPS),
    },
    "value_loss": {
        "rises": _settings(_metrics("value_loss", 0.1, 0.11, 0.2, **RETURNS), **PPO),
        "stays, where nothing is learned": _settings(
            _metrics("value_loss", 0.1, 0.1, 0.1, **RETURNS), **PPO
        ),
        "worse than saying nothing": _settings(
            _metrics("value_loss", 0.4, 0.4, 0.4, **RETURNS), **PPO
        ),
    },
    "explained_variance": {
        "nothing": _explained(0.1, 0.0, 0.01, 0.0),
        "nothing, of single answers": _explained(
            0.1, 0.0, 0.01, 0.0, **{f"{GRPO}generate_rollouts__group_size": 1}
        ),
        "nothing, slowly": _explained(
            0.1, 0.0, 0.01, 0.0, **{f"{GRPO}update_policy__critic": {"name": "head"}}
        ),
        "worse than nothing": _explained(0.1, 0.0, 0.2, -1.5),
        "nothing any more": _explained(0.5, 0.0, -0.1, 0.0),
    },
    "pairs_few": {
        "all alike": _paired([*HALF[:2], *[RIGHT] * 2 * GROUPS]),
        "a gap that most lack": _paired([*HALF[:2], *NEAR, *NEAR], min_gap=0.5),
    },
    "pairs_easy": {"decided": _decided((0.5, 0.97, 1.0), (0.1, 3.2, 8.0))},
    "kl_assumed": {
        "an estimator": _settings(
            _metrics("loss", 0.1), **{LOSS: {"name": "dapo", "kl_estimator": "k2"}}
        ),
        "an estimator in the reward": _settings(
            _metrics("loss", 0.1), **{f"{GRPO}compute_advantages__kl_estimator": "k3"}
        ),
        "another reference": _settings(
            _metrics("loss", 0.1, 0.1, 0.1), iterations__i0003__reference="i0002"
        ),
        "a coefficient that faded": _faded(1e-6),
        "a KL of nothing": _settings(_metrics("kl", 0.0, 0.0, 0.0), **KL_ON),
        "a policy that gets no gradient": _settings(
            _metrics("kl", 0.0, 0.0, 0.0, grad_norm=0.0), **KL_ON
        ),
        "a reference that is trained": _settings(
            _metrics("kl", 0.0, 0.0, 0.0),
            **KL_ON,
            **ONE_STEP,
            iterations__i0003__reference="i0002",
        ),
        "a reference that many steps leave": _settings(
            _metrics("kl", 0.0, 0.0, 0.0), **KL_ON, iterations__i0003__reference="i0002"
        ),
    },
    "kl_drift": {"far": _settings(_metrics("kl", 0.1, 0.9), **KL_ON), "target": _adaptive_kl(0.2)},
    "kl_strength": {
        "as strong": _settings(
            _metrics("kl", 0.02, 0.02, advantages__std=1.0),
            **{LOSS: {"name": "dapo", "kl_coef": 4.0}},
        ),
        "one that has grown": _settings(
            _metrics("kl", 0.02, 0.02, advantages__std=1.0, kl_coef=8.0), **FOLLOWS
        ),
    },
    "clip_share": {"three in a row": _metrics("clip_ratio__region_mean", 0.2, 0.2, 0.2)},
    "ratio_blowup": {
        "KL": _metrics("kl_old", 0.2, ratio__max=2.0),
        "one token": _metrics("ratio__max", 2000.0, kl_old=0.01),
        "KL alone": _metrics("kl_old", 0.2),
    },
    "entropy_blowup": {
        "doubled": _metrics("entropy", 0.8, 1.7),
        "a fixed bonus": _settings(
            _metrics("entropy", 0.8, 1.7), **{LOSS: {"name": "dapo", "entropy_coef": 0.5}}
        ),
        "a bonus that grew": _bonus(0.4, target=0.5),
        "a bonus with a high target": _bonus(0.4, target=3.0),
        "a bonus that starts high": _bonus(1.0, target=0.5, start=1.0),
        "a bonus that was not used": _bonus(0.0, target=0.5),
        "a bonus that nobody knows of": _settings(
            _metrics("entropy", 0.8, 1.7),
            **{LOSS: {"name": "dapo", "entropy_coef": {"target": 0.5}}},
        ),
    },
    "entropy_collapse": {
        "half right": _both(_rewards(HALF, HALF, HALF), _metrics("entropy", 1.0, 0.5, 0.02)),
    },
    "length_bias": {"wrong ones grow": _lengths((3, 3), (3, 5), (3, 8))},
    "truncation": {
        "all cut": _answers(NUMBERS, HALF, cut=[True]),
        "few cut, and paid": _answers(NUMBERS * 5, HALF * 5, cut=FEW_CUT),
    },
    "token_limit": {
        "training": _base(8),
        "cut off there": _base(7, "length"),
        "training alone": _base(3, **{f"{GRPO}generate_rollouts__max_completion_tokens": 2}),
    },
    "noisy_grader": {
        "noise": _rewards(_noise(1e-3)),
        "judge": _votes(0.15),
        "judge, not divided": _votes(0.15, **NOT_DIVIDED),
    },
    "reward_and_evaluation": {
        "opposite": _evaluations(0.5, 0.9, 0.5, 0.2),
        "another reward": _settings(
            _evaluations(0.5, 0.9, 0.5, 0.2),
            **{f"{GRPO}score_rollouts__rewards": [{"name": "length", "target_tokens": 3}]},
        ),
        "both fall": _evaluations(0.5, 0.9, 0.5, 0.2, rewards=(0.8, 0.5, 0.2)),
    },
    "component_conflict": {
        "opposite": _components(
            {"numeric_answer": 0.8, "length": 0.1},
            {"numeric_answer": 0.5, "length": 0.5},
            {"numeric_answer": 0.2, "length": 0.9},
        )
    },
    "winning_answers": {
        "empty": _answers(EMPTY, HALF),
        "same": _answers(SAME, [[1.0, 1.0, 0.0, 0.0]] * GROUPS),
        "won": _takes_over(1.0),
        "looping": _answers(
            [[f"{g}0" + "abc" * 20, f"{g}1", f"{g}2" + "abc" * 20, f"{g}3"] for g in range(GROUPS)],
            HALF,
        ),
    },
    "diversity": {"one wrong answer": _pairs(True, 0.99)},
    "repeated_samples": {"unlikely and equal": _pairs(True, 0.1)},
    "engine_mismatch": {
        "far": _metrics("sampling__sampling_logp_difference__mean", 0.2),
        "corrected": _corrected(0.2),
    },
    "stale_data": {
        "five": _settings(_metrics("optimizer_step", 5), **{f"{GRPO}update_policy__epochs": 5})
    },
    "evaluation_leak": {
        "white space": _data("7+5=", " 7 + 5 = "),
        "case": _data("What is it?", "what is IT"),
    },
    "reward_values": {
        "constant": _rewards([RIGHT] * GROUPS),
        "failed": _answers(NUMBERS, HALF, logged={"error": "ValueError: no such luck"}),
        "missing": _rewards([[1.0, None, 0.0, None]] * GROUPS),
        "at a bound": _rewards([[0.0] * 4] * 40 + [[0.3, 1.0, 0.7, 0.5]]),
        "a function that applies to nothing": _beside(None),
        "a function that is 0": _beside(0.0, {"name": "length", "target_tokens": 3}),
        "a penalty for all": _beside(-1.0),
        "a function that says nothing": _components(
            {"numeric_answer": 0.5, "length": 0.5},
            {"numeric_answer": 0.5, "length": 0.5},
            flat="length",
        ),
    },
}
SILENT: dict[str, dict[str, Case]] = {
    "group_size": {
        "three": _rewards([MIXED[:3]] * GROUPS, **{f"{GRPO}generate_rollouts__group_size": 3}),
        "not divided": _rewards(
            [MIXED[:2]] * GROUPS,
            **{
                f"{GRPO}generate_rollouts__group_size": 2,
                f"{GRPO}compute_advantages__estimator": {"name": "group", "scale": "none"},
            },
        ),
    },
    "zero_signal": {
        "as the rewards say": _rewards([RIGHT] * 15 + [[1.0, 1.0, 1.0, 0.0]] * 5),
        "few groups": _rewards([RIGHT, WRONG] * 2),
        "a critic, to which equal rewards say something": _rewards([RIGHT, WRONG] * 10, **PPO),
    },
    "difficulty": {
        "half of them": _rewards([RIGHT] * 10 + HALF),
        "one answer to a prompt": _rewards(
            ALONE, ALONE, **PPO, **{f"{GRPO}generate_rollouts__group_size": 1}
        ),
    },
    "value_loss": {
        "falls": _settings(_metrics("value_loss", 0.13, 0.11, 0.09, **RETURNS), **PPO),
        "is below that of a constant": _settings(
            _metrics("value_loss", 0.076, 0.076, 0.076, **RETURNS), **PPO
        ),
        "two iterations": _settings(_metrics("value_loss", 0.1, 0.2, **RETURNS), **PPO),
        "no critic any more": _metrics("value_loss", 0.1, 0.11, 0.2, **RETURNS),
        "a sum over tokens": _settings(
            _metrics("value_loss", 40.0, 41.0, 42.0, **RETURNS),
            **{**PPO, CRITIC: {"name": "head", "learning_rate": 0.01, "aggregation": "token_sum"}},
        ),
        "another critic": _switched("value_loss", 0.1, 0.11, 0.2),
    },
    "explained_variance": {
        "learns": _explained(0.1, 0.0, 0.2, 0.4),
        "a critic that begins": _explained(0.1, 0.0, -0.5),
        "another critic that begins": _switched("explained_variance", 0.0, 0.2, 0.0),
        "one that begins anew": _switched("explained_variance", 0.0, 0.0, 0.1, 0.0, critic=None),
    },
    "pairs_few": {
        "half of them": _paired(HALF + [RIGHT] * GROUPS),
        "few groups": _paired([RIGHT] * 3),
        "may be chance": _paired([*HALF[:3], *[RIGHT] * (GROUPS - 3)]),
        "no pairs wanted": _rewards([RIGHT] * GROUPS),
    },
    "pairs_easy": {
        "undecided": _decided((0.5, 0.7, 0.8), (0.1, 0.3, 0.6)),
        "decided, not far": _decided((0.5, 1.0, 1.0), (0.1, 0.3, 0.6)),
        "came back": _decided((0.5, 1.0, 0.8), (0.1, 5.0, 2.0)),
        "a margin that is a goal": _decided((1.0, 1.0, 1.0), (5.0, 5.0, 5.0), "ipo"),
        "its own pairs again": _decided(
            (1.0, 1.0, 1.0), (5.0, 5.0, 5.0), **{f"{GRPO}update_policy__epochs": 3}
        ),
        "a reference that follows": _decided(
            (0.5, 1.0, 1.0),
            (0.1, 5.0, 5.0),
            iterations__i0002__reference="i0001",
            iterations__i0003__reference="i0002",
        ),
    },
    "kl_assumed": {
        "the shipped recipe": _metrics("loss", 0.1),
        "a coefficient that shrank": _faded(1e-3),
        "off on purpose": _settings(
            _metrics("loss", 0.1), **{LOSS: {"name": "dapo", "kl_coef": 0.0, "kl_estimator": "k2"}}
        ),
        "on": _settings(_metrics("kl", 0.0, 0.1, 0.1), **KL_ON),
    },
    "kl_drift": {
        "near": _settings(_metrics("kl", 0.1, 0.2), **KL_ON),
        "came back": _settings(_metrics("kl", 0.9, 0.1), **KL_ON),
        "target": _adaptive_kl(0.1),
    },
    "kl_strength": {
        "DeepSeekMath's": _settings(_metrics("kl", 0.5, 0.5, advantages__std=1.0), **KL_ON),
        "nobody knows what has become of it": _settings(
            _metrics("kl", 0.02, 0.02, advantages__std=1.0), **FOLLOWS
        ),
    },
    "clip_share": {
        "only the first": _metrics("clip_ratio__region_mean", 0.3, 0.2, 0.1),
        "whole answers": _settings(
            _metrics("clip_ratio__region_mean", 0.6, 0.6, 0.6), **{LOSS: {"name": "gspo"}}
        ),
    },
    "ratio_blowup": {"healthy": _metrics("ratio__max", 31.0, kl_old=0.035)},
    "entropy_blowup": {
        "falls": _metrics("entropy", 0.9, 0.3),
        "from nothing": _metrics("entropy", 0.01, 0.1),
    },
    "entropy_collapse": {
        "right": _both(
            _rewards(HALF, HALF, [RIGHT] * GROUPS + [MIXED]), _metrics("entropy", 1.0, 0.5, 0.02)
        )
    },
    "length_bias": {
        "all grow": _lengths((3, 3), (5, 5), (8, 8)),
        "neither": _lengths((3, 3), (3, 3), (3, 3)),
    },
    "truncation": {
        "all end": _answers(NUMBERS, HALF),
        "few cut, and not paid": _answers(NUMBERS * 5, [MIXED[::-1]] * 5 * GROUPS, cut=FEW_CUT),
    },
    "token_limit": {"fits": _base(3), "just fits": _base(7)},
    "noisy_grader": {
        "layout": _rewards([[1.0, 1.0, 1.0, 1.01]] * GROUPS + HALF),
        "not divided": _rewards(
            _noise(1e-3),
            **NOT_DIVIDED,
        ),
        "judge": _votes(0.1),
    },
    "reward_and_evaluation": {
        "both rise": _evaluations(0.3, 0.4, 0.5, 0.6),
        "evaluation within its noise": _evaluations(0.5, 0.55, 0.5, 0.5),
    },
    "component_conflict": {
        "both rise": _components(
            {"numeric_answer": 0.2, "length": 0.1}, {"numeric_answer": 0.5, "length": 0.5}
        ),
        "noise": _components(
            {"numeric_answer": 0.5, "length": 0.5}, {"numeric_answer": 0.49, "length": 0.51}
        ),
    },
    "winning_answers": {
        "taken over for nothing": _takes_over(0.0),
        "empty ones lose": _answers(EMPTY, [[0.0, 1.0, 0.0, 1.0]] * GROUPS),
        "yes and no": _answers(
            [["yes", "yes", "yes", "no"]] * GROUPS,
            [[1.0, 1.0, 1.0, 0.0]] * 10 + [[0.0, 0.0, 0.0, 1.0]] * 10,
            references=["yes"] * 10 + ["no"] * 10,
        ),
        "all different": _answers(NUMBERS, HALF),
        "nobody knows what was asked": _without(
            "prompts", _answers(SAME, [[1.0, 1.0, 0.0, 0.0]] * GROUPS)
        ),
    },
    "diversity": {"solved": _pairs(True, 0.99, RIGHT), "many wrong answers": _pairs(False, 0.01)},
    "repeated_samples": {"likely and equal": _pairs(True, 0.999), "different": _pairs(False, 0.1)},
    "engine_mismatch": {
        "rounding": _metrics("sampling__sampling_logp_difference__mean", 0.004),
        "renormalised": _settings(
            _metrics("sampling__sampling_logp_difference__mean", 0.2),
            **{
                f"{GRPO}generate_rollouts__top_p": 0.9,
                f"{GRPO}update_policy__old_logprobs": "measured",
            },
        ),
    },
    "stale_data": {
        "four": _settings(_metrics("optimizer_step", 5), **{f"{GRPO}update_policy__epochs": 4})
    },
    "evaluation_leak": {"another sum": _data("7+5=", "75="), "another sign": _data("7+5=", "7-5=")},
    "reward_values": {
        "right and wrong": _rewards([WRONG] * 40 + [RIGHT]),
        "a penalty for none": _beside(0.0),
        "few missing": _rewards([[1.0, 0.0, 1.0, 0.5]] * GROUPS + [[None] * 4]),
    },
}


def _listed(cases: Mapping[str, Mapping[str, Case]]) -> list[Any]:
    return [
        pytest.param(check, case, id=f"{check}: {name}")
        for check, by_name in cases.items()
        for name, case in by_name.items()
    ]


@pytest.mark.parametrize(("check", "case"), _listed(FIRES))
def test_fires(project: Path, check: str, case: Case) -> None:
    found = said(check, case())
    assert len(found) == 1, found
    assert found[0].check == check
    assert found[0].evidence
    assert found[0].change.now != found[0].change.suggested


@pytest.mark.parametrize(("check", "case"), _listed(SILENT))
def test_does_not_fire(project: Path, check: str, case: Case) -> None:
    assert said(check, case()) == []


@pytest.mark.parametrize(
    ("check", "case", "grade"),
    [
        ("difficulty", FIRES["difficulty"]["easy"], "warning"),
        ("difficulty", FIRES["difficulty"]["learned"], "note"),
        ("engine_mismatch", _metrics("sampling__sampling_logp_difference__mean", 0.6), "serious"),
        ("engine_mismatch", _corrected(0.2), "warning"),
        ("engine_mismatch", _corrected(0.6), "serious"),
        ("explained_variance", FIRES["explained_variance"]["nothing"], "note"),
        ("explained_variance", FIRES["explained_variance"]["worse than nothing"], "warning"),
        ("explained_variance", FIRES["explained_variance"]["nothing any more"], "warning"),
        ("entropy_blowup", _metrics("entropy", 0.8, 1.7, 0.8), "warning"),
        ("entropy_blowup", _metrics("entropy", 0.8, 1.7, 1.7), "serious"),
        (
            "reward_values",
            _rewards([[1.0, None, None, None], [0.0, None, None, None]] * 10),
            "serious",
        ),
        ("truncation", FIRES["truncation"]["all cut"], "serious"),
        ("zero_signal", FIRES["zero_signal"]["two kinds of prompts"], "serious"),
        ("zero_signal", _rewards([RIGHT, WRONG] * 10 + [MIXED] * 7), "warning"),
    ],
)
def test_grades(project: Path, check: str, case: Case, grade: str) -> None:
    [found] = said(check, case())
    assert found.grade == grade


@pytest.mark.parametrize(
    ("check", "name", "setting", "suggested"),
    [
        ("kl_assumed", "a KL of nothing", f"{UPDATE}.learning_rate", "0.003"),
        ("kl_assumed", "a policy that gets no gradient", REWARDS, "one that tells answers apart"),
        ("kl_assumed", "a reference that is trained", "iterations.i0003.reference", "i0000"),
        ("kl_assumed", "a reference that many steps leave", f"{UPDATE}.learning_rate", "0.003"),
        ("kl_drift", "target", f"{UPDATE}.loss.kl_coef.start", "0.03"),
        ("kl_strength", "as strong", f"{UPDATE}.loss.kl_coef", "0.15"),
        ("kl_strength", "one that has grown", f"{UPDATE}.loss.kl_coef.start", "0.075"),
        ("entropy_blowup", "doubled", f"{UPDATE}.learning_rate", "3.0e-5"),
        ("entropy_blowup", "a fixed bonus", f"{UPDATE}.loss.entropy_coef", "0.05"),
        ("entropy_blowup", "a bonus that grew", f"{UPDATE}.loss.entropy_coef.max", "0.04"),
        (
            "entropy_blowup",
            "a bonus with a high target",
            f"{UPDATE}.loss.entropy_coef.target",
            "0.4",
        ),
        (
            "entropy_blowup",
            "a bonus that starts high",
            f"{UPDATE}.loss.entropy_coef.target",
            "0.25",
        ),
        ("entropy_blowup", "a bonus that was not used", f"{UPDATE}.learning_rate", "3.0e-5"),
        (
            "entropy_blowup",
            "a bonus that nobody knows of",
            f"{UPDATE}.loss.entropy_coef",
            "a lower target, if it was above 0 in these iterations",
        ),
        ("reward_and_evaluation", "opposite", "data.train", "more prompts, or other ones"),
        ("reward_and_evaluation", "another reward", REWARDS, "[{name: numeric_answer}]"),
        ("reward_and_evaluation", "both fall", f"{UPDATE}.learning_rate", "0.0001"),
        ("noisy_grader", "judge, not divided", f"{REWARDS}[0].votes", "16"),
    ],
)
def test_what_is_suggested_mends_the_cause(
    project: Path, check: str, name: str, setting: str, suggested: str
) -> None:
    [found] = said(check, FIRES[check][name]())
    assert (found.change.setting, found.change.suggested) == (setting, suggested)


@pytest.mark.parametrize(
    ("check", "name", "words"),
    [
        ("ratio_blowup", "KL", "moved the policy by 0.2 nats per token"),
        ("ratio_blowup", "one token", "made a token 2,000 times as likely"),
    ],
)
def test_the_title_has_what_is_beyond_its_limit(
    project: Path, check: str, name: str, words: str
) -> None:
    [found] = said(check, FIRES[check][name]())
    assert words in found.title


def test_the_worst_update_is_the_one_farthest_above_a_limit(project: Path) -> None:
    """A KL of a tenth more than its limit is less than a ratio of ten times its own."""
    metrics("i0001", kl_old=0.11, ratio__max=2.0)
    metrics("i0002", kl_old=0.09, ratio__max=10_000.0)
    [found] = said("ratio_blowup")
    assert found.iterations == KEYS[:2]
    assert "made a token 10,000 times as likely" in found.title


@pytest.mark.parametrize(
    ("check", "name", "line"),
    [
        ("clip_share", "three in a row", "i0003: 20% of tokens"),
        ("engine_mismatch", "far", "i0001: mean 0.2, engine transformers"),
        ("ratio_blowup", "KL alone", "i0001: kl_old 0.2"),
        ("ratio_blowup", "one token", "i0001: kl_old 0.01, ratios up to 2e+03"),
    ],
)
def test_numbers_that_are_not_stored_are_not_shown(
    project: Path, check: str, name: str, line: str
) -> None:
    [found] = said(check, FIRES[check][name]())
    assert found.evidence[-1] == line


def test_shares_end_at_all(project: Path) -> None:
    """The normal distribution does not know that: of 60 groups, 59 equal ones reach beyond."""
    same = [[["7", "7", "7", "7"], ["1", "2", "3", "4"]][group == 0] for group in range(60)]
    store("i0001", [MIXED] * 60, same)
    [found] = said("diversity")
    assert "100%]" in found.evidence[0]


def test_every_check_has_both(project: Path) -> None:
    assert set(FIRES) == set(SILENT) == set(menu("doctor.checks"))


def test_most_checks_have_a_real_run_that_they_find_out() -> None:
    real = {check for run in SPOILED.values() for check in run.checks}
    without = {"component_conflict", "entropy_collapse", "length_bias"}
    assert set(FIRES) - real == without


@pytest.mark.parametrize(
    ("check", "name", "setting", "suggested"),
    [
        ("value_loss", "rises", CRITIC_RATE, "0.1"),
        ("value_loss", "worse than saying nothing", CRITIC_RATE, "0.001"),
        ("explained_variance", "nothing", "compute_advantages.estimator", "group"),
        (
            "explained_variance",
            "nothing, of single answers",
            "compute_advantages.estimator",
            "reinforce_plus_plus",
        ),
        ("explained_variance", "nothing, slowly", CRITIC_RATE, "0.003"),
        ("explained_variance", "worse than nothing", CRITIC_RATE, "0.001"),
        ("explained_variance", "nothing any more", CRITIC_RATE, "0.001"),
        ("pairs_few", "all alike", "prepare_prompts.prefer", "informative"),
        ("pairs_few", "a gap that most lack", "compute_advantages.estimator.min_gap", "0.25"),
    ],
)
def test_what_is_changed_for_pairs_and_critics(
    project: Path, check: str, name: str, setting: str, suggested: str
) -> None:
    [found] = said(check, FIRES[check][name]())
    assert (found.change.setting, found.change.suggested) == (f"recipes.grpo.{setting}", suggested)


def test_a_reference_to_move_on_to(project: Path) -> None:
    [found] = said("pairs_easy", FIRES["pairs_easy"]["decided"]())
    assert (found.iterations, found.change.setting) == (KEYS[1:], "iterations.i0003.reference")
    assert found.change.now == "i0000" and found.change.suggested.startswith("i0002, ")


@pytest.mark.parametrize("name", presets())
def test_published_recipes_are_not_suspected_for_their_settings(project: Path, name: str) -> None:
    """A coefficient that is written as 0 is meant, whatever stands beside it."""
    rewards = {"score_rollouts": {"rewards": [{"name": "numeric_answer"}]}}
    recipe = {**rewards, **read_preset(name).settings}
    metrics("i0001", optimizer_step=1)
    params = params_of(recipes__grpo=recipe)
    assert [said(check, params) for check in ("kl_assumed", "stale_data")] == [[], []]


def test_most_spoiled_runs_differ_in_one_setting() -> None:
    """At least eight of the spoiled runs differ from the healthy one in nothing but the one setting."""
    alone = [run for run in SPOILED.values() if not run.beside]
    assert len(alone) >= 8
