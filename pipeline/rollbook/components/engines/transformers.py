"""Generation with transformers' own models: batched, one prefill per prompt, a seed per row.

Every row draws its tokens with uniforms of its own (`pipeline/rollbook/components/engines/sampling.py`), so batch size,
order and neighbours change a completion only where rounding moves a probability across the row's uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from rollbook.components.engines.base import BatchedEngine, Completion, GenerationRequest
from rollbook.components.engines.limits import renderer_for
from rollbook.components.prompting import PromptRenderer

if TYPE_CHECKING:
    from rollbook.components.engines.base import Sampling
    from rollbook.components.engines.decoding import Decoder
    from rollbook.core.runtime import Runtime


class Transformers(BatchedEngine):
    """Generates in this process, on the device of the stage.

    Log-probs are those of the distribution after temperature and truncation; greedy rows report theirs under the same.

    Attributes:
        batch_size: rows generated at once; rows of one prompt share its prefill if they are in one batch.
            When a stage is killed, its finished batches are kept.
        dtype: of the weights while generating; `stored` takes that of the policy folder.
    """

    batch_size: PositiveInt = 512
    dtype: Literal["float32", "bfloat16", "stored"] = "float32"

    def agrees_with_trainer(self, precision: str) -> bool:
        return self.dtype == precision == "float32"

    def batches(
        self,
        requests: Sequence[GenerationRequest],
        runtime: Runtime,  # noqa: ARG002
    ) -> list[list[int]]:
        """Prompts of one length stand together, the longest first: little padding, and what does not fit fails soon."""
        order = sorted(
            range(len(requests)), key=lambda place: -len(requests[place].prompt_token_ids)
        )
        return [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]

    def generate_batches(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        batches: Sequence[Sequence[int]],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> Iterator[list[Completion]]:
        """See `RolloutEngine`; the model is loaded once."""
        if not batches:
            return
        renderer = renderer_for(policy, requests, sampling)
        decoder = self.opened(policy, renderer, sampling, runtime)
        for places in batches:
            yield decoder.complete([requests[place] for place in places], on_tokens)

    def opened(
        self, policy: Path, renderer: PromptRenderer, sampling: Sampling, runtime: Runtime
    ) -> Decoder:
        """The policy loaded and ready to generate.

        Args:
            policy: a Hugging Face folder.
            renderer: of this policy; knows its stop tokens.
            sampling: temperature, truncation and length limit.
            runtime: device and threads.

        Raises:
            PolicyError: if the folder cannot be loaded.
        """
        from rollbook.components.policies.loading import load_model, prepare_torch

        model = load_model(policy, prepare_torch(runtime), self.dtype)

        from rollbook.components.engines.decoding import Decoder
        from rollbook.components.engines.lean.model import make_lean

        make_lean(model)
        return Decoder(model, sampling, renderer.stop_token_ids, renderer.pad_token_id)
