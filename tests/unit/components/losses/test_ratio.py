import math

import pytest
import torch

from rollbook.components.losses.ratio import importance_ratio, token_log_ratio

LOG = torch.tensor([[0.1, 0.3, 0.0], [-0.2, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def test_levels() -> None:
    # row 0 has two tokens: sum 0.4, mean 0.2; row 1 three: sum -0.2, mean -0.2/3
    token = importance_ratio(LOG, MASK, "token")
    assert token[0].tolist() == pytest.approx([math.exp(0.1), math.exp(0.3), 1.0])
    mean = importance_ratio(LOG, MASK, "sequence_mean")
    assert mean[0].tolist() == pytest.approx([math.exp(0.2), math.exp(0.2), 1.0])
    assert mean[1].tolist() == pytest.approx([math.exp(-0.2 / 3)] * 3)
    product = importance_ratio(LOG, MASK, "sequence_product")
    assert product[0].tolist() == pytest.approx([math.exp(0.4), math.exp(0.4), 1.0])
    assert product[1].tolist() == pytest.approx([math.exp(-0.2)] * 3)


def test_a_row_without_tokens_has_ratio_1() -> None:
    nothing = importance_ratio(
        torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool), "sequence_mean"
    )
    assert nothing.tolist() == [[1.0, 1.0]]


def test_without_old_logprobs_the_ratio_is_1_and_keeps_its_gradient() -> None:
    policy = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    ratio = token_log_ratio(policy, None).exp()
    assert ratio.tolist() == [[1.0, 1.0]]
    ratio.sum().backward()
    assert policy.grad is not None
    assert policy.grad.tolist() == [[1.0, 1.0]]  # d exp(l - sg(l)) / dl = 1


def test_log_ratio_is_clamped_at_20_without_gradient_outside() -> None:
    policy = torch.tensor([[-1.0, -2.0, -90.0]], requires_grad=True)
    log_ratio = token_log_ratio(policy, torch.tensor([[-31.0, -2.5, -1.0]]))
    assert log_ratio.tolist() == [[20.0, 0.5, -20.0]]
    log_ratio.sum().backward()
    assert policy.grad is not None
    assert policy.grad.tolist() == [[0.0, 1.0, 0.0]]


def test_a_ratio_of_rows_with_a_gradient_of_tokens() -> None:
    log = LOG.clone().requires_grad_()
    ratio = importance_ratio(log, MASK, "sequence_mean_token")
    assert ratio[0].tolist() == pytest.approx([math.exp(0.2), math.exp(0.2), 1.0])
    (slope,) = torch.autograd.grad(ratio[0, 0], log)
    assert slope[0].tolist() == pytest.approx([math.exp(0.2), 0.0, 0.0])
    (slope,) = torch.autograd.grad(importance_ratio(log, MASK, "sequence_mean")[0, 0], log)
    assert slope[0, :2].tolist() == pytest.approx([math.exp(0.2) / 2] * 2)


def test_a_product_is_clamped_at_20() -> None:
    log = torch.full((1, 3), 15.0, requires_grad=True)
    ratio = importance_ratio(log, torch.ones(1, 3, dtype=torch.bool), "sequence_product")
    assert ratio[0].tolist() == pytest.approx([math.exp(20)] * 3)
    ratio.sum().backward()
    assert log.grad is not None
    assert not log.grad.any()
