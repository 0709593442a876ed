"""What no engine can do: continue an empty prompt, or one that leaves no room for its completion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollbook.components.engines.base import GenerationRequest, Sampling
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import PolicyError

SHOWN_CHARACTERS = 60


def renderer_for(
    policy: Path, requests: Sequence[GenerationRequest], sampling: Sampling
) -> PromptRenderer:
    """The policy's renderer, once every request is seen to fit.

    Raises:
        PolicyError: if a prompt is empty, or with its completion may not fit into the model's context.
    """
    renderer, limit = PromptRenderer(policy, PromptFormat()), sampling.max_completion_tokens
    for place, request in enumerate(requests):
        length = len(request.prompt_token_ids)
        if not length:
            raise PolicyError(f"prompt {place} has no tokens; a model continues at least one")
        if renderer.context_length is not None and length + limit > renderer.context_length:
            text = renderer.decode(request.prompt_token_ids, keep_special=False)
            raise PolicyError(
                f"prompt {place} ({text[:SHOWN_CHARACTERS]!r}) has {length} tokens; with {limit} of completion "
                f"that is more than the {renderer.context_length} that {policy} can read",
                "lower max_completion_tokens, or drop long prompts with max_prompt_tokens",
            )
    return renderer
