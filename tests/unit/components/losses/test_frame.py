"""What `Loss` does for every loss: masks, KL on or off, and when a row cannot have a gradient."""

import math
from dataclasses import replace

import pytest
import torch

from rollbook.components.losses.base import Loss, PolicyTerm, Tokens
from rollbook.components.losses.dapo import Dapo
from rollbook.components.losses.grpo import Grpo
from rollbook.components.losses.luspo import Luspo
from rollbook.core.errors import TrainingError
from tests.unit.components.losses.inputs import gradient, loss_inputs

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


def test_an_entropy_bonus_is_a_mean_over_tokens_whatever_the_aggregation() -> None:
    inputs = loss_inputs(
        [[-1.0] * 3] * 2,
        [[0.0]] * 2,
        [[1, 0, 0], [1, 1, 1]],
        entropies=[[0.4, NAN, INF], [0.1, 0.2, 0.3]],
    )
    entropies = inputs.entropies
    assert entropies is not None
    entropies.requires_grad_()
    for loss in (Grpo(entropy_coef=0.5), Dapo(entropy_coef=0.5), Luspo(entropy_coef=0.5)):
        outputs = loss(inputs)
        assert outputs.loss.item() == pytest.approx(-0.5 * 1.0 / 4)
        assert outputs.policy_loss.item() == 0
        (slope,) = torch.autograd.grad(outputs.loss, entropies)
        assert slope.tolist() == [[-0.125, 0.0, 0.0], [-0.125] * 3]


def test_an_entropy_bonus_without_entropies_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"entropy_coef 0\.5 and got no entropies"):
        Dapo(entropy_coef=0.5)(loss_inputs([[-1.0]], [[1.0]]))


def test_the_policy_mask_spares_kl_and_denominators_and_holds_the_bonus() -> None:
    inputs = loss_inputs(
        [[-1.5, -1.5]],
        [[2.0]],
        ref_logprobs=[[-1.0, -1.0]],
        entropies=[[0.3, 0.7]],
        policy_mask=torch.tensor([[True, False]]),
        window_policy_tokens=1,
    )
    k3 = math.exp(0.5) - 1.5
    outputs = Grpo(kl_coef=0.5, entropy_coef=0.1)(inputs)
    assert outputs.policy_loss.item() == pytest.approx(-2.0 / 2 + 0.5 * k3)
    assert outputs.loss.item() == pytest.approx(-2.0 / 2 + 0.5 * k3 - 0.1 * 0.3)


def test_rollout_weights_multiply_the_policy_term_alone() -> None:
    inputs = loss_inputs(
        [[-1.5, -1.5]], [[2.0]], ref_logprobs=[[-1.0, -1.0]], rollout_weights=[[0.5, 0.0]]
    )
    k3 = math.exp(0.5) - 1.5
    assert Grpo(kl_coef=0.5)(inputs).loss.item() == pytest.approx(-2.0 * 0.5 / 2 + 0.5 * k3)


def test_rows_that_have_drifted_lose_their_policy_term_and_keep_their_kl() -> None:
    inputs = loss_inputs(
        [[-1.5], [-1.5]],
        [[-2.0], [2.0]],
        old_logprobs=[[-1.5], [-1.5]],
        sampling_logprobs=[[-1.0], [NAN]],
        ref_logprobs=[[-1.0], [-1.5]],
    )
    k3 = math.exp(0.5) - 1.5
    loss = Grpo(kl_coef=0.5, off_policy_threshold=0.4)
    assert loss(inputs).per_token.flatten().tolist() == pytest.approx([0.5 * k3, -2.0])
    # what the engine said decides, and only without it the policy before the update
    unsaid = replace(inputs, sampling_logprobs=None)
    assert loss(unsaid).per_token.flatten().tolist() == pytest.approx([2.0 + 0.5 * k3, -2.0])


def test_coefficients_that_follow_a_target_begin_where_they_say() -> None:
    loss = Grpo.model_validate(
        {"kl_coef": {"start": 0.5, "target": 0.1}, "entropy_coef": {"target": 1.0, "start": 0.2}}
    )
    assert loss.needs_reference
    assert loss.has_entropy_bonus
    inputs = loss_inputs([[-1.5]], [[2.0]], ref_logprobs=[[-1.0]], entropies=[[0.3]])
    k3 = math.exp(0.5) - 1.5
    assert loss(inputs).loss.item() == pytest.approx(-2.0 + 0.5 * k3 - 0.2 * 0.3)
    now = loss.with_coefficients(0.1, 0.0)
    assert now(inputs).loss.item() == pytest.approx(-2.0 + 0.1 * k3)


class _One(Loss):
    """A term that is not 0 where there is nothing: the frame must see to that, for losses of users' own."""

    def policy_term(self, tokens: Tokens) -> PolicyTerm:
        nowhere = torch.ones_like(tokens.loss_mask)
        return PolicyTerm(tokens.ratio, nowhere, nowhere)


def test_what_a_term_says_of_masked_tokens_is_not_heard() -> None:
    outputs = _One()(loss_inputs([[-1.0] * 3], [[1.0]], [[1, 0, 1]]))
    assert outputs.loss.item() == 1
    assert outputs.per_token.tolist() == [[1, 0, 1]]
    assert outputs.clipped_low.tolist() == outputs.clipped_high.tolist() == [[True, False, True]]
