import math

import pytest
import torch

from rollbook.components.losses.base import LossInputs
from rollbook.components.losses.dapo import Dapo
from rollbook.components.losses.dr_grpo import DrGrpo
from rollbook.components.losses.grpo import Grpo
from tests.unit.components.losses.inputs import gradient, loss_inputs

# Six tokens with ratios 0.5, 1.1, 1.5 against old = 0, first with A = +1, then with A = -1.
RATIOS = [0.5, 1.1, 1.5]
POLICY = [[math.log(ratio) for ratio in RATIOS]] * 2
OLD = [[0.0] * 3] * 2
SIGNS = [[1.0], [-1.0]]


def test_clipped_surrogate_and_where_it_stops_the_gradient() -> None:
    inputs = loss_inputs(POLICY, SIGNS, old_logprobs=OLD)
    outputs = Grpo(clip_low=0.2, clip_high=0.3)(inputs)
    # A=+1: min(0.5, 0.8), min(1.1, 1.1), min(1.5, 1.3); A=-1: min(-0.5, -0.8), -1.1, min(-1.5, -1.3)
    assert outputs.per_token.tolist() == [
        pytest.approx([-0.5, -1.1, -1.3]),
        pytest.approx([0.8, 1.1, 1.5]),
    ]
    assert outputs.clipped_high.tolist() == [[False, False, True], [False] * 3]
    assert outputs.clipped_low.tolist() == [[False] * 3, [True, False, False]]
    # unclipped: -rho A / (3 tokens x 2 rows), clipped: 0
    assert gradient(inputs, outputs.loss) == [
        pytest.approx([-0.5 / 6, -1.1 / 6, 0.0]),
        pytest.approx([0.0, 1.1 / 6, 1.5 / 6]),
    ]
    assert outputs.ratio[0].tolist() == pytest.approx(RATIOS)


def test_delta_caps_negative_advantages_only() -> None:
    inputs = loss_inputs(POLICY, SIGNS, old_logprobs=OLD)
    outputs = Grpo(clip_low=0.2, clip_high=0.2, delta=1.4)(inputs)
    assert outputs.per_token[1].tolist() == pytest.approx([0.8, 1.1, 1.4])
    assert gradient(inputs, outputs.loss)[1] == pytest.approx([0.0, 1.1 / 6, 0.0])
    assert outputs.per_token[0].tolist() == pytest.approx([-0.5, -1.1, -1.2])


def test_delta_inside_the_clip_range_is_warned_of_and_caps_both_signs() -> None:
    (caution,) = Dapo(delta=1.2).cautions()
    assert "delta 1.2 is below 1 + clip_high = 1.28" in caution
    assert Dapo(delta=1.28).cautions() == []
    with pytest.raises(ValueError, match="clip_low"):
        Grpo(clip_low=1.5)
    inputs = loss_inputs([[math.log(1.15)]] * 2, SIGNS, old_logprobs=[[0.0]] * 2)
    outputs = Grpo(delta=1.1)(inputs)
    # A=+1: min(1.1, 1.15); A=-1: min(-1.1, -1.15), so the cap is of no use there
    assert outputs.per_token.flatten().tolist() == pytest.approx([-1.1, 1.15])


def _dual_clip(ratio: torch.Tensor, advantages: torch.Tensor, cap: float) -> torch.Tensor:
    """verl's form (arXiv 1912.09729), clip range 0.2."""
    clipped = (-ratio * advantages).maximum(-ratio.clamp(0.8, 1.2) * advantages)
    return clipped.minimum(-cap * advantages).where(advantages < 0, clipped)


@pytest.mark.parametrize("cap", [1.2, 1.5, 3.0])
def test_delta_is_dual_clip(cap: float) -> None:
    ratios = torch.linspace(0.051, 5.0, 100, dtype=torch.float64)
    advantages = torch.tensor([[1.7], [-0.6], [0.0]], dtype=torch.float64)
    policy = ratios.log().repeat(3, 1).requires_grad_()
    inputs = LossInputs(
        policy_logprobs=policy,
        advantages=advantages,
        loss_mask=torch.ones(3, 100, dtype=torch.bool),
        window_rows=3,
        window_tokens=300,
        max_completion_tokens=100,
        old_logprobs=torch.zeros(3, 100, dtype=torch.float64),
    )
    outputs = Dapo(clip_low=0.2, clip_high=0.2, delta=cap)(inputs)
    want = _dual_clip(policy.exp(), advantages.expand(3, 100), cap)
    torch.testing.assert_close(outputs.per_token, want.detach(), rtol=1e-12, atol=0)
    (slope,) = torch.autograd.grad(outputs.loss, policy, retain_graph=True)
    (want_slope,) = torch.autograd.grad(want.sum() / 300, policy)
    torch.testing.assert_close(slope, want_slope, rtol=1e-12, atol=1e-15)


def test_the_three_aggregations() -> None:
    # on-policy: per token loss is -A. Row 0 has 1 token and A=1, row 1 three tokens and A=2; step of 2 rows.
    inputs = loss_inputs([[-1.0] * 3] * 2, [[1.0], [2.0]], [[1, 0, 0], [1, 1, 1]])
    assert Grpo()(inputs).loss.item() == pytest.approx(-(1 + 2) / 2)
    assert Dapo()(inputs).loss.item() == pytest.approx(-(1 + 3 * 2) / 4)
    assert DrGrpo()(inputs).loss.item() == pytest.approx(-(1 + 3 * 2) / (2 * 10))


def test_denominators_are_those_of_the_step_and_not_of_the_micro_batch() -> None:
    inputs = loss_inputs([[-1.0, -1.0]], [[1.0]], window_rows=8, window_tokens=20)
    assert Grpo()(inputs).loss.item() == pytest.approx(-1 / 8)
    assert Dapo()(inputs).loss.item() == pytest.approx(-2 / 20)
    assert DrGrpo()(inputs).loss.item() == pytest.approx(-2 / (8 * 10))


def test_a_row_without_tokens_counts_among_the_rows() -> None:
    inputs = loss_inputs([[-1.0], [-1.0]], [[1.0], [1.0]], [[1], [0]])
    assert Grpo()(inputs).loss.item() == pytest.approx(-1 / 2)
    assert Dapo()(inputs).loss.item() == pytest.approx(-1.0)


def test_dapo_clips_higher_by_default() -> None:
    assert (Dapo().clip_low, Dapo().clip_high) == (0.2, 0.28)
    assert (Grpo().clip_low, Grpo().clip_high) == (0.2, 0.2)


def test_token_advantages_and_a_ratio_of_rows() -> None:
    inputs = loss_inputs(
        [[0.1, 0.3]], [[1.0, -2.0]], old_logprobs=[[0.0, 0.0]]
    )  # geometric mean exp(0.2) = 1.2214 on both tokens; upper bound 1.2 holds the first
    outputs = Grpo(ratio="sequence_mean")(inputs)
    assert outputs.per_token[0].tolist() == pytest.approx([-1.2, 2 * math.exp(0.2)])
    # only the second token's term moves, through both log-probs: 2 exp(0.2) / 2 tokens / 2 (mean of row)
    assert gradient(inputs, outputs.loss)[0] == pytest.approx([math.exp(0.2) / 2] * 2)
