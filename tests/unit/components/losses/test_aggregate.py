import pytest
import torch

from rollbook.components.losses.aggregate import Aggregation, aggregated
from rollbook.core.errors import TrainingError
from tests.unit.components.losses.inputs import loss_inputs

# Three rows of a step of four, with 1, 2 and 0 tokens of 8 in the step; the generation limit is 10.
MASK = [[1, 0], [1, 1], [0, 0]]
PER_TOKEN = torch.tensor([[2.0, 0.0], [1.0, 4.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("aggregation", "want"),
    [
        ("row_mean", (2.0 + 5.0 / 2 + 0.0) / 4),
        ("token_mean", 7.0 / 8),
        ("constant_length", 7.0 / (4 * 10)),
        ("row_sum", 7.0 / 4),
        ("token_sum", 7.0),
        ("group_mean", (2.0 / 4 + 5.0 / 4 + 0.0) / 2),
        ("micro_batch_token_mean", 3 / 4 * 7.0 / 3),
    ],
)
def test_denominators(aggregation: Aggregation, want: float) -> None:
    inputs = loss_inputs(
        [[0.0] * 2] * 3,
        [[0.0]] * 3,
        MASK,
        window_rows=4,
        window_tokens=8,
        group_tokens=[4.0, 4.0, 1.0],
        window_groups=2,
    )
    assert aggregated(aggregation, PER_TOKEN, inputs).item() == pytest.approx(want)


def test_a_mean_over_groups_needs_to_know_them() -> None:
    inputs = loss_inputs([[0.0]], [[0.0]], [[1]])
    with pytest.raises(TrainingError, match="needs to know the groups"):
        aggregated("group_mean", torch.zeros(1, 1), inputs)


@pytest.mark.parametrize("aggregation", ["row_mean", "token_mean", "micro_batch_token_mean"])
def test_a_step_without_tokens_is_0(aggregation: Aggregation) -> None:
    inputs = loss_inputs([[0.0]], [[0.0]], [[0]])
    assert aggregated(aggregation, torch.zeros(1, 1), inputs).item() == 0


def test_a_share_of_a_window_need_not_be_whole() -> None:
    inputs = loss_inputs([[0.0]], [[0.0]], [[1]], window_tokens=0.5)
    assert aggregated("token_mean", torch.tensor([[3.0]]), inputs).item() == 6
