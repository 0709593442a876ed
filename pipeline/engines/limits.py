"""What no engine can do: continue an empty prompt, or one that leaves no room for its completion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.engines.base import GenerationRequest
from pipeline.errors import PolicyError
from pipeline.prompting import PromptRenderer

SHOWN_CHARACTERS = 60


def refuse_too_long(
    requests: Sequence[GenerationRequest], limit: int, renderer: PromptRenderer, policy: Path
) -> None:
    """Raises PolicyError if a prompt is empty, or with its completion may not fit into the model's context."""
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
