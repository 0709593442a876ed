"""The update of one iteration: epochs, optimizer steps and micro-batches.

Rows whose gradient is exactly 0 (advantage 0, no KL) are not computed, and stay in every denominator. Micro-batches
are summed, never averaged, so memory decides how a step is cut up and the gradient does not notice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import TrainingError
from pipeline.losses.base import LossInputs
from pipeline.tokens import IntArray, Ragged, off_grid, token_batch
from pipeline.training.batches import deal_to_steps, micro_batches
from pipeline.training.logprobs import TokenLogprobs, completion_logprobs
from pipeline.training.optimizer import OptimizerState, learning_rate_at, make_optimizer, moments_of
from pipeline.training.records import LoopSettings, StepRecord, UpdateRecord
from pipeline.training.rows import TrainingRows
from pipeline.training.statistics import RowNumbers, joined, row_statistics, step_metrics

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PolicyUpdate:
    """The gradient steps of one iteration on a model, in place."""

    def __init__(
        self,
        model: PreTrainedModel,
        rows: TrainingRows,
        settings: LoopSettings,
        state: OptimizerState,
    ) -> None:
        self.model, self.rows, self.settings = model, rows, settings
        self.parameters = dict(model.named_parameters())
        self.device = next(iter(self.parameters.values())).device
        self.optimizer = make_optimizer(self.parameters, settings.update, state)
        self.optimizer_step = state.optimizer_step
        audible = rows.has_signal | (not settings.update.loss.silent_at_zero_advantage)
        self.computed = rows.kept & (rows.trained_tokens > 0) & audible
        self.numbers: RowNumbers = {}
        logprobs = np.zeros(len(rows.completions.values), np.float32)
        self.policy_logprobs = Ragged(logprobs, rows.completions.lengths)

    def run(self, on_rows: Callable[[int, int], None]) -> UpdateRecord:
        """Takes all optimizer steps.

        Args:
            on_rows: called with (rows, tokens) done since the last call, after every micro-batch.

        Raises:
            TrainingError: if a loss or gradient is not finite.
        """
        settings, update, steps = self.settings, self.settings.update, []
        for epoch in range(update.epochs):
            order = (settings.seed, settings.iteration, epoch)
            for index in deal_to_steps(
                self.rows.groups, self.rows.kept, update.optimizer_steps, *order
            ):
                steps.append(self._step(epoch, index, on_rows))
        moments = moments_of(self.optimizer, self.parameters)
        return UpdateRecord(steps, self.computed, self.numbers, self.policy_logprobs, moments)

    def _step(self, epoch: int, index: IntArray, on_rows: Callable[[int, int], None]) -> StepRecord:
        rows, update = self.rows, self.settings.update
        self.optimizer_step += 1
        computed, skipped = index[self.computed[index]], index[~self.computed[index]]
        tokens = int(rows.trained_tokens[index].sum())
        self.optimizer.zero_grad()
        loss, numbers = self._accumulate(computed, len(index), tokens, on_rows)
        on_rows(len(skipped), int(rows.trained_tokens[skipped].sum()))
        grad_norm = self._clip_gradient()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingError(
                f"optimizer step {self.optimizer_step} (epoch {epoch}) of {self.settings.iteration}: "
                f"loss is {loss}, gradient norm {grad_norm}; nothing was written",
                "lower the learning rate, or look for extreme advantages and log-probs in the tables",
            )
        learning_rate = learning_rate_at(update, self.optimizer_step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return StepRecord(
            epoch=epoch,
            optimizer_step=self.optimizer_step,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            tokens=tokens,
            rows=len(index),
            rows_skipped=len(skipped),
            metrics=step_metrics(
                numbers, update.loss.per_row, rows.trained_tokens[skipped].astype(np.float64)
            ),
        )

    def _accumulate(
        self,
        index: IntArray,
        window_rows: int,
        window_tokens: int,
        on_rows: Callable[[int, int], None],
    ) -> tuple[float, RowNumbers]:
        """Adds up gradients over the micro-batches of a step. Returns its loss and the statistics of its rows."""
        rows, update = self.rows, self.settings.update
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        parts = []
        for part in micro_batches(index, rows.lengths, update.micro_batch_tokens):
            batch = token_batch(rows.prompts.rows(part), rows.completions.rows(part), self.device)
            policy = completion_logprobs(
                self.model, batch, self.settings.temperature, update.precision
            )
            inputs = self._loss_inputs(part, policy, window_rows, window_tokens)
            outputs = update.loss(inputs)
            outputs.loss.backward()
            total += outputs.loss.detach()
            parts.append(row_statistics(inputs, outputs))
            for name, values in parts[-1].items():
                self.numbers.setdefault(name, np.full(len(rows), np.nan))[part] = values
            logprobs = off_grid(policy.logprobs, batch.completion_mask)
            self.policy_logprobs.values[self.policy_logprobs.places(part)] = logprobs
            on_rows(len(part), int(rows.trained_tokens[part].sum()))
        return float(total), joined(parts)

    def _loss_inputs(
        self, index: IntArray, policy: TokenLogprobs, window_rows: int, window_tokens: int
    ) -> LossInputs:
        rows = self.rows

        def grid(lists: Ragged | None) -> Any:
            return None if lists is None else self._tensor(lists.rows(index).padded(0))

        advantages = grid(rows.token_advantages)
        if advantages is None:
            advantages = self._tensor(rows.advantages[index, None]).float()
        return LossInputs(
            policy_logprobs=policy.logprobs,
            advantages=advantages,
            loss_mask=grid(rows.loss_mask),
            window_rows=window_rows,
            window_tokens=window_tokens,
            max_completion_tokens=self.settings.max_completion_tokens,
            old_logprobs=grid(rows.old_logprobs),
            ref_logprobs=grid(rows.ref_logprobs),
            sampling_logprobs=grid(rows.sampling_logprobs),
            entropies=policy.entropies,
        )

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _clip_gradient(self) -> float:
        """Scales gradients down to `max_grad_norm`. Returns the norm before that.

        A parameter without a gradient gets one of zeros: skipped rows would have given it exactly that, and momentum
        and bias correction must go on as if they had.
        """
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = self.settings.update.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(
            self.parameters.values(), math.inf if limit is None else limit
        )
        return float(norm)
