"""The update of one iteration: epochs, optimizer steps and micro-batches.

Rows whose gradient is exactly 0 (advantage 0, no KL) are not computed, and stay in every denominator. Micro-batches
are summed, never averaged, so memory decides how a step is cut up and the gradient does not notice. What a loss needs
to know of the whole step, denominators and the tokens of high entropy, is found before its first micro-batch. A critic,
where there is one, learns from the same micro-batches and takes its steps together with the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollbook.components.coefficients import start_of
from rollbook.components.losses.base import Loss
from rollbook.core.errors import TrainingError
from rollbook.core.ragged import IntArray, Ragged
from rollbook.rl.tokens import off_grid
from rollbook.rl.training.batches import batch_of, deal_to_steps, micro_batches
from rollbook.rl.training.checkpoint import trained_parameters
from rollbook.rl.training.controllers import Controllers
from rollbook.rl.training.logprobs import completion_logprobs
from rollbook.rl.training.optimizer import (
    OptimizerState,
    clip_gradient,
    learning_rate_at,
    make_optimizer,
    moments_of,
)
from rollbook.rl.training.records import LoopSettings, StepRecord, UpdateRecord
from rollbook.rl.training.rows import TrainingRows
from rollbook.rl.training.sharing import break_even_tokens
from rollbook.rl.training.statistics import (
    RowNumbers,
    counts_rows,
    joined,
    row_statistics,
    step_metrics,
)
from rollbook.rl.training.window import Window, loss_inputs, window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rollbook.rl.training.critic import CriticUpdate


class PolicyUpdate:
    """The gradient steps of one iteration on a model, in place."""

    def __init__(
        self,
        model: PreTrainedModel,
        rows: TrainingRows,
        settings: LoopSettings,
        state: OptimizerState,
        critic: CriticUpdate | None = None,
    ) -> None:
        self.model, self.rows, self.settings, self.critic = model, rows, settings, critic
        self.parameters = trained_parameters(model)
        self.device = next(iter(self.parameters.values())).device
        self.optimizer = make_optimizer(self.parameters, settings.update, state)
        self.optimizer_step = state.optimizer_step
        self.controllers = Controllers(settings.update.loss, settings.reward_kl, state.controllers)
        loss = settings.update.loss
        skips = settings.update.skip_zero_gradient and loss.silent_at_zero_advantage
        audible = rows.has_signal | (not skips)
        if critic is not None:  # what says nothing to the policy may say something to the critic
            audible = audible | (critic.tokens > 0)
        # A loss that depends on the split counts the rows of its micro-batches, also those without trained-on tokens.
        tokens = rows.completions.lengths if loss.depends_on_split else rows.trained_tokens
        self.computed = rows.kept & (tokens > 0) & audible
        self.break_even = break_even_tokens(model, rows) if settings.update.share_prompts else None
        self.numbers: RowNumbers = {}
        logprobs = np.zeros(len(rows.completions.values), np.float32)
        self.policy_logprobs = Ragged(logprobs, rows.completions.lengths)

    def run(self, on_rows: Callable[[int, int], None]) -> UpdateRecord:
        """Takes all optimizer steps.

        Args:
            on_rows: called with (rows, tokens) done since the last call, after every micro-batch.

        Raises:
            TrainingError: if a loss, gradient or weight is not finite.
        """
        settings, update, steps = self.settings, self.settings.update, []
        for epoch in range(update.epochs):
            order = (settings.seed, settings.iteration, epoch)
            for index in deal_to_steps(
                self.rows.groups, self.rows.kept, update.optimizer_steps, *order
            ):
                steps.append(self._step(epoch, index, on_rows))
                if len(steps) == 1:
                    first_rows = index[self.computed[index]]
                    first_logprobs = self.policy_logprobs.rows(first_rows)
        self._refuse_broken_weights(self.parameters)
        if self.critic is not None:
            self._refuse_broken_weights(self.critic.parameters)
        moments = moments_of(self.optimizer, self.parameters)
        return UpdateRecord(
            steps,
            self.computed,
            self.numbers,
            self.policy_logprobs,
            first_rows,
            first_logprobs,
            moments,
            self.controllers,
        )

    def _refuse_broken_weights(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            if not torch.isfinite(parameter).all():
                raise TrainingError(
                    f"after the last optimizer step of {self.settings.iteration} the weights {name} are not finite; "
                    "nothing was written",
                    "lower the learning rate",
                )

    def _step(self, epoch: int, index: IntArray, on_rows: Callable[[int, int], None]) -> StepRecord:
        rows, update = self.rows, self.settings.update
        self.optimizer_step += 1
        computed, skipped = index[self.computed[index]], index[~self.computed[index]]
        window = window_of(rows, index, update.loss, update.top_entropy)
        loss = self.controllers.loss()
        self.optimizer.zero_grad()
        if self.critic is not None:
            self.critic.begin_step(index)
        total, policy_loss, entropy, numbers = self._accumulate(computed, window, loss, on_rows)
        skipped_tokens = rows.trained_tokens[skipped]
        on_rows(len(skipped), int(skipped_tokens.sum()))
        grad_norm = clip_gradient(self.parameters.values(), update.max_grad_norm)
        if not (math.isfinite(total) and math.isfinite(grad_norm)):
            raise TrainingError(
                f"optimizer step {self.optimizer_step} (epoch {epoch}) of {self.settings.iteration}: "
                f"loss is {total}, gradient norm {grad_norm}; nothing was written",
                "lower the learning rate, or look for extreme advantages and log-probs in the tables",
            )
        learning_rate = learning_rate_at(update, self.optimizer_step)
        if self.critic is not None and self.critic.moves_alone:
            learning_rate = 0.0  # the moments of the policy go on, its weights stand still
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        metrics = step_metrics(
            numbers,
            counts_rows(loss, rows.token_advantages is not None),
            skipped_tokens.astype(np.float64),
            loss.clip_metrics,
        )
        if update.loss.has_kl:
            metrics["kl_coef"] = start_of(loss.kl_coef)
        if update.loss.has_entropy_bonus:
            metrics |= {
                "policy_loss": policy_loss,
                "entropy_coef": start_of(loss.entropy_coef),
            }
        if self.critic is not None:
            metrics |= self.critic.finish_step()
        self.controllers.after_step(entropy)
        return StepRecord(
            epoch=epoch,
            optimizer_step=self.optimizer_step,
            loss=total,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            tokens=window.tokens,
            rows=len(index),
            rows_skipped=len(skipped),
            tokens_skipped=int(skipped_tokens.sum()),
            metrics=metrics,
        )

    def _accumulate(
        self,
        index: IntArray,
        window: Window,
        loss: Loss,
        on_rows: Callable[[int, int], None],
    ) -> tuple[float, float, float, RowNumbers]:
        """Adds up gradients over the micro-batches of a step.

        Returns:
            Its loss, the same without the entropy bonus, the mean entropy of the tokens that a bonus counts (NaN
            without any), and the statistics of its rows.
        """
        rows, update = self.rows, self.settings.update
        totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        parts = []
        for micro_batch in micro_batches(
            index,
            rows.prompts,
            rows.completions,
            update.micro_batch_tokens,
            self.break_even,
            whole_prompts=loss.needs_pairs,
        ):
            part = micro_batch.rows
            batch = batch_of(micro_batch, rows.prompts, rows.completions, self.device)
            policy = completion_logprobs(
                self.model,
                batch,
                self.settings.temperature,
                update.precision,
                entropy_gradient=loss.has_entropy_bonus,
            )
            inputs = loss_inputs(
                rows,
                part,
                window,
                policy.logprobs,
                policy.entropies,
                self.settings.max_completion_tokens,
            )
            outputs = loss(inputs)
            objective = outputs.loss
            if self.critic is not None:
                objective = objective + self.critic.loss(part, batch, policy.hidden)
            objective.backward()
            counted = inputs.bonus_mask
            entropies = policy.entropies.detach().double().where(counted, 0.0).sum()
            totals += torch.stack(
                [outputs.loss.detach(), outputs.policy_loss, entropies, counted.sum()]
            )
            parts.append(row_statistics(inputs, outputs))
            for name, values in parts[-1].items():
                self.numbers.setdefault(name, np.full(len(rows), np.nan))[part] = values
            logprobs = off_grid(policy.logprobs, batch.completion_mask)
            self.policy_logprobs.values[self.policy_logprobs.places(part)] = logprobs
            on_rows(len(part), int(rows.trained_tokens[part].sum()))
        loss_sum, policy_sum, entropy_sum, tokens = totals.tolist()
        entropy = entropy_sum / tokens if tokens else math.nan
        return loss_sum, policy_sum, entropy, joined(parts)
