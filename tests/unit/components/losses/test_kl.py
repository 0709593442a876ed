import math
from typing import Any

import pytest
import torch

from rollbook.components.losses.base import Loss
from rollbook.components.losses.dapo import Dapo
from rollbook.components.losses.gspo import Gspo
from rollbook.components.losses.kl import kl_estimate
from rollbook.components.losses.luspo import Luspo
from tests.unit.components.losses.inputs import gradient, loss_inputs

# u = ref - policy = 0.5: k1 = -0.5, k2 = 0.125, k3 = e^0.5 - 1.5, abs = 0.5
# gradients in policy: k1 +1, k2 -u, k3 1 - e^u, abs -1; with + that of k2
K3 = math.exp(0.5) - 1.5
EXPECTED = {
    "k1": (-0.5, 1.0),
    "k2": (0.125, -0.5),
    "k3": (K3, 1 - math.exp(0.5)),
    "abs": (0.5, -1.0),
    "k1+": (-0.5, -0.5),
    "k3+": (K3, -0.5),
}


@pytest.mark.parametrize("estimator", EXPECTED)
def test_value_and_gradient(estimator: Any) -> None:
    policy = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(estimator, policy, torch.tensor([-1.0], dtype=torch.float64))
    value.backward()
    assert policy.grad is not None
    assert (value.item(), policy.grad.item()) == pytest.approx(EXPECTED[estimator])


def _kl_gradient(**options: Any) -> float:
    inputs = loss_inputs([[-1.5]], [[0.0]], ref_logprobs=[[-1.0]])
    return gradient(inputs, Dapo(kl_coef=1.0, **options)(inputs).loss)[0][0]


def test_bias_correction_gives_the_gradient_of_the_reverse_kl() -> None:
    # on-policy the ratio is 1, yet d(rho k3) = k3 + (1 - e^u) = -u
    assert _kl_gradient() == pytest.approx(-0.5)
    assert _kl_gradient(kl_bias_correction=False) == pytest.approx(1 - math.exp(0.5))


def test_bias_correction_takes_the_token_ratio_also_with_a_ratio_of_rows() -> None:
    # Only the first token has moved from old; the KL of the second must not be weighed by that.
    inputs = loss_inputs(
        [[-1.5, -1.5]], [[0.0]], old_logprobs=[[-1.7, -1.5]], ref_logprobs=[[-1.0, -1.0]]
    )
    outputs = Dapo(kl_coef=1.0, ratio="sequence_mean")(inputs)
    assert outputs.kl is not None
    assert outputs.kl[0].tolist() == pytest.approx([math.exp(0.2) * K3, K3])
    assert gradient(inputs, outputs.loss)[0][1] == pytest.approx(-0.5 / 2)


def test_combinations_without_the_right_gradient_are_refused() -> None:
    for estimator in ("k2", "abs", "k1+", "k3+"):
        with pytest.raises(ValueError, match=f"spoil the gradient of kl_estimator {estimator}"):
            Dapo(kl_coef=0.1, kl_estimator=estimator)  # type: ignore[arg-type]
        Dapo(kl_coef=0.1, kl_estimator=estimator, kl_bias_correction=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no gradient in expectation"):
        Dapo(kl_coef=0.1, kl_estimator="k1", kl_bias_correction=False)
    Dapo(kl_coef=0.1, kl_estimator="k1")


@pytest.mark.parametrize(("kind", "terms"), [(Gspo, 1 / 2), (Luspo, 1.0)])
def test_losses_of_rows_weigh_the_kl_of_a_token_by_its_own_ratio(
    kind: type[Loss], terms: float
) -> None:
    """Where TRL 1.16 weighs it by the ratio of the row (trl#6586), and one token's KL pushes the others.

    By hand: log-ratios 0.2 and 0 (geometric mean exp(0.1)), u = 0.5 on the first token and 0 on the second, which so
    has no KL and must not be pushed. A = 0 leaves the KL alone.
    """
    inputs = loss_inputs(
        [[-1.5, -1.5]], [[0.0]], old_logprobs=[[-1.7, -1.5]], ref_logprobs=[[-1.0, -1.5]]
    )
    outputs = kind(kl_coef=1.0)(inputs)
    assert outputs.loss.item() == pytest.approx(math.exp(0.2) * K3 * terms)
    # d(rho k3) = rho (k3 + 1 - e^u) = -rho u
    assert gradient(inputs, outputs.loss)[0] == pytest.approx([-0.5 * math.exp(0.2) * terms, 0.0])
