"""The laws of a loss of pairs; values and gradients of TRL are in the vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollbook.components.losses.base import LossInputs
from rollbook.components.losses.dpo import Dpo
from rollbook.core.errors import TrainingError
from rollbook.rl.training.statistics import joined, row_statistics, step_metrics
from tests.unit.components.losses.inputs import gradient, loss_inputs

POLICY = [[-1.0, -0.5, -2.0], [-0.3, -0.7, 0.0], [-1.5, 0.0, 0.0], [-0.2, -0.4, -0.6]]
REF = [[-1.2, -0.4, -1.0], [-0.1, -0.9, 0.0], [-1.0, 0.0, 0.0], [-0.3, -0.3, -0.3]]
MASK = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
PAIRS = [[0, 1], [3, 2], [1, 2]]
"""Their chosen answers have 8 tokens, all answers 9."""
VARIANTS: list[dict[str, Any]] = [
    {"variant": "sigmoid"},
    {"variant": "sigmoid", "ld_alpha": 0.3},
    {"variant": "sigmoid", "sft_coef": 0.5},
    {"variant": "sigmoid_norm"},
    {"variant": "hinge"},
    {"variant": "ipo"},
    {"variant": "robust", "label_smoothing": 0.1},
    {"variant": "exo_pair", "label_smoothing": 0.01},
    {"variant": "apo_zero"},
]
every_variant = pytest.mark.parametrize("options", VARIANTS, ids=str)


def given(policy: list[list[float]] = POLICY, pairs: list[list[int]] = PAIRS) -> LossInputs:
    made = loss_inputs(policy, [[0.0]] * len(policy), MASK, ref_logprobs=REF)
    chosen = torch.tensor(pairs)[:, 0]
    return replace(
        made,
        pairs=torch.tensor(pairs),
        window_pairs=len(pairs),
        window_chosen_tokens=int(made.loss_mask.sum(-1)[chosen].sum()),
    )


def by_hand(options: dict[str, Any], beta: float = 0.1) -> float:
    """The mean over pairs, a token at a time in plain floats."""
    total, supervised, count = 0.0, 0.0, 0
    smoothing, alpha = options.get("label_smoothing", 0.0), options.get("ld_alpha", 1.0)
    for chosen, rejected in PAIRS:
        shorter = min(sum(MASK[chosen]), sum(MASK[rejected]))
        h, n = [], []
        for row in (chosen, rejected):
            tokens = range(sum(MASK[row]))
            h.append(
                sum(
                    (1.0 if t < shorter else alpha) * (POLICY[row][t] - REF[row][t]) for t in tokens
                )
            )
            n.append(len(tokens))
        supervised -= sum(POLICY[chosen][: n[0]])
        count += n[0]
        x = beta * (h[0] - h[1])
        of_token = h[0] / n[0] - h[1] / n[1]
        total += {
            "sigmoid": -_log_sigmoid(x),
            "sigmoid_norm": -_log_sigmoid(beta * of_token),
            "hinge": max(0.0, 1 - x),
            "ipo": (of_token - 1 / (2 * beta)) ** 2,
            "robust": (smoothing * _log_sigmoid(-x) - (1 - smoothing) * _log_sigmoid(x))
            / (1 - 2 * smoothing),
            "exo_pair": _sigmoid(x) * (_log_sigmoid(x) - math.log(1 - smoothing))
            + _sigmoid(-x) * (_log_sigmoid(-x) - math.log(smoothing or 1)),
            "apo_zero": 1 - _sigmoid(beta * h[0]) + _sigmoid(beta * h[1]),
        }[options["variant"]]
    return total / len(PAIRS) + options.get("sft_coef", 0.0) * supervised / count


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _log_sigmoid(x: float) -> float:
    return math.log(_sigmoid(x))


@every_variant
def test_the_value_is_that_of_the_formula(options: dict[str, Any]) -> None:
    outputs = Dpo(**options)(given())
    assert outputs.loss.item() == pytest.approx(by_hand(options), rel=1e-12)


@every_variant
def test_the_gradient_is_that_of_the_value(options: dict[str, Any]) -> None:
    loss, inputs, step = Dpo(**options), given(), 1e-6
    found = gradient(inputs, loss(inputs).loss)
    for row, place in ((0, 0), (0, 2), (1, 1), (2, 0), (3, 2)):
        values = []
        for sign in (1, -1):
            moved = [list(each) for each in POLICY]
            moved[row][place] += sign * step
            values.append(loss(given(moved)).loss.item())
        slope = (values[0] - values[1]) / (2 * step)
        assert found[row][place] == pytest.approx(slope, rel=1e-5, abs=1e-9)


@every_variant
def test_the_chosen_go_up_and_the_rejected_down(options: dict[str, Any]) -> None:
    inputs = given(pairs=[[0, 1], [3, 2]])
    found = gradient(inputs, Dpo(**options)(inputs).loss)
    assert max(found[0][0], found[3][0]) < 0 < min(found[1][0], found[2][0])


@every_variant
def test_pairs_of_a_step_may_be_split_over_micro_batches(options: dict[str, Any]) -> None:
    """Denominators are those of the step, and so are the metrics."""
    loss, inputs = Dpo(**options), given(pairs=[[0, 1], [3, 2]])
    whole = loss(inputs)
    parts, statistics = [], []
    for rows in ([0, 1], [2, 3]):
        part = _rows(inputs, rows)
        outputs = loss(part)
        parts.append(outputs.loss)
        statistics.append(row_statistics(part, outputs))
    total = parts[0] + parts[1]
    assert total.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    split, together = gradient(inputs, total), gradient(inputs, whole.loss)
    for one, other in zip(split, together, strict=True):
        assert one == pytest.approx(other, rel=1e-12, abs=1e-15)
    metrics = step_metrics(joined(statistics), loss.per_row)
    assert metrics == pytest.approx(
        step_metrics(row_statistics(inputs, whole), loss.per_row), rel=1e-12, nan_ok=True
    )


def _rows(inputs: LossInputs, rows: list[int]) -> LossInputs:
    index = torch.tensor(rows)
    names = ("policy_logprobs", "advantages", "loss_mask", "ref_logprobs")
    taken: dict[str, Tensor] = {name: getattr(inputs, name)[index] for name in names}
    assert inputs.pairs is not None
    local = [
        [rows.index(one), rows.index(other)]
        for one, other in inputs.pairs.tolist()
        if one in rows and other in rows
    ]
    return replace(inputs, **taken, pairs=torch.tensor(local))


def test_metrics_are_means_over_pairs() -> None:
    inputs = given()
    metrics = step_metrics(row_statistics(inputs, Dpo()(inputs)), False)
    gain = [
        sum(p - r for p, r in zip(*both, strict=True)) for both in zip(POLICY, REF, strict=True)
    ]
    up, down = ([gain[pair[side]] for pair in PAIRS] for side in (0, 1))
    assert metrics["rewards/chosen"] == pytest.approx(0.1 * sum(up) / 3)
    assert metrics["rewards/rejected"] == pytest.approx(0.1 * sum(down) / 3)
    assert metrics["rewards/margins"] == pytest.approx(0.1 * (sum(up) - sum(down)) / 3)
    assert metrics["rewards/accuracies"] == sum(a > b for a, b in zip(up, down, strict=True)) / 3
    assert metrics["logps/chosen"] == pytest.approx(sum(sum(POLICY[pair[0]]) for pair in PAIRS) / 3)
    assert metrics["ratio/mean"] == 1 and metrics["clip_ratio/region_mean"] == 0


@pytest.mark.parametrize("options", VARIANTS[:3], ids=str)
def test_the_parts_of_the_loss_add_up_to_it(options: dict[str, Any]) -> None:
    outputs = Dpo(**options)(given())
    assert outputs.per_token.sum().item() / len(PAIRS) == pytest.approx(outputs.loss.item())
    assert not outputs.per_token[~given().loss_mask].any()


def test_where_the_policy_is_the_reference_every_token_is_pushed_alike() -> None:
    inputs = given(REF, [[0, 2]])
    found = gradient(inputs, Dpo(beta=0.2)(inputs).loss)
    assert found[0] == pytest.approx([-0.1] * 3) and found[2][0] == pytest.approx(0.1)
    assert not any(found[1] + found[3])


def test_settings_that_say_nothing_are_refused() -> None:
    for options, said in (
        ({"label_smoothing": 0.1}, "variant sigmoid has no label_smoothing"),
        ({"variant": "exo_pair"}, "needs label_smoothing above 0"),
        ({"variant": "robust", "label_smoothing": 0.5}, "less than 0.5"),
        ({"kl_coef": 0.1}, "no use for `kl_coef`"),
        ({"aggregation": "row_mean"}, "no use for `aggregation`"),
        ({"ratio": "sequence_mean"}, "no importance ratio"),
    ):
        with pytest.raises(ValidationError, match=said):
            Dpo.model_validate(options)
    assert Dpo().needs_reference and not Dpo().has_kl and not Dpo().silent_at_zero_advantage


def test_what_is_missing_is_said() -> None:
    with pytest.raises(TrainingError, match="got no pairs"):
        Dpo()(replace(given(), pairs=None))
    with pytest.raises(TrainingError, match="no log-probs of the reference"):
        Dpo()(replace(given(), ref_logprobs=None))
