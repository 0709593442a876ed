"""The checks: generators of findings, each over the same project, in the order of `CHECKS`."""

from __future__ import annotations

import contextlib
import importlib.util
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from rollbook.components.engines.base import Completion
from rollbook.components.engines.transformers import Transformers
from rollbook.core.ids import BASE_KEY
from rollbook.core.registry import build
from rollbook.rl.training import logprobs as logprobs_module
from tests.gpu.findings import Finding, at_least, at_most, same
from tests.gpu.project import Project, keys_of

ROUNDING = 1e-3
"""Nats, or relative to the length of a gradient: in float32 the order of additions alone changes less."""
BFLOAT16_NATS = 0.1
"""Mean difference of a token's log-prob where one side or both compute in bfloat16, in which the likeliest logits here
are 0.06 apart; a token that sees the wrong ones is off by more than one."""
BFLOAT16_GRADIENT = 0.2
"""Relative to the length of the gradient in float32."""
EQUAL_ROWS = 0.9
"""Share of completions that another batch leaves as they are: rounding moves a draw now and then, on a GPU."""
ALONE = 8
"""Rows that are generated again, each in a batch of its own."""
UNLIMITED = 2**62


def _two_iterations(project: Project, recipe: str) -> Iterator[Finding]:
    first, second = keys_of(recipe)
    metrics = project.train(recipe, first)
    written = project.digest(first)
    project.train(recipe, first)
    yield same(
        f"{recipe}: an iteration run twice writes the same policy", written == project.digest(first)
    )
    project.train(recipe, second)
    moved = len({project.digest(key) for key in (BASE_KEY, first, second)}) == 3
    yield Finding(
        f"{recipe}: both iterations change the policy",
        "ok" if moved else "FAILED",
        f"gradient norm {metrics['grad_norm']:.3g}",
    )


def float_iterations(project: Project) -> Iterator[Finding]:
    """Engine and trainer run the same code."""
    yield from _two_iterations(project, "float")
    gaps = project.differences("float0001", "float32")
    yield at_most("float32: engine and trainer, log-prob of a token, largest", gaps.max(), ROUNDING)


def bfloat_iterations(project: Project) -> Iterator[Finding]:
    """Half the bits, master weights in full."""
    yield from _two_iterations(project, "bfloat")
    gaps = project.differences("bfloat0001", "bfloat16")
    yield at_most(
        "bfloat16: engine and trainer, log-prob of a token, mean", gaps.mean(), BFLOAT16_NATS
    )


def lora_iterations(project: Project) -> Iterator[Finding]:
    """An adapter on the base, merged by the engine."""
    yield from _two_iterations(project, "lora")
    gaps = project.differences("lora0002", "bfloat16")
    yield at_most(
        "lora: merged in the engine and beside its base in the trainer, log-prob of a token, mean",
        float(gaps.mean()),
        BFLOAT16_NATS,
    )


def gradients(project: Project) -> Iterator[Finding]:
    """One step computed in several ways."""
    with _logits_at_once(UNLIMITED):
        plain = project.gradient(share_prompts=False)
        again = project.gradient(share_prompts=False)
    yield same(
        "gradient: computed twice", all(torch.equal(plain[name], again[name]) for name in plain)
    )
    few = project.size.tokens * 4
    ways: dict[str, dict[str, Any]] = {
        "prompts shared": {"share_prompts": True},
        "small micro-batches": {"share_prompts": False, "micro_batch_tokens": few},
        "gradient checkpointing": {"share_prompts": False, "gradient_checkpointing": True},
    }
    for name, settings in ways.items():
        off = _apart(project.gradient(**settings), plain)
        yield at_most(f"gradient: {name}, relative difference", off, ROUNDING)
    with _logits_at_once(project.size.vocabulary * 8):
        off = _apart(project.gradient(share_prompts=False), plain)
        yield at_most("gradient: head in chunks, relative difference", off, ROUNDING)
    reduced = {"precision": "bfloat16", "gradient_checkpointing": True, "share_prompts": True}
    off = _apart(project.gradient(**reduced), plain)
    yield at_most("gradient: bfloat16, relative difference", off, BFLOAT16_GRADIENT)


def generation(project: Project) -> Iterator[Finding]:
    """A row's own seed decides it, and prompts padded on the left are what they are without."""
    requests = project.requests()
    dtypes: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        whole = Transformers(name="transformers", dtype=dtype)
        made = project.generated(whole, requests)
        yield same(f"generation: {dtype}, twice", made == project.generated(whole, requests))
    whole = Transformers(name="transformers")
    made = project.generated(whole, requests)
    some = slice(None, None, len(requests) // ALONE)
    alone = project.generated(Transformers(name="transformers", batch_size=1), requests[some])
    yield at_least(
        "generation: float32, rows alone as in a batch", _equal(alone, made[some]), EQUAL_ROWS
    )


def vllm(project: Project) -> Iterator[Finding]:
    """The other engine: as the first, and through the stages."""
    if importlib.util.find_spec("vllm") is None:
        yield Finding("vllm", "skipped", "vllm is not installed")
        return
    dtype: Any = "float32" if project.kind == "cpu" else "bfloat16"
    # In bfloat16 the two likeliest tokens are often less than its rounding apart: first tokens and a lower bound.
    limit, length = (0.95, None) if dtype == "float32" else (0.7, 1)
    requests = project.requests(greedy=True)
    own = project.generated(Transformers(name="transformers", dtype=dtype), requests)
    engine: Any = build("engines", {"name": "vllm", "dtype": dtype})
    theirs = project.generated(engine, requests)
    part = "answers" if length is None else "first tokens"
    yield at_least(
        f"vllm: {dtype}, greedy {part} as transformers'", _equal(own, theirs, length), limit
    )
    metrics = project.train("vllm", "vllm0001")
    yield Finding("vllm: an iteration", "ok", f"gradient norm {metrics['grad_norm']:.3g}")
    gaps = project.differences("vllm0001", "float32")
    yield at_most(
        "vllm: bfloat16 and trainer, log-prob of a token, mean", float(gaps.mean()), BFLOAT16_NATS
    )


def memory(project: Project) -> Iterator[Finding]:
    """What bfloat16 and gradient checkpointing are for."""
    if project.kind != "cuda":
        yield Finding("GPU memory", "skipped", f"there is none on {project.kind}")
        return
    peaks = {
        recipe: project.costs[recipe, "update_policy"].peak_mib
        for recipe in ("float", "bfloat", "lora")
    }
    for recipe in ("bfloat", "lora"):
        share = peaks[recipe] / peaks["float"]
        yield at_most(f"GPU memory: update of {recipe} over that of float", share, 1.0)


Check = Callable[[Project], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    float_iterations,
    gradients,
    generation,
    bfloat_iterations,
    lora_iterations,
    vllm,
    memory,
)


def _equal(
    some: Sequence[Completion], others: Sequence[Completion], length: int | None = None
) -> float:
    """Share of rows with the same tokens, or the same `length` first tokens."""
    pairs = list(zip(some, others, strict=True))
    return sum(a.token_ids[:length] == b.token_ids[:length] for a, b in pairs) / len(pairs)


def _apart(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """Length of the difference over that of the second."""
    squares = [
        ((some[name] - value).double().square().sum(), value.double().square().sum())
        for name, value in others.items()
    ]
    apart, whole = (float(sum(part)) ** 0.5 for part in zip(*squares, strict=True))
    return apart / whole


@contextlib.contextmanager
def _logits_at_once(numbers: int) -> Iterator[None]:
    """Lets only so many logits exist at once."""
    before = logprobs_module.LOGITS_AT_ONCE
    logprobs_module.LOGITS_AT_ONCE = numbers
    try:
        yield
    finally:
        logprobs_module.LOGITS_AT_ONCE = before


def found(project: Project, checks: Sequence[Check]) -> Iterator[Finding]:
    """Runs checks; one that raises has failed, and the others go on."""
    for check in checks:
        try:
            yield from check(project)
        except Exception as error:
            traceback.print_exc()
            reason = " ".join(str(error).split())
            yield Finding(check.__name__, "FAILED", f"{type(error).__name__}: {reason[:200]}")
