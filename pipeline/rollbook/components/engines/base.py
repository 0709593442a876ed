"""The interface of a rollout engine: prompts in; completions with ids, log-probs and finish reason out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from rollbook.core.component import Component, Model, Share

if TYPE_CHECKING:
    from rollbook.core.runtime import Runtime

FinishReason = Literal["stop", "length", "error"]


class Sampling(Model):
    """How completions are drawn. Log-probs are always those of the distribution that was sampled from."""

    max_completion_tokens: PositiveInt = 512
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegativeInt = 0
    """Keep only the k likeliest tokens; 0 keeps all."""
    min_p: Share = 0.0
    """Drop tokens less likely than this share of the likeliest one."""

    @property
    def truncates(self) -> bool:
        """Whether part of the distribution is cut away, so that log-probs are renormalised."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True)
class GenerationRequest:
    """One completion to be made.

    Attributes:
        prompt_token_ids: as rendered by prepare_prompts; never re-tokenized.
        seed: decides this completion alone, whatever else is in the batch.
        greedy: take the likeliest token at every step instead of sampling.
    """

    prompt_token_ids: Sequence[int]
    seed: int
    greedy: bool = False


@dataclass(frozen=True)
class Completion:
    """One completion.

    Attributes:
        token_ids: sampled ids; the stop token, if one was sampled, is the last and counts once.
        logprobs: of each id under the distribution it was sampled from (after temperature and truncation), nats.
        finish_reason: `stop` (a stop token), `length` (the limit), `error`.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason


class RolloutEngine(Component):
    """Generates completions from a policy folder."""

    kind: ClassVar[str] = "engines"

    def agrees_with_trainer(self, precision: str) -> bool:  # noqa: ARG002
        """Whether its log-probs are, but for rounding, those of a trainer of this precision."""
        return False

    def generate(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> list[Completion]:
        """Generates one completion per request, in the order of the requests.

        Args:
            policy: a Hugging Face folder.
            requests: what to generate; rows are independent of each other beyond floating point.
            sampling: temperature, truncation and length limit of all rows.
            runtime: device and threads.
            on_tokens: called as work proceeds with (completions finished, tokens generated) since the last call.

        Raises:
            PolicyError: if the folder cannot be loaded.
        """
        raise NotImplementedError

    def batches(
        self,
        requests: Sequence[GenerationRequest],
        runtime: Runtime,  # noqa: ARG002
    ) -> list[list[int]]:
        """Places of the requests, each in the one batch it is generated in.

        The bits of a completion may depend on the requests of its batch and on nothing else: when a stage is killed,
        its finished batches are kept and the others generated alone. Default: one batch, so nothing is kept.
        """
        return [list(range(len(requests)))]

    def generate_batches(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        batches: Sequence[Sequence[int]],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> Iterator[list[Completion]]:
        """The completions of some of `batches(requests)`, one batch after the other, each as soon as it is done.

        See `generate` for arguments and errors.
        """
        for places in batches:
            asked = [requests[place] for place in places]
            yield self.generate(policy, asked, sampling, runtime, on_tokens)


class BatchedEngine(RolloutEngine):
    """An engine with batches of its own: it says `batches` and `generate_batches`, and `generate` is all of them."""

    def generate(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> list[Completion]:
        batches = self.batches(requests, runtime)
        return in_order(
            batches,
            self.generate_batches(policy, requests, batches, sampling, runtime, on_tokens),
        )


def in_order(
    batches: Sequence[Sequence[int]], completions: Iterable[Sequence[Completion]]
) -> list[Completion]:
    """The completions of all batches in the order of the requests."""
    found = {
        place: completion
        for places, made in zip(batches, completions, strict=True)
        for place, completion in zip(places, made, strict=True)
    }
    return [found[place] for place in range(len(found))]
