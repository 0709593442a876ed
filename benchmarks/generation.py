"""Generation alone: engine `transformers`, plain `model.generate` and engine `vllm`, alternating in one run.

Each is a process of its own that has SmolLM2 loaded and generates when it is told to; the others wait meanwhile.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from benchmarks.tables import markdown, spread
from rollbook.components.engines.base import GenerationRequest, Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.engines.vllm import Vllm
from rollbook.components.policies.smollm2 import Smollm2
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.runtime import Runtime, VllmRuntime
from tests.e2e.projects import environment

PROMPTS, GROUP_SIZE, TOKENS = 8, 8, 24
ROUNDS = 5
"""Measured ones; one more goes before, to warm up."""
THREADS = 2
RUNTIME = Runtime(device="cpu", threads=THREADS, vllm=VllmRuntime(kv_cache_gib=0.5))
SAMPLING = Sampling(max_completion_tokens=TOKENS)
Dtype = Literal["float32", "bfloat16"]
Generate = Callable[[int], int]
"""The number of a round in, completion tokens out."""
OWN, PLAIN, VLLM = "engine transformers", "model.generate", "engine vllm"


def report(rounds: int = ROUNDS) -> str:
    """One table per dtype; vLLM is in it where it is installed."""
    with TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        policy.mkdir()
        Smollm2(name="smollm2").create([], 0, RUNTIME).write(policy)
        sections = [_compared(policy, dtype, rounds) for dtype in get_args(Dtype)]
    return (
        f"## Generation\n\nSmolLM2-135M-Instruct, {PROMPTS} prompts × {GROUP_SIZE} answers × at most {TOKENS} tokens, "
        f"temperature 1, {THREADS} threads; {rounds} rounds, in which each generates once; models loaded and warm. "
        f"`{PLAIN}` gives no log-probs, both engines do. Ratio: time per token over that of `{PLAIN}` in the same "
        "round, median, smallest and largest.\n\n" + "\n\n".join(sections)
    )


def _compared(policy: Path, dtype: Dtype, rounds: int) -> str:
    names = [PLAIN, OWN, *([VLLM] if find_spec("vllm") else [])]
    with ExitStack() as stack:
        steps = {name: stack.enter_context(_process(policy, dtype, name)) for name in names}
        measured = [{name: step() for name, step in steps.items()} for _ in range(rounds + 1)][1:]
    rows = []
    for name in names:
        ratios = [each[name] / each[PLAIN] for each in measured]
        speed = statistics.median(1 / each[name] for each in measured)
        rows.append([name, f"{speed:.0f}", "–" if name == PLAIN else spread(ratios)])
    return f"### {dtype}\n\n{markdown(['', 'tokens/s', 'ratio'], rows)}"


@contextmanager
def _process(policy: Path, dtype: Dtype, name: str) -> Iterator[Callable[[], float]]:
    """A function that lets one of them generate once, and returns its seconds per token."""
    log = policy.parent / f"{dtype} {name}.log"
    with (
        log.open("w") as stream,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generation", str(policy), dtype, name],
            env={**environment(), "OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None

        def step() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{name} ended: {log.read_text(encoding='utf-8')[-2000:]}")
            return float(json.loads(line))

        try:
            yield step
        finally:
            process.kill()


def _serve(policy: Path, dtype: Dtype, name: str) -> None:
    """What such a process does: for every line it reads, it generates and prints seconds per token."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    with ExitStack() as stack:
        generate = {OWN: _own, PLAIN: _plain, VLLM: _vllm}[name](policy, dtype, stack)
        for number, _ in enumerate(sys.stdin):
            started = time.perf_counter()
            tokens = generate(number)
            print((time.perf_counter() - started) / tokens, file=answers, flush=True)


def _requests(policy: Path, number: int) -> list[GenerationRequest]:
    """Groups of requests for sums; every round has seeds of its own."""
    messages: Sequence[Any] = [
        [
            {
                "role": "user",
                "content": f"What is {7 + 5 * place} + {41 - 3 * place}? Answer with just the number.",
            }
        ]
        for place in range(PROMPTS)
    ]
    return [
        GenerationRequest(prompt.token_ids, 1000 * number + 10 * place + sample)
        for place, prompt in enumerate(PromptRenderer(policy, PromptFormat()).render_all(messages))
        for sample in range(GROUP_SIZE)
    ]


def _own(policy: Path, dtype: Dtype, _stack: ExitStack) -> Generate:
    renderer = PromptRenderer(policy, PromptFormat())
    decoder = Transformers(name="transformers", dtype=dtype).opened(
        policy, renderer, SAMPLING, RUNTIME
    )

    def generate(number: int) -> int:
        made = decoder.complete(_requests(policy, number), lambda _rows, _tokens: None)
        return sum(len(each.token_ids) for each in made)

    return generate


def _vllm(policy: Path, dtype: Dtype, stack: ExitStack) -> Generate:
    context = TOKENS + max(len(each.prompt_token_ids) for each in _requests(policy, 0))
    engine = Vllm(name="vllm", dtype=dtype)
    complete = stack.enter_context(engine.opened(policy, context, RUNTIME))
    stops = PromptRenderer(policy, PromptFormat()).stop_token_ids

    def generate(number: int) -> int:
        made = complete(_requests(policy, number), SAMPLING, stops, lambda _rows, _tokens: None)
        return sum(len(each.token_ids) for each in made)

    return generate


def _plain(policy: Path, dtype: Dtype, _stack: ExitStack) -> Generate:
    """As trainers call it: every row with its own copy of the prompt, padded on the left."""
    import torch

    from rollbook.components.policies.loading import load_model, prepare_torch

    model = load_model(policy, prepare_torch(RUNTIME), dtype)
    renderer = PromptRenderer(policy, PromptFormat())
    stops, pad = torch.tensor(renderer.stop_token_ids), renderer.pad_token_id

    def generate(number: int) -> int:
        torch.manual_seed(number)
        prompts = [list(each.prompt_token_ids) for each in _requests(policy, number)]
        width = max(map(len, prompts))
        padded = [[pad] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        with torch.inference_mode():
            made: Any = model.generate(
                input_ids=torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=TOKENS,
                eos_token_id=stops.tolist(),
                pad_token_id=pad,
            )
        ends = torch.isin(made[:, width:], stops)
        behind_the_end = (ends.cumsum(-1) - ends.long()) > 0
        return int((~behind_the_end).sum())

    return generate


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3])  # type: ignore[arg-type]
    else:
        print(report(*map(int, sys.argv[1:])))
