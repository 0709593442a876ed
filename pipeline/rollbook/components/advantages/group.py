"""group: rewards relative to the answers to the same prompt, the advantage of GRPO.

    A_i = (r_i − μ_g) / (σ + eps)

    scale: group   σ of the row's own group (GRPO, arXiv 2402.03300 §4.1.2)
    scale: batch   σ of the raw rewards of the whole batch (TRL's `scale_rewards="batch"`)
    scale: none    A_i = r_i − μ_g (Dr. GRPO, arXiv 2503.20783, eq. 3): no division, which would give nearly solved and
                   nearly unsolved prompts more weight

σ is the population deviation by default, which gives +1.41 −0.94 +0.47 −0.94 for rewards .8 .3 .6 .3; TRL and verl
divide by G − 1 (`std_ddof: 1`), the same but for a factor sqrt((G − 1) / G). Rows without a reward are left out of μ
and σ and get 0, as do groups in which all rewards are equal, up to rounding, or fewer than two rows have one.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.moments import Ddof, Eps, Singletons, std_of


class Group(Singletons, AdvantageEstimator):
    """Group-relative advantages.

    Attributes:
        scale: what the centred reward is divided by.
        std_ddof: 0 = population deviation, 1 = sample deviation.
        eps: added to σ; makes a spread far below it harmless instead of ±1.
    """

    scale: Literal["group", "batch", "none"] = "group"
    std_ddof: Ddof = 0
    eps: Eps = 1e-4

    def __call__(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        group = self.compared(inputs, self.std_ddof)
        std = group.std
        if self.scale == "batch":
            std = np.full(len(inputs.rewards), std_of(inputs.rewards, self.std_ddof))
        advantages = np.zeros(len(inputs.rewards))
        signal = group.spread & ~np.isnan(inputs.rewards)
        centred = inputs.rewards[signal] - group.mean[signal]
        advantages[signal] = centred if self.scale == "none" else centred / (std[signal] + self.eps)
        return AdvantageOutputs(advantages, group.mean, std, group.spread)
