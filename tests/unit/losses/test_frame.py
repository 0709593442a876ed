"""What `Loss` does for every loss: masks, KL on or off, and when a row cannot have a gradient."""

import math

import pytest

from pipeline.errors import TrainingError
from pipeline.losses.dapo import Dapo
from pipeline.losses.grpo import Grpo
from tests.unit.losses.inputs import gradient, loss_inputs

NAN, INF = math.nan, math.inf


def test_garbage_at_masked_positions_reaches_neither_loss_nor_gradient() -> None:
    options = {"kl_coef": 0.1}
    clean = loss_inputs(
        [[-1.0, -2.0]],
        [[1.0]],
        old_logprobs=[[-1.1, -2.2]],
        ref_logprobs=[[-1.2, -1.8]],
    )
    dirty = loss_inputs(
        [[-1.0, -2.0, NAN, INF], [NAN, -INF, 3e38, 0.0]],
        [[1.0, 1.0, NAN, INF], [NAN, 0.0, 5.0, 1.0]],
        [[1, 1, 0, 0], [0, 0, 0, 0]],
        old_logprobs=[[-1.1, -2.2, INF, NAN], [NAN, INF, 0.0, -3e38]],
        ref_logprobs=[[-1.2, -1.8, NAN, INF], [INF, NAN, 0.0, 0.0]],
    )
    for level in ("token", "sequence_mean", "sequence_product"):
        loss = Dapo(ratio=level, **options)
        want, got = loss(clean), loss(dirty)
        assert got.loss.item() == pytest.approx(want.loss.item(), rel=1e-12)
        found = gradient(dirty, got.loss)
        assert found[0][:2] == pytest.approx(gradient(clean, want.loss)[0], rel=1e-12)
        assert found[0][2:] == [0.0, 0.0]
        assert found[1] == [0.0] * 4
        assert got.per_token[1].tolist() == [0.0] * 4
        assert got.ratio[1].tolist() == [1.0] * 4
        assert not got.clipped_low[1].any()
        assert not got.clipped_high[1].any()


def test_kl_is_added_after_the_policy_term() -> None:
    inputs = loss_inputs([[-1.5]], [[2.0]], ref_logprobs=[[-1.0]])
    outputs = Grpo(kl_coef=0.5)(inputs)
    k3 = math.exp(0.5) - 1.5
    assert outputs.loss.item() == pytest.approx(-2.0 + 0.5 * k3)
    assert outputs.kl is not None
    assert outputs.kl.item() == pytest.approx(k3)
    assert not outputs.kl.requires_grad


def test_kl_without_a_reference_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"kl_coef 0\.5 and got no log-probs of the reference"):
        Grpo(kl_coef=0.5)(loss_inputs([[-1.0]], [[1.0]]))


def test_what_a_loss_says_it_needs() -> None:
    assert not Dapo().needs_reference
    assert Dapo().silent_at_zero_advantage
    assert Dapo(kl_coef=0.01).needs_reference
    assert not Dapo(kl_coef=0.01).silent_at_zero_advantage
    assert not Dapo().per_row
    assert Dapo(ratio="sequence_product").per_row


def test_without_kl_the_reference_is_not_looked_at() -> None:
    inputs = loss_inputs([[-1.0]], [[1.0]], ref_logprobs=[[NAN]])
    outputs = Dapo()(inputs)
    assert outputs.loss.item() == pytest.approx(-1.0)
    assert outputs.kl is None
