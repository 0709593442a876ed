"""head: a critic that is one linear number on the hidden states of the policy itself.

    V[t] = w · h[t] + b        h[t]: what the policy's output head sees where it predicts token t

It costs no second forward pass and hardly any memory. Unless `detach` is set the gradient of the value loss goes on
into the policy's weights, by the policy's optimizer: one network with two heads, as in PPO, arXiv 1707.06347 §5.
`coef` then decides between the two; 0.1 is TRL's `vf_coef`, likewise with ½ inside the loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import PositiveFloat

from rollbook.components.critics.base import Critic

if TYPE_CHECKING:
    import torch


class Head(Critic):
    """A value head on the policy.

    Attributes:
        detach: keep the value loss out of the policy's weights: only the head learns.
    """

    coef: PositiveFloat = 0.1
    detach: bool = False

    def as_read(self) -> Self:
        """See `Critic.as_read`: where a gradient goes is a matter of training too."""
        return super().as_read().model_copy(update={"detach": False})

    def backbone(self, policy: Path, device: torch.device) -> None:  # noqa: ARG002
        """None: the policy's."""
        return

    def seen(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden states, without their gradient if `detach` is set."""
        return hidden.detach() if self.detach else hidden
