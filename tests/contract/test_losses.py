"""Laws of every loss in `pipeline/losses`, so that a new file is tested on arrival."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from pipeline.losses.base import Loss, LossInputs
from pipeline.registry import build, menu

LOSSES = menu("losses")
VARIANTS: list[dict[str, Any]] = [{}, {"kl_coef": 0.1}]
ROWS, WIDTH = 6, 5
PER_TOKEN = ("old_logprobs", "ref_logprobs", "sampling_logprobs", "entropies")


def _inputs(seed: int = 0) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)

    def logprobs() -> torch.Tensor:
        return -2 * torch.rand(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([5, 3, 1, 4, 0, 2])
    mask = torch.arange(WIDTH) < lengths[:, None]
    mask[0, 2] = False  # a token of a tool inside a row
    policy = logprobs()
    return LossInputs(
        policy_logprobs=policy.requires_grad_(),
        advantages=torch.randn(ROWS, 1, generator=generator, dtype=torch.float64),
        loss_mask=mask,
        window_rows=ROWS,
        window_tokens=int(mask.sum()),
        max_completion_tokens=WIDTH,
        old_logprobs=policy.detach() + 0.3 * logprobs() + 0.3,
        ref_logprobs=logprobs(),
        sampling_logprobs=policy.detach() + 0.01,
        entropies=-logprobs(),
    )


def _part(inputs: LossInputs, rows: slice) -> LossInputs:
    parts = {
        item.name: value[rows]
        for item in fields(inputs)
        if isinstance(value := getattr(inputs, item.name), torch.Tensor)
    }
    return replace(inputs, **parts)


def _gradient(loss: Loss, inputs: LossInputs, parts: list[LossInputs]) -> torch.Tensor:
    total = sum(loss(part).loss for part in parts)
    assert isinstance(total, torch.Tensor)
    (found,) = torch.autograd.grad(total, inputs.policy_logprobs)
    return found


def _built(name: str, variant: dict[str, Any]) -> Loss:
    loss = build("losses", {"name": name, **variant})
    assert isinstance(loss, Loss)
    return loss


every_loss = pytest.mark.parametrize("name", LOSSES)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


def test_the_menu() -> None:
    assert {"grpo", "dapo", "dr_grpo"} <= set(LOSSES)


@every_loss
def test_builds_from_defaults_and_survives_its_own_settings(name: str) -> None:
    loss = _built(name, {})
    settings = {key: value for key, value in loss.settings().items() if key != "path"}
    assert build("losses", settings) == loss


@every_loss
def test_states_formula_and_source(name: str) -> None:
    module = importlib.import_module(f"pipeline.losses.{name}")
    text = module.__doc__ or ""
    assert "loss = " in text, "the docstring of a loss begins with its formula"
    assert re.search(r"arXiv \d{4}\.\d{4,5}", text), "and names the paper"
    source = inspect.getsource(module)
    assert "self.name" not in source, "a loss never branches on its own name"
    assert not re.search(r"^(import|from) torch", source, re.MULTILINE)


@every_loss
@every_variant
def test_masked_positions_change_neither_loss_nor_gradient(
    name: str, variant: dict[str, Any]
) -> None:
    loss, inputs = _built(name, variant), _inputs()
    want, slope = loss(inputs).loss, _gradient(loss, inputs, [inputs])
    for garbage in (float("nan"), float("inf"), -1e30):
        dirty = {item: getattr(inputs, item).where(inputs.loss_mask, garbage) for item in PER_TOKEN}
        policy = inputs.policy_logprobs.detach().where(inputs.loss_mask, garbage).requires_grad_()
        other = replace(inputs, policy_logprobs=policy, **dirty)
        torch.testing.assert_close(loss(other).loss, want, rtol=1e-12, atol=0)
        found = _gradient(loss, other, [other])
        torch.testing.assert_close(found, slope, rtol=1e-12, atol=0)
        assert not found[~inputs.loss_mask].any()


@every_loss
@every_variant
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_the_split_into_micro_batches_does_not_matter(
    name: str, variant: dict[str, Any], cut: int
) -> None:
    loss, inputs = _built(name, variant), _inputs()
    whole = _gradient(loss, inputs, [inputs])
    parts = [_part(inputs, slice(0, cut)), _part(inputs, slice(cut, None))]
    torch.testing.assert_close(_gradient(loss, inputs, parts), whole, rtol=1e-10, atol=1e-14)
    assert whole.any()


@every_loss
@every_variant
def test_order_of_rows_does_not_matter(name: str, variant: dict[str, Any]) -> None:
    loss, inputs = _built(name, variant), _inputs()
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    shuffled = replace(
        inputs,
        policy_logprobs=inputs.policy_logprobs[order],
        advantages=inputs.advantages[order],
        loss_mask=inputs.loss_mask[order],
        **{item: getattr(inputs, item)[order] for item in PER_TOKEN},
    )
    torch.testing.assert_close(
        _gradient(loss, inputs, [shuffled]),
        _gradient(loss, inputs, [inputs]),
        rtol=1e-10,
        atol=1e-14,
    )


@every_loss
@every_variant
def test_without_old_logprobs_the_gradient_is_kept(name: str, variant: dict[str, Any]) -> None:
    """A missing old policy means the current one as a constant, not a ratio that is a constant."""
    loss, inputs = _built(name, variant), _inputs()
    onpolicy = replace(inputs, old_logprobs=None)
    same = replace(inputs, old_logprobs=inputs.policy_logprobs.detach())
    found = _gradient(loss, inputs, [onpolicy])
    torch.testing.assert_close(found, _gradient(loss, inputs, [same]), rtol=1e-12, atol=0)
    assert found[inputs.loss_mask].all()


@every_loss
def test_a_loss_that_is_silent_at_zero_advantage_has_no_gradient_there(name: str) -> None:
    inputs = _inputs()
    quiet = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    for variant in VARIANTS:
        loss = _built(name, variant)
        found = _gradient(loss, inputs, [quiet])
        assert loss.silent_at_zero_advantage == (not found.any())


@every_loss
@every_variant
def test_outputs_are_detached_and_say_nothing_where_masked(
    name: str, variant: dict[str, Any]
) -> None:
    loss, inputs = _built(name, variant), _inputs()
    outputs, masked = loss(inputs), ~inputs.loss_mask
    assert outputs.loss.shape == ()
    for value in (outputs.per_token, outputs.ratio, outputs.clipped_low, outputs.clipped_high):
        assert value.shape == (ROWS, WIDTH)
        assert not value.requires_grad
    assert not outputs.per_token[masked].any()
    assert (outputs.ratio[masked] == 1).all()
    assert not (outputs.clipped_low | outputs.clipped_high)[masked].any()
    assert (outputs.kl is not None) == loss.needs_reference
