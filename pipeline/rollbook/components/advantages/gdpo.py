"""gdpo: each reward function is normalised in its group before the weighted sum.

    z_{i,k} = (r_{i,k} − μ_{g,k}) / (σ_{g,k} + eps)      0 where missing or without spread
    s_i = Σ_k w_k z_{i,k}
    A_i = (s_i − mean(s)) / (std(s) + eps)               whiten: completion, over the rows of the batch (TRL 1.16)
    A_i = (s_i − mean(s)) / sqrt(var(s) + 1e-8)          whiten: token, each s_i once per trained-on token (verl)

GDPO, arXiv 2601.05242; TRL `multi_objective_aggregation="normalize_then_sum"`, there and in verl with `std_ddof: 1`.
Against GRPO: a reward with a wide range cannot drown the others, so weights are what they say, and answers with equal
totals still differ if their parts do. With `token` long answers count more and a group without spread is moved off 0.
Rows without a reward or without a scorable sibling get 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
    Arithmetic,
    FloatArray,
)
from rollbook.components.advantages.kl_reward import READS_PARTS, refuse_penalty
from rollbook.components.advantages.moments import (
    NOISE,
    Ddof,
    Eps,
    Moments,
    moments_of,
    normalizing,
    std_of,
    whitening,
)
from rollbook.components.advantages.writing import bracketed, divisor, less, number, signed
from rollbook.core.ragged import IntArray


@dataclass(frozen=True)
class Scores:
    """Weighted sums of z-scores before the last step.

    Attributes:
        sums: [B]; NaN without a reward.
        spread: [B] whether some reward differs within the row's group.
        counted: [B] rows that get an advantage.
        mean, factor: A = (s − mean) · factor.
    """

    sums: FloatArray
    spread: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    mean: float
    factor: float


class Gdpo(AdvantageEstimator):
    """Weighted sum of the z-scores of each reward function.

    Attributes:
        whiten: what counts once in the last step: a completion or a token.
        std_ddof: 0 = population deviation, 1 = sample deviation; `token` always takes the sample deviation last.
        eps: added to σ.
    """

    reads_total: ClassVar[bool] = False

    whiten: Literal["completion", "token"] = "completion"
    std_ddof: Ddof = 0
    eps: Eps = 1e-4

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Advantages of a batch.

        Raises:
            ConfigError: if there is a KL penalty in the rewards.
        """
        refuse_penalty(inputs, f"gdpo {READS_PARTS}")
        total = moments_of(inputs.rewards, inputs.groups, self.std_ddof)
        scores = self.scores(inputs)
        advantages = np.zeros(len(inputs.rewards))
        advantages[scores.counted] = (scores.sums[scores.counted] - scores.mean) * scores.factor
        std = np.full(len(advantages), std_of(scores.sums, self.std_ddof))
        return AdvantageOutputs(advantages, total.mean, std, scores.spread)

    def z_scores(
        self, values: FloatArray, groups: IntArray
    ) -> tuple[FloatArray, NDArray[np.bool_], Moments]:
        """[B] z of one reward function, whether its group has spread, and the moments it was made with.

        Args:
            values: [B] rewards; NaN = missing.
            groups: [B] labels.
        """
        part = moments_of(values, groups, self.std_ddof)
        signal = part.spread & ~np.isnan(values)
        z = np.zeros(len(values))
        z[signal] = (values[signal] - part.mean[signal]) / (part.std[signal] + self.eps)
        return z, part.spread, part

    def scores(self, inputs: AdvantageInputs) -> Scores:
        """Weighted sums of z, and how they are centred and scaled in the end."""
        rows = len(inputs.rewards)
        sums, size, spread = np.zeros(rows), np.zeros(rows), np.zeros(rows, dtype=bool)
        for weight, values in zip(inputs.weights, inputs.components.T, strict=True):
            if weight != 0:
                z, differs, _ = self.z_scores(values, inputs.groups)
                sums += weight * z
                size += np.abs(weight * z)
                spread |= differs
        sums[np.abs(sums) <= NOISE * size] = 0.0  # parts that cancel leave rounding
        sums[~inputs.scorable] = np.nan
        if self.whiten == "token":
            alone = moments_of(inputs.rewards, inputs.groups, self.std_ddof).count < 2
            counted = inputs.scorable & ~alone
            mean, factor = whitening(np.repeat(sums[counted], inputs.lengths[counted]))
        else:
            counted = inputs.scorable & spread  # without spread, s is 0, and so is the batch's mean
            mean, factor = normalizing(sums, self.std_ddof, self.eps)
        return Scores(sums, spread, counted, mean, factor)

    def arithmetic(self, inputs: AdvantageInputs, row: int) -> Arithmetic:
        """See `AdvantageEstimator.arithmetic`."""
        scores = self.scores(inputs)
        if not scores.spread[row]:
            return ["no reward differs within its group: no signal, A = 0"], 0.0
        lines = []
        for place, (weight, values) in enumerate(
            zip(inputs.weights, inputs.components.T, strict=True), 1
        ):
            z, _, part = self.z_scores(values, inputs.groups)
            if weight == 0 or not z[row]:
                lines.append(f"z of reward {place} counts 0")
                continue
            lines.append(
                f"z of reward {place} = {less(float(values[row]), float(part.mean[row]))} / "
                f"({number(float(part.std[row]))} + {self.eps:g}) = {signed(float(z[row]))}, weight {weight:g}"
            )
        own = float(scores.sums[row])
        value = (own - scores.mean) * scores.factor
        return [
            *lines,
            f"s = Σ weight · z = {signed(own)}",
            f"A = ({signed(own)} − {bracketed(scores.mean)}) / {divisor(scores.factor)} = {signed(value)}, "
            "by mean and deviation of s in the iteration",
        ], value
