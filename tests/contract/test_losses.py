"""Laws of every loss in `pipeline/rollbook/components/losses`, so that a new file is tested on arrival."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rollbook.components.losses.base import Loss, LossInputs
from rollbook.core.registry import build, menu
from rollbook.rl.training.statistics import row_statistics, step_metrics

LOSSES = menu("losses")
OPTIONS: dict[str, dict[str, Any]] = {
    "cispo": {"cap": 1.2},
    "clip_cov": {"cov_low": 0.01, "drop_share": 0.3},
    "gspo": {"clip_low": 0.3, "clip_high": 0.3},
    "kl_cov": {"penalty_share": 0.3},
    "rloo": {"clip_low": 0.9, "clip_high": 2.0},
}
"""What has no default, and settings under which ten tokens are enough to see something."""
ROWS, WIDTH = 6, 5
PAIRS = torch.tensor([[0, 1], [3, 5], [0, 2], [2, 5]])
"""Row 4 has no tokens, and is in none."""
PER_TOKEN = (
    "policy_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "sampling_logprobs",
    "entropies",
    "rollout_weights",
    "policy_mask",
)


@dataclass(frozen=True)
class Variant:
    """Settings that all losses share, and which of the optional inputs there are."""

    options: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join(
            [*(f"{name}={value}" for name, value in self.options.items()), *self.inputs]
        )


VARIANTS = [
    Variant(),
    Variant({"kl_coef": 0.1, "kl_bias_correction": True}),
    Variant({"entropy_coef": 0.05, "off_policy_threshold": 0.06}, ("rollout_weights",)),
    Variant(
        {"kl_coef": 0.1, "kl_bias_correction": False, "kl_estimator": "k2", "entropy_coef": 0.05},
        ("policy_mask", "rollout_weights"),
    ),
    Variant({"ratio": "sequence_mean"}),
    Variant({"ratio": "sequence_mean_token"}, ("rollout_weights",)),
    Variant({"ratio": "sequence_product", "kl_coef": 0.1, "kl_bias_correction": True}),
]


def _inputs(variant: Variant, seed: int = 0) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        share = torch.rand(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        return low + (high - low) * share

    lengths = torch.tensor([5, 3, 1, 4, 0, 2])
    mask = torch.arange(WIDTH) < lengths[:, None]
    mask[0, 2] = False  # a token of a tool inside a row
    chosen = (uniform(0, 1) < 0.7) | (torch.arange(WIDTH) == 0)
    policy = uniform(-2, 0)
    inputs = LossInputs(
        policy_logprobs=policy.requires_grad_(),
        advantages=torch.randn(ROWS, 1, generator=generator, dtype=torch.float64),
        loss_mask=mask,
        window_rows=ROWS,
        window_tokens=int(mask.sum()),
        max_completion_tokens=WIDTH,
        old_logprobs=policy.detach() + uniform(-0.3, 0.3),
        ref_logprobs=uniform(-2, 0),
        sampling_logprobs=policy.detach() + uniform(-0.1, 0.2),
        pairs=PAIRS,
        window_pairs=len(PAIRS),
        window_chosen_tokens=int(mask[PAIRS[:, 0]].sum()),
    )
    if "rollout_weights" in variant.inputs:
        inputs = replace(inputs, rollout_weights=uniform(0, 2))
    if "policy_mask" in variant.inputs:
        count = int((mask & chosen).sum())
        inputs = replace(inputs, policy_mask=chosen, window_policy_tokens=count)
    return _with_policy(inputs, policy)


def _with_policy(inputs: LossInputs, policy: Tensor) -> LossInputs:
    """The same under other log-probs; entropies depend on them, as they do in a model."""
    return replace(inputs, policy_logprobs=policy, entropies=0.5 - 0.3 * policy)


def _part(inputs: LossInputs, rows: Any) -> LossInputs:
    """Some of the rows, in the order asked for, and the pairs among them."""
    parts = {
        item.name: value[rows]
        for item in fields(inputs)
        if isinstance(value := getattr(inputs, item.name), Tensor) and item.name != "pairs"
    }
    assert inputs.pairs is not None
    index = torch.arange(len(inputs.loss_mask))[rows]
    place = torch.full((len(inputs.loss_mask),), -1)
    place[index] = torch.arange(len(index))
    among = place[inputs.pairs]
    return replace(inputs, **parts, pairs=among[(among >= 0).all(-1)])


def _gradient(loss: Loss, inputs: LossInputs, parts: Sequence[LossInputs] = ()) -> Tensor:
    total = sum(loss(part).loss for part in parts or [inputs])
    assert isinstance(total, Tensor)
    (found,) = torch.autograd.grad(
        total, inputs.policy_logprobs, retain_graph=True, allow_unused=True
    )
    return torch.zeros_like(inputs.policy_logprobs) if found is None else found


def _built(name: str, variant: Variant) -> Loss:
    loss = build("losses", {"name": name, **OPTIONS.get(name, {}), **variant.options})
    assert isinstance(loss, Loss)
    return loss


def _has_meaning(name: str, variant: Variant) -> bool:
    loss = type(_built(name, Variant()))
    level = variant.options.get("ratio", "token")
    return level in (*loss.ratio_levels, "token") and not (
        set(variant.options) & set(loss.unused_settings)
    )


def _combinations(names: Sequence[str]) -> list[Any]:
    """Every loss under every variant that has a meaning for it."""
    return [
        pytest.param(name, variant, id=f"{name}-{variant}")
        for name in names
        for variant in VARIANTS
        if _has_meaning(name, variant)
    ]


FRAMED = [name for name in LOSSES if not _built(name, Variant()).needs_pairs]
"""Losses whose rows stand for themselves. Those of pairs have the other laws in
tests/unit/components/losses/test_dpo.py."""
every_loss = pytest.mark.parametrize("name", LOSSES)
every_framed_loss = pytest.mark.parametrize("name", FRAMED)
every_variant = pytest.mark.parametrize(("name", "variant"), _combinations(LOSSES))
every_framed_variant = pytest.mark.parametrize(("name", "variant"), _combinations(FRAMED))


def test_the_menu() -> None:
    assert set(LOSSES) >= {
        *("grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "luspo", "vespo", "gmpo"),
        *("rloo", "dppo", "clip_cov", "kl_cov", "gpg", "reinforce", "dpo", "sft"),
    }


@every_loss
def test_builds_from_defaults_and_survives_its_own_settings(name: str) -> None:
    loss = _built(name, Variant())
    settings = {key: value for key, value in loss.settings().items() if key != "path"}
    assert build("losses", settings) == loss


@every_loss
def test_states_formula_and_source(name: str) -> None:
    module = importlib.import_module(f"rollbook.components.losses.{name}")
    text = module.__doc__ or ""
    assert "loss = " in text, "the docstring of a loss begins with its formula"
    assert re.search(r"arXiv \d{4}\.\d{4,5}", text), "and names the paper"
    assert name == "grpo" or "GRPO" in text, "and says what differs from GRPO"
    source = inspect.getsource(module)
    assert "self.name" not in source, "a loss never branches on its own name"
    assert not re.search(r"^(import|from) torch", source, re.MULTILINE)


@every_loss
def test_refuses_a_ratio_without_a_meaning(name: str) -> None:
    loss = _built(name, Variant())
    assert loss.ratio in loss.ratio_levels
    for level in {"token", "sequence_mean", "sequence_product"} - set(loss.ratio_levels):
        with pytest.raises(ValueError, match="ratio"):
            _built(name, Variant({"ratio": level}))


@every_loss
def test_refuses_settings_that_it_has_no_use_for(name: str) -> None:
    changed = {"aggregation": "row_sum", "kl_coef": 0.1, "off_policy_threshold": 0.5}
    for option in changed.keys() & set(_built(name, Variant()).unused_settings):
        with pytest.raises(ValueError, match=f"no use for `{option}`"):
            _built(name, Variant({option: changed[option]}))


@every_variant
def test_masked_positions_change_neither_loss_nor_gradient(name: str, variant: Variant) -> None:
    loss, inputs = _built(name, variant), _inputs(variant)
    want, slope = loss(inputs).loss, _gradient(loss, inputs)
    for garbage in (float("nan"), float("inf"), -1e30):
        dirty = {
            item: value.where(inputs.loss_mask, garbage)
            for item in PER_TOKEN
            if isinstance(value := getattr(inputs, item), Tensor) and value.is_floating_point()
        }
        dirty["advantages"] = inputs.advantages.expand(ROWS, WIDTH).where(inputs.loss_mask, garbage)
        policy = dirty["policy_logprobs"].detach().requires_grad_()
        other = _with_policy(replace(inputs, **dirty), policy)
        torch.testing.assert_close(loss(other).loss, want, rtol=1e-12, atol=0)
        found = _gradient(loss, other)
        torch.testing.assert_close(found, slope, rtol=1e-12, atol=0)
        assert not found[~inputs.loss_mask].any()


@every_variant
def test_the_width_of_padding_does_not_matter(name: str, variant: Variant) -> None:
    loss, inputs = _built(name, variant), _inputs(variant)

    def wider(value: Tensor) -> Tensor:
        return torch.cat([value, value.new_ones(ROWS, 3)], dim=1)

    grids = {
        item: wider(value)
        for item in ("loss_mask", *PER_TOKEN)
        if isinstance(value := getattr(inputs, item), Tensor)
    }
    grids["loss_mask"][:, WIDTH:] = False
    wide = replace(inputs, **grids)
    torch.testing.assert_close(loss(wide).loss, loss(inputs).loss, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(
        _gradient(loss, inputs, [wide]), _gradient(loss, inputs), rtol=1e-12, atol=1e-15
    )


@every_framed_variant
def test_the_split_into_micro_batches_matters_only_where_a_loss_says_so(
    name: str, variant: Variant
) -> None:
    loss, inputs = _built(name, variant), _inputs(variant)
    whole, agree = _gradient(loss, inputs), []
    assert whole.any()
    for cut in (1, 2, 4):
        parts = [_part(inputs, slice(0, cut)), _part(inputs, slice(cut, None))]
        split = _gradient(loss, inputs, parts)
        agree.append(torch.allclose(split, whole, rtol=1e-10, atol=1e-14))
    assert all(agree) != loss.depends_on_split
    cautions = [text for text in loss.cautions() if "micro_batch_tokens" in text]
    assert len(cautions) == loss.depends_on_split


@every_variant
def test_order_of_rows_does_not_matter(name: str, variant: Variant) -> None:
    loss, inputs = _built(name, variant), _inputs(variant)
    shuffled = _part(inputs, torch.tensor([3, 1, 5, 0, 4, 2]))
    torch.testing.assert_close(
        _gradient(loss, inputs, [shuffled]), _gradient(loss, inputs), rtol=1e-10, atol=1e-14
    )


@every_variant
def test_without_old_logprobs_the_gradient_is_kept(name: str, variant: Variant) -> None:
    """A missing old policy means the current one as a constant, not a ratio that is a constant."""
    loss, inputs = _built(name, variant), _inputs(variant)
    onpolicy = replace(inputs, old_logprobs=None)
    same = replace(inputs, old_logprobs=inputs.policy_logprobs.detach())
    found = _gradient(loss, onpolicy)
    torch.testing.assert_close(found, _gradient(loss, same), rtol=1e-12, atol=0)
    if variant in VARIANTS[:2] and name != "clip_cov":  # nothing is masked, weighed or dropped
        assert found[inputs.loss_mask].all()


@every_framed_loss
def test_on_policy_the_gradient_is_that_of_the_policy_gradient(name: str) -> None:
    """At ratio 1 every loss of the family moves in the direction −A∇ℓ; only weights of rows differ."""
    loss, inputs = _built(name, Variant()), _inputs(Variant())
    found = _gradient(loss, replace(inputs, old_logprobs=None))
    against = found * inputs.advantages >= 0
    assert not (against & (found != 0) & inputs.loss_mask).any()


@every_loss
def test_weights_of_1_and_a_mask_of_all_tokens_change_nothing(name: str) -> None:
    loss, inputs = _built(name, Variant()), _inputs(Variant())
    everything = replace(
        inputs,
        rollout_weights=torch.ones(ROWS, WIDTH, dtype=torch.float64),
        policy_mask=torch.ones(ROWS, WIDTH, dtype=torch.bool),
    )
    torch.testing.assert_close(
        _gradient(loss, everything), _gradient(loss, inputs), rtol=1e-12, atol=1e-15
    )


@every_framed_loss
def test_rollout_weights_and_policy_mask_are_heard_and_spare_the_kl(name: str) -> None:
    """Tokens outside of the mask, and those of weight 0, keep the gradient of their KL and nothing else."""
    variant = Variant({"kl_coef": 0.1, "kl_bias_correction": True})
    loss, inputs = _built(name, variant), _inputs(variant)
    kl_only = _gradient(loss, replace(inputs, advantages=torch.zeros_like(inputs.advantages)))
    plain = _gradient(loss, inputs)
    outside = torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    outside[:, 0] = True
    masked = _gradient(loss, replace(inputs, policy_mask=~outside))
    weights = torch.ones(ROWS, WIDTH, dtype=torch.float64).where(~outside, 0.0)
    weighed = _gradient(loss, replace(inputs, rollout_weights=weights))
    assert not torch.allclose(masked, plain)
    assert not torch.allclose(weighed, plain)
    if name != "kl_cov" and not loss.per_row:  # with a ratio of rows other tokens push this one
        torch.testing.assert_close(masked[:, 0], kl_only[:, 0], rtol=1e-9, atol=1e-12)
    if not loss.weighs_rollouts_itself and name != "kl_cov" and not loss.per_row:
        torch.testing.assert_close(weighed, masked, rtol=1e-12, atol=1e-15)


@every_framed_loss
def test_a_loss_that_is_silent_at_zero_advantage_has_no_gradient_there(name: str) -> None:
    for variant in (each for each in VARIANTS[:3] if _has_meaning(name, each)):
        loss, inputs = _built(name, variant), _inputs(variant)
        quiet = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
        silent = not _gradient(loss, quiet).any()
        assert silent or not loss.silent_at_zero_advantage
        if loss.needs_reference or loss.has_entropy_bonus:
            assert not silent


@every_variant
def test_outputs_are_detached_and_say_nothing_where_masked(name: str, variant: Variant) -> None:
    loss, inputs = _built(name, variant), _inputs(variant)
    outputs, masked = loss(inputs), ~inputs.loss_mask
    assert outputs.loss.shape == outputs.policy_loss.shape == ()
    for value in (outputs.per_token, outputs.ratio, outputs.clipped_low, outputs.clipped_high):
        assert value.shape == (ROWS, WIDTH)
        assert not value.requires_grad
    assert not outputs.policy_loss.requires_grad
    assert not outputs.per_token[masked].any()
    assert (outputs.ratio[masked] == 1).all()
    assert not (outputs.clipped_low | outputs.clipped_high)[masked].any()
    assert not (outputs.clipped_low & outputs.clipped_high).any()
    assert (outputs.kl is not None) == loss.has_kl
    for value in outputs.row_metrics.values():
        assert value.shape == (ROWS,)
        assert not value.requires_grad
    metrics = step_metrics(
        row_statistics(inputs, outputs), loss.per_row, further_names=loss.clip_metrics
    )
    assert {*loss.clip_metrics, *outputs.row_metrics, *outputs.pair_metrics} <= set(metrics)
    assert bool(outputs.pair_metrics) == loss.needs_pairs


def _extreme(gap: float, dtype: torch.dtype, rows: int, trained: bool) -> LossInputs:
    """Rows of three tokens whose policy is `gap` nats above the old one, next to nothing or all but certain."""
    policy = torch.full((rows, 3), min(gap, 0.0) - 0.5, dtype=dtype)
    mask = torch.ones(rows, 3, dtype=torch.bool)
    mask[:, 2] = False
    signs = torch.tensor([1.0, -1.0, 0.0])[:rows, None]
    return LossInputs(
        policy_logprobs=policy.requires_grad_(),
        advantages=signs.to(dtype),
        loss_mask=mask & trained,
        window_rows=rows,
        window_tokens=2 * rows,
        max_completion_tokens=3,
        old_logprobs=policy.detach() - gap,
        ref_logprobs=policy.detach() - gap / 2,
        sampling_logprobs=policy.detach() - gap,
        entropies=1 - 0.1 * policy,
        rollout_weights=torch.zeros(rows, 3, dtype=dtype),
        pairs=torch.tensor([[0, 1], [0, 2]])[: rows - 1],
        window_pairs=rows - 1,
        window_chosen_tokens=2 * (rows - 1),
    )


@every_variant
def test_extremes_are_finite(name: str, variant: Variant) -> None:
    loss = _built(name, variant)
    for gap, rows in itertools.product((100.0, -100.0, 1e6), (3, 1)):
        inputs = _extreme(gap, torch.float32, rows, True)
        given = inputs if gap < 0 else replace(inputs, rollout_weights=None)
        outputs = loss(given)
        assert outputs.loss.isfinite()
        assert _gradient(loss, given).isfinite().all()
        statistics = row_statistics(given, outputs)
        assert all(np.isfinite(value).all() for value in statistics.values())


@every_framed_variant
def test_rows_that_are_masked_throughout_are_a_loss_of_0(name: str, variant: Variant) -> None:
    loss = _built(name, variant)
    for gap, rows in ((100.0, 3), (0.0, 1)):
        inputs = _extreme(gap, torch.float64, rows, False)
        outputs = loss(inputs)
        assert outputs.loss.item() == 0
        assert not _gradient(loss, inputs).any()
        assert not outputs.per_token.any()


@every_loss
def test_no_rows_at_all_are_a_loss_of_0(name: str) -> None:
    inputs = _part(_extreme(0.0, torch.float64, 3, True), slice(0, 0))
    assert _built(name, Variant())(inputs).loss.item() == 0
