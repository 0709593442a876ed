"""network: a critic that is a transformer of its own, begun as a copy of the policy.

    V[t] = w · h[t] + b        h[t]: the last hidden state of its own transformer where token t is predicted

The usual form for language models (InstructGPT, arXiv 2203.02155 appendix C; verl). Policy and critic do not disturb
each other, and its price is that of a second model in training: weights, gradients, two moments and a forward and
backward pass. The copy is made when a chain has no such critic yet; an adapter is merged into it first, and all of its
weights are trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.components.critics.base import Critic

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Network(Critic):
    """A value network."""

    def backbone(self, policy: Path, device: torch.device) -> PreTrainedModel:
        """A copy of the policy in float32."""
        from rollbook.components.policies.loading import load_model

        return load_model(policy, device, for_training=True)
