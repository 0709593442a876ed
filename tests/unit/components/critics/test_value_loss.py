import pytest
import torch

from rollbook.components.critics.value_loss import ValueInputs, ValueOutputs, value_loss
from rollbook.components.losses.aggregate import Aggregation

NAN = float("nan")


def _run(
    values: list[list[float]],
    old: list[list[float]],
    returns: list[list[float]],
    mask: list[list[bool]],
    clip: float | None = 0.5,
    aggregation: Aggregation = "token_mean",
) -> tuple[ValueOutputs, torch.Tensor]:
    """Its outputs and the gradient in the values."""
    given = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    loss_mask = torch.tensor(mask)
    outputs = value_loss(
        ValueInputs(
            values=given,
            old_values=torch.tensor(old, dtype=torch.float64),
            returns=torch.tensor(returns, dtype=torch.float64),
            loss_mask=loss_mask,
            window_rows=int(loss_mask.any(-1).sum()),
            window_tokens=int(loss_mask.sum()),
            max_completion_tokens=4,
            group_tokens=torch.tensor([int(loss_mask.sum())] * len(values)),
            window_groups=1,
        ),
        clip,
        aggregation,
    )
    outputs.loss.backward()
    assert given.grad is not None
    return outputs, given.grad


def test_half_the_squared_error() -> None:
    outputs, gradient = _run([[1.0, 3.0]], [[1.0, 3.0]], [[2.0, 0.0]], [[True, True]])
    assert outputs.loss.item() == 0.5 * (1.0 + 9.0) / 2
    assert gradient.tolist() == [[-0.5, 1.5]]
    assert not outputs.clipped.any()


def test_moving_towards_the_return_is_not_rewarded_beyond_the_clip() -> None:
    outputs, gradient = _run([[1.5, 0.2]], [[0.0, 0.0]], [[2.0, 2.0]], [[True, True]])
    assert outputs.loss.item() == pytest.approx(0.5 * (1.5**2 + 1.8**2) / 2)
    assert gradient[0, 0] == 0 and gradient[0, 1] < 0
    assert outputs.clipped.tolist() == [[True, False]]
    free, _ = _run([[1.5, 0.2]], [[0.0, 0.0]], [[2.0, 2.0]], [[True, True]], clip=None)
    assert free.loss.item() == pytest.approx(0.5 * (0.5**2 + 1.8**2) / 2)
    assert not free.clipped.any()


def test_moving_away_is_punished_beyond_the_clip() -> None:
    outputs, gradient = _run([[-1.5]], [[0.0]], [[2.0]], [[True]])
    assert outputs.loss.item() == 0.5 * 3.5**2
    assert gradient[0, 0] < 0


def test_masked_positions_do_not_matter_even_if_they_are_nan() -> None:
    given = [[1.0, NAN]], [[1.0, NAN]], [[2.0, NAN]]
    outputs, gradient = _run(*given, [[True, False]])
    assert outputs.loss.item() == 0.5
    assert gradient.tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (1 + 1 + 9) / 3),
        ("row_mean", ((1 + 1) / 2 + 9) / 2),
        ("row_sum", (1 + 1 + 9) / 2),
        ("token_sum", 1 + 1 + 9),
        ("constant_length", (1 + 1 + 9) / (2 * 4)),
        ("group_mean", (1 + 1 + 9) / 3),
    ],
)
def test_errors_are_aggregated_as_losses_are(aggregation: Aggregation, expected: float) -> None:
    values, mask = [[1.0, 1.0], [3.0, 0.0]], [[True, True], [True, False]]
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    outputs, _ = _run(values, values, zeros, mask, aggregation=aggregation)
    assert outputs.loss.item() == pytest.approx(0.5 * expected)
