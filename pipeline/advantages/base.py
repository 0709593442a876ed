"""The interface of an advantage estimator: rewards of groups in, advantages out. NumPy float64, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.component import Component

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator may look at. `B` rollouts, `K` reward functions; NaN means missing.

    Attributes:
        rewards: [B] weighted totals; NaN = no reward applies (unscorable).
        groups: [B] integer label of each rollout's group; members need not be contiguous.
        components: [B, K] unweighted reward of each function.
        weights: [K] their weights.
        lengths: [B] trained-on tokens of each completion.
    """

    rewards: FloatArray
    groups: IntArray
    components: FloatArray
    weights: FloatArray
    lengths: IntArray


@dataclass(frozen=True)
class AdvantageOutputs:
    """Advantages and what they were computed from, all [B].

    Attributes:
        advantages: 0 for rows that carry no signal; never NaN.
        group_mean: baseline subtracted from the reward; NaN where a group has no scorable member.
        group_std: the deviation it was divided by, without eps, or would have been; NaN where undefined.
        informative: whether the row's group has any spread of rewards.
    """

    advantages: FloatArray
    group_mean: FloatArray
    group_std: FloatArray
    informative: NDArray[np.bool_]


class AdvantageEstimator(Component):
    """Turns the rewards of groups into advantages; see the file of each for formula and source."""

    kind: ClassVar[str] = "advantages"

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        raise NotImplementedError
