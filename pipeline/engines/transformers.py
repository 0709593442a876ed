"""Generation with transformers' own models: batched, one prefill per prompt, a seed per row.

Every row draws its tokens with uniforms of its own (`pipeline/engines/sampling.py`), so batch size, order and
neighbours change a completion only where rounding moves a probability across the row's uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from pipeline.config import PromptFormat
from pipeline.engines.base import Completion, GenerationRequest, RolloutEngine
from pipeline.errors import PolicyError
from pipeline.prompting import PromptRenderer

if TYPE_CHECKING:
    from pipeline.config import Runtime, Sampling

SHOWN_CHARACTERS = 60


class Transformers(RolloutEngine):
    """Generates in this process, on the device of the stage.

    Log-probs are those of the distribution after temperature and truncation; greedy rows report theirs under the same.

    Attributes:
        batch_size: rows generated at once; rows of one prompt share its prefill if they are in one batch.
        dtype: of the weights while generating; `stored` takes that of the policy folder.
    """

    batch_size: PositiveInt = 512
    dtype: Literal["float32", "bfloat16", "stored"] = "float32"

    def agrees_with_trainer(self, precision: str) -> bool:
        return self.dtype == precision == "float32"

    def generate(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> list[Completion]:
        if not requests:
            return []
        renderer = PromptRenderer(policy, PromptFormat())
        _refuse_too_long(requests, sampling.max_completion_tokens, renderer, policy)

        from pipeline.engines.decoding import Decoder
        from pipeline.policies.loading import load_model, prepare_torch

        decoder = Decoder(
            load_model(policy, prepare_torch(runtime), self.dtype),
            sampling,
            renderer.stop_token_ids,
            renderer.pad_token_id,
        )
        # Prompts of one length stand together, the longest first: little padding, and what does not fit fails at once.
        order = sorted(
            range(len(requests)), key=lambda place: -len(requests[place].prompt_token_ids)
        )
        completions: dict[int, Completion] = {}
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            made = decoder.complete([requests[place] for place in places], on_tokens)
            completions.update(zip(places, made, strict=True))
        return [completions[place] for place in range(len(requests))]


def _refuse_too_long(
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
