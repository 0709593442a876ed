"""What an update is told, and what it says it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollbook.components.coefficients import KlCoefficient
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.training.controllers import Controllers
from rollbook.rl.training.statistics import RowNumbers

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.settings.recipe_sections import UpdatePolicy


@dataclass(frozen=True)
class LoopSettings:
    """What decides an update besides the model and its rows.

    Attributes:
        update: settings of the recipe.
        temperature: the rollouts were sampled with.
        max_completion_tokens: limit they were generated under.
        seed, iteration: decide the order of groups.
        reward_kl: `compute_advantages.kl_coef`; 0 = the KL, if any, is in the loss.
    """

    update: UpdatePolicy
    temperature: float
    max_completion_tokens: int
    seed: int
    iteration: str
    reward_kl: KlCoefficient = 0.0


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    Attributes:
        epoch: pass over the rollouts, from 0.
        optimizer_step: counted along the chain of iterations, from 1.
        loss: sum over micro-batches.
        grad_norm: before clipping.
        learning_rate: it was taken with.
        tokens: trained-on tokens of the step, those of skipped rows included.
        rows: rollouts of the step.
        rows_skipped: of them not computed, because their gradient is 0.
        tokens_skipped: trained-on tokens of those.
        metrics: by TRL's names.
    """

    epoch: int
    optimizer_step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    rows: int
    rows_skipped: int
    tokens_skipped: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class UpdateRecord:
    """What an update did.

    Attributes:
        steps: in order.
        computed: [R] rows that went through the model.
        numbers: [R] statistics of each row as last seen, NaN where it was not computed.
        policy_logprobs: of each completion as last seen, before that optimizer step; 0 where not computed.
        first_rows: computed rows of the first optimizer step, in the order of the step.
        first_logprobs: of those, per completion token: the policy has not moved yet.
        moments: of the optimizer afterwards.
        controllers: coefficients that follow a target, as they stand after the last step.
    """

    steps: list[StepRecord]
    computed: NDArray[np.bool_]
    numbers: RowNumbers
    policy_logprobs: Ragged
    first_rows: IntArray
    first_logprobs: Ragged
    moments: Mapping[str, Mapping[str, Tensor]]
    controllers: Controllers

    @property
    def mean_kl(self) -> float:
        """KL term of the loss per token, nats: mean over rollouts, as last seen; NaN without a KL term."""
        if "kl" not in self.numbers:
            return float("nan")
        tokens = self.numbers["tokens"]
        seen = tokens > 0
        return (
            float((self.numbers["kl"][seen] / tokens[seen]).mean()) if seen.any() else float("nan")
        )
