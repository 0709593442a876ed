"""From losses of tokens to one number. Denominators belong to the whole optimizer step: micro-batches are summed.

row_mean                (1/R) Σ_i (1/n_i) Σ_t L      GRPO, arXiv 2402.03300 eq. 3; verl `seq-mean-token-mean`
token_mean              (1/N) Σ_i Σ_t L              DAPO, arXiv 2503.14476 eq. 8; verl `token-mean`
constant_length         (1/(R·L_max)) Σ_i Σ_t L      Dr. GRPO, arXiv 2503.20783 §3.2; verl `seq-mean-token-sum-norm`
row_sum                 (1/R) Σ_i Σ_t L              LUSPO, arXiv 2602.05261; verl `seq-mean-token-sum`
token_sum               Σ_i Σ_t L                    verl `token-sum`
group_mean              (1/P) Σ_g (1/N_g) Σ_i Σ_t L  ScaleRL, arXiv 2510.13786 §3 ("prompt average")
micro_batch_token_mean  Σ_b (R_b/(R·N_b)) Σ_i Σ_t L  TRL `bnpo`; b is a micro-batch: memory settings change the result

R rows, P groups and N trained-on tokens of the step, n_i tokens of row i, N_g of group g. A row without tokens counts
in R, as in TRL, unless the loss says `count_empty_rows: false`, as verl does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from rollbook.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal[
    "row_mean",
    "token_mean",
    "constant_length",
    "row_sum",
    "token_sum",
    "group_mean",
    "micro_batch_token_mean",
]

BY_LENGTH: tuple[Aggregation, ...] = (
    "token_mean",
    "constant_length",
    "token_sum",
    "group_mean",
    "micro_batch_token_mean",
)
"""Where a term that stands on all tokens of a row counts once per token. `row_sum` does so too, and means it."""


class WindowCounts(Protocol):
    """What of a micro-batch and its optimizer step denominators are made of; see
    `rollbook.components.losses.base.LossInputs`."""

    @property
    def loss_mask(self) -> Tensor: ...
    @property
    def window_rows(self) -> float: ...
    @property
    def window_tokens(self) -> float: ...
    @property
    def max_completion_tokens(self) -> int: ...
    @property
    def group_tokens(self) -> Tensor | None: ...
    @property
    def window_groups(self) -> float | None: ...


def aggregated(aggregation: Aggregation, per_token: Tensor, inputs: WindowCounts) -> Tensor:
    """Scalar of [B, T] `per_token`, which is 0 where masked.

    Raises:
        TrainingError: for `group_mean` if the inputs do not tell groups.
    """
    if aggregation == "row_mean":
        lengths = inputs.loss_mask.sum(-1).clamp(min=1)
        return (per_token.sum(-1) / lengths).sum() / inputs.window_rows
    if aggregation == "group_mean":
        if inputs.group_tokens is None or not inputs.window_groups:
            raise TrainingError("aggregation group_mean needs to know the groups of its rows")
        return (per_token.sum(-1) / inputs.group_tokens.clamp(min=1)).sum() / inputs.window_groups
    total = per_token.sum()
    if aggregation == "token_mean":
        return total / (inputs.window_tokens or 1)
    if aggregation == "constant_length":
        return total / (inputs.window_rows * inputs.max_completion_tokens)
    if aggregation == "row_sum":
        return total / inputs.window_rows
    if aggregation == "token_sum":
        return total
    share = len(per_token) / inputs.window_rows
    return share * total / inputs.loss_mask.sum().clamp(min=1)
