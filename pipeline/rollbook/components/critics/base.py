"""The interface of a critic: what learns how much reward is still to come at each token, V[t].

    loss = ½ · agg(max((V − R)², (clamp(V, V_old ± value_clip) − R)²))        R: the returns of the estimator

PPO, arXiv 1707.06347 eq. 9, with the clip of its reference implementation; verl `compute_value_loss`. V[t] is read
where token t is predicted, so it has seen the prompt and the tokens before t. A critic is a linear head on the hidden
states of a transformer: the policy's, or one of its own. The head begins at 0, so a critic that has learned nothing
says 0 everywhere. `pipeline/rollbook/rl/training/critic.py` runs and trains it; it travels in `values/<key>`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from rollbook.components.losses.aggregate import Aggregation
from rollbook.core.component import Component

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Critic(Component):
    """What all critics share: how they learn. They are always trained and stored in float32.

    Attributes:
        learning_rate: of the critic's own AdamW, constant; null takes that of the policy, without its warm-up. Betas,
            epsilon and weight decay are the policy's.
        coef: weight of the value loss. Where the critic has a transformer of its own AdamW takes it out again, but for
            the clipping of the gradient.
        value_clip: how far V may move in an update until the loss stops to reward it. null turns the clip off.
        aggregation: how losses of tokens become one number (`pipeline/rollbook/components/losses/aggregate.py`).
        warmup_steps: the first optimizer steps of a critic, in which the policy stands still: its learning rate is 0
            (verl `critic_warmup`, which counts iterations).
        max_grad_norm: the critic's gradient is scaled down to this norm; null leaves it as it is.
    """

    kind: ClassVar[str] = "critics"

    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    coef: PositiveFloat = 1.0
    value_clip: PositiveFloat | None = 0.2
    aggregation: Aggregation = "token_mean"
    warmup_steps: NonNegativeInt = 0
    max_grad_norm: PositiveFloat | None = 1.0

    @model_validator(mode="after")
    def _does_not_depend_on_the_split(self) -> Critic:
        if self.aggregation == "micro_batch_token_mean":
            raise ValueError(
                "with aggregation micro_batch_token_mean memory settings would change what the critic learns; "
                "take token_mean"
            )
        return self

    @property
    def label(self) -> str:
        """What its folder calls it: the name, or the path of one of the user's own."""
        return self.path or self.name

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        found = super().cautions()
        if self.learning_rate is None:
            found.append(
                "update_policy.critic: it learns at the learning rate of the policy, and begins by knowing nothing; "
                "ten times that is usual (verl: 1e-5 beside 1e-6)"
            )
        return found

    def as_read(self) -> Self:
        """The same with defaults for all that only training looks at: another learning rate measures nothing again."""
        own = Critic.model_fields.keys() - Component.model_fields.keys()
        defaults = {name: Critic.model_fields[name].default for name in own}
        return self.model_copy(update=defaults)

    def backbone(self, policy: Path, device: torch.device) -> PreTrainedModel | None:
        """The transformer of its own that it begins with; None: it reads the hidden states of the policy.

        Args:
            policy: folder of the policy at hand.
            device: where the weights go.

        Raises:
            PolicyError: if the folder cannot be loaded.
        """
        raise NotImplementedError

    def seen(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] what its head sees of the hidden states; not detached, their gradient reaches the transformer."""
        return hidden
