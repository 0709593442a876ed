import math

import numpy as np
import pytest
import torch

from rollbook.components.losses.base import LossOutputs
from rollbook.rl.training.statistics import joined, row_statistics, step_metrics
from tests.unit.components.losses.inputs import loss_inputs


def _rows(mask: list[list[int]] | None = None) -> dict[str, np.ndarray]:
    """Two rows of three tokens; ratios 0.5, 1, 4 in each; one low clip in row 0, two high clips in row 1."""
    inputs = loss_inputs(
        [[-1.0] * 3] * 2, [[1.0]] * 2, mask, entropies=[[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]]
    )
    outputs = LossOutputs(
        loss=torch.tensor(0.0),
        per_token=torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.0, -4.0]]),
        ratio=torch.tensor([[0.5, 1.0, 4.0]] * 2),
        clipped_low=torch.tensor([[True, False, False], [False] * 3]),
        clipped_high=torch.tensor([[False] * 3, [True, False, True]]),
        policy_loss=torch.tensor(0.0),
        kl=torch.tensor([[0.3, 0.0, 0.0], [0.3, 0.6, 0.0]]),
        row_metrics={"own/metric": torch.tensor([1.0, 2.0])},
    )
    return row_statistics(inputs, outputs)


def test_sums_of_rows() -> None:
    rows = _rows()
    assert rows["tokens"].tolist() == [3, 3]
    assert rows["absolute_loss"].tolist() == [6, 4]
    assert rows["ratio"].tolist() == [5.5, 5.5]
    assert (rows["ratio_min"].tolist(), rows["ratio_max"].tolist()) == ([0.5, 0.5], [4, 4])
    # (r - 1) - log r: 0.5 -> -0.5 + ln 2, 1 -> 0, 4 -> 3 - 2 ln 2; together 2.5 - ln 2
    assert rows["kl_old"].tolist() == pytest.approx([2.5 - math.log(2)] * 2)


def test_metrics_of_tokens() -> None:
    metrics = step_metrics(_rows(), per_row=False)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(1 / 6)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(2 / 6)
    assert metrics["clip_ratio/region_mean"] == pytest.approx(3 / 6)
    assert metrics["clip_ratio/low_min"] == 0  # row 1 has none
    assert metrics["clip_ratio/high_max"] == pytest.approx(2 / 3)
    assert metrics["kl"] == pytest.approx(1.2 / 6)
    assert metrics["entropy"] == pytest.approx(6.6 / 6)
    assert metrics["kl_old"] == pytest.approx((2.5 - math.log(2)) / 3)
    assert metrics["ratio/mean"] == pytest.approx(11 / 6)
    assert (metrics["ratio/min"], metrics["ratio/max"]) == (0.5, 4)
    assert metrics["own/metric"] == 1.5


def test_skipped_rows_count_as_not_clipped() -> None:
    metrics = step_metrics(_rows(), per_row=False, skipped_tokens=np.array([4.0, 0.0]))
    assert metrics["clip_ratio/high_mean"] == pytest.approx(2 / 10)
    assert metrics["clip_ratio/low_min"] == 0
    assert metrics["entropy"] == pytest.approx(6.6 / 6)  # not known of them
    by_row = step_metrics(_rows(), per_row=True, skipped_tokens=np.array([4.0, 0.0]))
    assert by_row["clip_ratio/high_mean"] == pytest.approx((2 / 3) / 4)


def test_a_row_without_tokens_has_no_share_and_no_extreme() -> None:
    rows = _rows([[0, 0, 0], [1, 1, 1]])
    assert math.isnan(rows["ratio_min"][0])
    metrics = step_metrics(rows, per_row=False)
    assert metrics["clip_ratio/low_min"] == 0
    assert metrics["clip_ratio/high_max"] == pytest.approx(2 / 3)
    assert metrics["ratio/min"] == 0.5


def test_where_rows_are_counted_a_row_without_tokens_is_one_that_is_not_clipped() -> None:
    rows = _rows([[0, 0, 0], [1, 1, 1]])
    whole = {**rows, "clipped_low": np.array([0.0, 3.0])}
    metrics = step_metrics(whole, per_row=True)
    assert metrics["clip_ratio/low_mean"] == 0.5
    assert metrics["clip_ratio/low_min"] == 0
    alone = {name: values[1:] for name, values in whole.items()}
    assert step_metrics(alone, per_row=True)["clip_ratio/low_min"] == 1
    skipped = step_metrics(alone, per_row=True, skipped_tokens=np.array([0.0]))
    assert skipped["clip_ratio/low_min"] == 0


def test_rows_that_are_masked_throughout_have_a_kl_of_0() -> None:
    metrics = step_metrics(_rows([[0, 0, 0], [0, 0, 0]]), per_row=False)
    assert metrics["kl"] == metrics["entropy"] == 0  # as TRL, which divides by at least 1
    assert math.isnan(metrics["clip_ratio/low_min"])


def test_further_names_repeat_a_metric() -> None:
    metrics = step_metrics(
        _rows(), False, further_names={"cispo_clip_ratio": "clip_ratio/high_mean"}
    )
    assert metrics["cispo_clip_ratio"] == metrics["clip_ratio/high_mean"] == pytest.approx(2 / 6)


def test_nothing_to_average_is_nan_and_never_an_error() -> None:
    metrics = step_metrics(joined([]), per_row=False)
    shares = {name: value for name, value in metrics.items() if name.startswith("clip_ratio/")}
    assert all(math.isnan(value) for name, value in metrics.items() if name not in shares)
    assert shares["clip_ratio/region_mean"] == 0  # as TRL, which divides by at least 1
    skipped = step_metrics(joined([]), per_row=False, skipped_tokens=np.array([2.0]))
    assert skipped["clip_ratio/region_mean"] == 0


def test_joined_rows_give_the_metrics_of_the_whole() -> None:
    rows = _rows()
    parts = [{name: values[k : k + 1] for name, values in rows.items()} for k in range(2)]
    assert step_metrics(joined(parts), False) == step_metrics(rows, False)
