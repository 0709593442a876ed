"""What is particular to each loss, computed by hand."""

import math
from typing import Any

import pytest
import torch

from rollbook.components.losses.base import Tokens
from rollbook.components.losses.bnpo import Bnpo
from rollbook.components.losses.cispo import Cispo
from rollbook.components.losses.clip_cov import ClipCov
from rollbook.components.losses.covariance import covariances
from rollbook.components.losses.dapo import Dapo
from rollbook.components.losses.dppo import Dppo
from rollbook.components.losses.gmpo import Gmpo
from rollbook.components.losses.gpg import Gpg
from rollbook.components.losses.grpo import Grpo
from rollbook.components.losses.gspo import Gspo
from rollbook.components.losses.kl_cov import KlCov
from rollbook.components.losses.luspo import Luspo
from rollbook.components.losses.reinforce import Reinforce
from rollbook.components.losses.rloo import Rloo
from rollbook.components.losses.sapo import Sapo
from rollbook.components.losses.vespo import Vespo
from rollbook.core.registry import build
from tests.unit.components.losses.inputs import gradient, loss_inputs

POLICY = [[-1.0, -2.0]]


def _ratios(ratios: list[float], advantage: float, **options: Any) -> Any:
    """One row; the policy stands at −1 and has moved by these ratios."""
    old = [[-1.0 - math.log(ratio) for ratio in ratios]]
    return loss_inputs([[-1.0] * len(ratios)], [[advantage]], old_logprobs=old, **options)


def test_cispo_needs_a_cap_that_is_the_ratio_itself() -> None:
    for spec in ({"name": "cispo"}, {"name": "cispo", "cap": None}):
        with pytest.raises(
            ValueError, match=r"the largest ratio itself and not 1 \+ ε; ScaleRL .* 5\.0"
        ):
            build("losses", spec)
    with pytest.raises(ValueError, match="unknown key"):
        build("losses", {"name": "cispo", "cap": 5.0, "delta": 3.0})
    with pytest.raises(ValueError, match=r"floor 2 must be below cap 1\.2"):
        Cispo(cap=1.2, floor=2.0)


def test_cispo_weighs_the_policy_gradient() -> None:
    inputs = _ratios([0.5, 3.0], 2.0)
    outputs = Cispo(cap=1.5)(inputs)
    assert gradient(inputs, outputs.loss)[0] == pytest.approx([-0.5 * 2 / 2, -1.5 * 2 / 2])
    assert outputs.loss.item() == pytest.approx((0.5 + 1.5) * 2 / 2)  # -w A l with l = -1
    assert outputs.clipped_high.tolist() == [[False, True]]
    floored = Cispo(cap=1.5, floor=0.8)(inputs := _ratios([0.5, 3.0], -2.0))
    assert gradient(inputs, floored.loss)[0] == pytest.approx([0.8, 1.5])
    assert floored.clipped_low.tolist() == [[True, False]]
    assert not floored.clipped_high.any()


def test_reinforce_caps_only_if_told_and_gpg_has_no_ratio() -> None:
    inputs = _ratios([0.5, 3.0], 2.0)
    assert gradient(inputs, Reinforce()(inputs).loss)[0] == pytest.approx([-0.5, -3.0])
    capped = Reinforce(cap=2.0)(inputs)
    assert gradient(inputs, capped.loss)[0] == pytest.approx([-0.5, -2.0])
    assert capped.clipped_high.tolist() == [[False, True]]
    product = Reinforce(ratio="sequence_product", cap=2.0)(inputs)
    assert gradient(inputs, product.loss)[0] == pytest.approx([-1.5, -1.5])
    assert gradient(inputs, Gpg()(inputs).loss)[0] == pytest.approx([-1.0, -1.0])
    with pytest.raises(ValueError, match="this loss has no importance ratio; leave `ratio` out"):
        Gpg(ratio="sequence_mean")


def test_sapo_has_the_policy_gradient_at_ratio_1_and_fades_away_from_it() -> None:
    for advantage, tau in ((2.0, 1.0), (-2.0, 1.05)):
        inputs = _ratios([1.0], advantage)
        outputs = Sapo()(inputs)
        assert outputs.loss.item() == pytest.approx(-2 * advantage / tau)
        assert gradient(inputs, outputs.loss)[0] == pytest.approx([-advantage])
        far = _ratios([3.0], advantage)
        slope = gradient(far, Sapo()(far).loss)[0][0]
        gate = 1 / (1 + math.exp(-tau * 2))
        assert slope == pytest.approx(-4 * gate * (1 - gate) * 3 * advantage)
    # A = 0 takes tau_neg, and does not matter
    assert Sapo()(_ratios([3.0], 0.0)).loss.item() == 0


def test_gspo_clips_rows_and_luspo_multiplies_by_their_length() -> None:
    # log-ratios 0.2 and 0.4: geometric mean exp(0.3) = 1.35
    ratios = [math.exp(0.2), math.exp(0.4)]
    inputs = _ratios(ratios, -1.0)
    assert Gspo()(inputs).loss.item() == pytest.approx(math.exp(0.3))
    assert Luspo()(inputs).loss.item() == pytest.approx(2 * math.exp(0.3))
    assert Rloo()(inputs).loss.item() == pytest.approx(math.exp(0.6))
    up = _ratios(ratios, 1.0)
    assert Gspo()(up).loss.item() == pytest.approx(-1.0004)
    assert Rloo()(up).loss.item() == pytest.approx(-1.2)
    assert gradient(up, Gspo()(up).loss)[0] == [0.0, 0.0]
    assert Gspo()(up).clipped_high.tolist() == [[True, True]]
    with pytest.raises(ValueError, match="ratio token has no meaning in this loss"):
        Gspo(ratio="token")


def test_gspo_token_differs_where_tokens_of_a_row_do() -> None:
    inputs = loss_inputs([[0.2, 0.4]], [[-1.0, -3.0]], old_logprobs=[[0.0, 0.0]])
    row, token = (Gspo(ratio=level)(inputs) for level in ("sequence_mean", "sequence_mean_token"))
    assert row.loss.item() == pytest.approx(token.loss.item())
    s = math.exp(0.3)
    assert gradient(inputs, row.loss)[0] == pytest.approx([s * 4 / 2 / 2] * 2)
    assert gradient(inputs, token.loss)[0] == pytest.approx([s / 2, 3 * s / 2])


def test_one_term_per_row_under_a_mean_over_tokens_is_warned_of() -> None:
    for loss in (
        Dapo(ratio="sequence_mean"),
        Gspo(aggregation="constant_length"),
        Gmpo(aggregation="token_mean"),
        Cispo(cap=5.0, ratio="sequence_product"),
    ):
        (caution,) = loss.cautions()
        assert "weighs rollouts by their length" in caution
    for quiet in (Gspo(), Luspo(), Rloo(), Gmpo(), Grpo(ratio="sequence_mean"), Dapo()):
        assert quiet.cautions() == []
    (caution,) = Bnpo().cautions()
    assert "micro_batch_tokens changes the result" in caution


def test_gmpo_clips_logs_before_their_mean() -> None:
    # log-ratios 0.1, 1.0, -1.0
    inputs = loss_inputs([[0.1, 1.0, -1.0]], [[2.0]], old_logprobs=[[0.0] * 3])
    outputs = Gmpo(clip_low=0.3, clip_high=0.5)(inputs)
    mean = (0.1 + 0.5 - 1.0) / 3
    assert outputs.loss.item() == pytest.approx(-2 * math.exp(mean))
    slope = -2 * math.exp(mean) / 3
    assert gradient(inputs, outputs.loss)[0] == pytest.approx([slope, 0.0, slope])
    assert outputs.clipped_high.tolist() == [[False, True, False]]
    down = loss_inputs([[0.1, 1.0, -1.0]], [[-2.0]], old_logprobs=[[0.0] * 3])
    outputs = Gmpo(clip_low=0.3, clip_high=0.5)(down)
    assert outputs.loss.item() == pytest.approx(2 * math.exp((0.1 + 1.0 - 0.3) / 3))
    assert outputs.clipped_low.tolist() == [[False, False, True]]


def test_gmpo_leaves_its_kl_uncorrected() -> None:
    inputs = loss_inputs(
        [[-1.5, -1.5]], [[0.0]], old_logprobs=[[-1.7, -1.5]], ref_logprobs=[[-1.0, -1.5]]
    )
    assert Gmpo(kl_coef=1.0)(inputs).loss.item() == pytest.approx((math.exp(0.5) - 1.5) / 2)


def test_gmpo_takes_masks_and_weights_into_its_mean() -> None:
    inputs = loss_inputs(
        [[0.1, 0.2, 0.3]],
        [[1.0]],
        old_logprobs=[[0.0] * 3],
        policy_mask=torch.tensor([[True, False, True]]),
        rollout_weights=[[2.0, 7.0, 0.5]],
    )
    outputs = Gmpo()(inputs)
    # mean of 0.1 and 0.3, geometric mean of 2 and 0.5
    assert outputs.loss.item() == pytest.approx(-math.exp(0.2))
    assert gradient(inputs, outputs.loss)[0][1] == 0


def test_vespo_weighs_whole_rows() -> None:
    for advantage, k, decay in ((1.0, 2.0, 3.0), (-1.0, 3.0, 2.0), (0.0, 2.0, 3.0)):
        inputs = _ratios([1.5, 1.2], advantage)
        phi = math.exp(decay + k * math.log(1.8) - decay * 1.8)
        outputs = Vespo()(inputs)
        assert outputs.row_metrics["vespo/phi_seq_mean"].tolist() == pytest.approx([phi])
        assert gradient(inputs, outputs.loss)[0] == pytest.approx([-phi * advantage / 2] * 2)
    onpolicy = loss_inputs(POLICY, [[1.0]])
    assert Vespo()(onpolicy).row_metrics["vespo/phi_seq_mean"].tolist() == [1.0]


def test_a_row_without_tokens_has_not_drifted_for_vespo() -> None:
    inputs = loss_inputs([[-1.0], [-1.0]], [[-1.0], [-1.0]], [[1], [0]], old_logprobs=[[-1.5]] * 2)
    phi = math.exp(2 + 3 * 0.5 - 2 * math.exp(0.5))
    assert Vespo()(inputs).row_metrics["vespo/phi_seq_mean"].tolist() == pytest.approx([phi, 1.0])


def test_vespo_takes_rollout_weights_into_the_ratio_and_not_once_more() -> None:
    inputs = _ratios([1.5, 1.2], 1.0, rollout_weights=[[0.5, 0.8]])
    w = 1.5 * 1.2 * 0.5 * 0.8
    phi = math.exp(3 + 2 * math.log(w) - 3 * w)
    assert gradient(inputs, Vespo()(inputs).loss)[0] == pytest.approx([-phi / 2] * 2)
    gone = _ratios([1.5, 1.2], 1.0, rollout_weights=[[0.0, 0.8]])
    assert gradient(gone, Vespo()(gone).loss)[0] == pytest.approx([0.0, 0.0], abs=1e-13)
    assert Vespo.needs_token_weights


@pytest.mark.parametrize(
    ("old", "policy", "advantage", "kept"),
    [
        (0.5, 0.64, 1.0, True),
        (0.5, 0.66, 1.0, False),
        (0.5, 0.66, -1.0, True),  # the other direction
        (0.5, 0.34, -1.0, False),
        (0.5, 0.34, 1.0, True),
        (0.001, 0.1, 1.0, True),  # a hundredfold ratio, and hardly any probability
    ],
)
def test_dppo_looks_at_probabilities(
    old: float, policy: float, advantage: float, kept: bool
) -> None:
    inputs = loss_inputs([[math.log(policy)]], [[advantage]], old_logprobs=[[math.log(old)]])
    outputs = Dppo()(inputs)
    want = -min(policy / old, 20) * advantage if kept else 0.0
    assert gradient(inputs, outputs.loss)[0] == pytest.approx([want])
    assert outputs.clipped_high.item() == (not kept and advantage > 0)
    assert outputs.clipped_low.item() == (not kept and advantage < 0)


def test_dppo_by_kl() -> None:
    # q = 0.5, p = 0.7: 0.5 log(5/7) + 0.5 log(5/3) = 0.0872
    for bound, kept in ((0.08, False), (0.09, True)):
        loss = Dppo(divergence="kl", clip_low=0.01, clip_high=bound)
        inputs = loss_inputs([[math.log(0.7)]], [[1.0]], old_logprobs=[[math.log(0.5)]])
        assert bool(gradient(inputs, loss(inputs).loss)[0][0]) == kept
    (caution,) = Dppo(divergence="kl").cautions()
    assert "its authors use 0.05" in caution
    assert Dppo(divergence="kl", clip_low=0.05, clip_high=0.05).cautions() == []


# advantages 2, 0, -1 and log-probs -1, -2, -3.5 of one micro-batch; means 1/3 and -13/6
COV_POLICY, COV_ADVANTAGES = [[-1.0, -2.0, -3.5]], [[2.0, 0.0, -1.0]]
# covariances 5/3 · 7/6 = 1.94, −1/3 · 1/6 = −0.06, −4/3 · −4/3 = 1.78


def test_covariances_are_of_the_trained_tokens_alone() -> None:
    policy = torch.tensor([[-1.0, -2.0, 0.0], [-3.5, 0.0, 0.0]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    ones = torch.ones_like(policy)
    tokens = Tokens(policy, 0 * ones, ones, advantages, mask, mask, ones)
    assert covariances(tokens)[mask].tolist() == pytest.approx([35 / 18, -1 / 18, 16 / 9])


def test_kl_cov_holds_the_highest_covariance() -> None:
    inputs = loss_inputs(COV_POLICY, COV_ADVANTAGES, old_logprobs=[[-1.3, -1.9, -3.4]])
    plain = [-2 * math.exp(0.3), 0.0, math.exp(-0.1)]
    one = KlCov(penalty=0.5)(inputs)
    assert one.per_token[0].tolist() == pytest.approx([plain[0] + 0.5 * 0.3, *plain[1:]])
    two = KlCov(penalty=0.5, penalty_share=0.7)(inputs)  # int(0.7 * 3) = 2
    want = [plain[0] + 0.5 * 0.3, plain[1], plain[2] + 0.5 * 0.1]
    assert two.per_token[0].tolist() == pytest.approx(want)
    slope = gradient(inputs, two.loss)[0]
    assert slope == pytest.approx([(plain[0] + 0.5) / 3, 0.0, (plain[2] - 0.5) / 3])


def test_clip_cov_drops_tokens_within_the_band_that_are_not_clipped() -> None:
    inputs = loss_inputs(COV_POLICY, COV_ADVANTAGES, old_logprobs=COV_POLICY)
    both = ClipCov(drop_share=0.7)(inputs)
    assert both.per_token[0].tolist() == pytest.approx([0.0, 0.0, 0.0])
    assert both.row_metrics["clip_cov/dropped_tokens"].tolist() == [2]
    band = ClipCov(drop_share=0.7, cov_high=1.9)(inputs)
    assert band.per_token[0].tolist() == pytest.approx([-2.0, 0.0, 0.0])
    clipped = loss_inputs(COV_POLICY, COV_ADVANTAGES, old_logprobs=[[-1.5, -2.0, -3.5]])
    outputs = ClipCov(drop_share=0.7)(clipped)
    assert outputs.per_token[0].tolist() == pytest.approx([-2.4, 0.0, 0.0])
    assert outputs.clipped_high.tolist() == [[True, False, False]]
    with pytest.raises(ValueError, match="cov_low 5 must be below cov_high 1"):
        ClipCov(cov_low=5, cov_high=1)


def test_clip_cov_draws_the_same_tokens_from_the_same_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    policy = (-3 * torch.rand(20, 10, generator=generator, dtype=torch.float64)).tolist()
    advantages = torch.randn(20, 10, generator=generator, dtype=torch.float64).tolist()
    loss = ClipCov(drop_share=0.05, cov_low=0.0)
    first = loss(loss_inputs(policy, advantages)).per_token == 0
    assert first.sum() == 10  # of 200 tokens
    assert torch.equal(first, loss(loss_inputs(policy, advantages)).per_token == 0)
    turned = loss(loss_inputs(policy[::-1], advantages[::-1])).per_token == 0
    assert torch.equal(turned.flip(0), first)
