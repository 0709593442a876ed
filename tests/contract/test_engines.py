"""Laws of every engine in `pipeline/rollbook/components/engines`, so that a new file is tested on arrival.

vLLM is the real one. It takes long to start, so one model serves all tests of this file.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from rollbook.components.engines.base import Completion, GenerationRequest, RolloutEngine, Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.engines.vllm import Vllm
from rollbook.components.policies.byte_tokenizer import EOS_ID
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.errors import PolicyError
from rollbook.core.registry import build, menu
from tests.unit.components.engines.models import (
    CONTEXT_LENGTH,
    HEAD_SIZE,
    RUNTIME,
    need_vllm,
    nothing,
    requests_for,
    save_llama,
)

ENGINES = menu("engines")
LIMIT = 6
TOLERANCE = 1e-4
"""Nats by which the log-probs of one token may differ between two engines in float32; 2e-6 was seen."""
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.3},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
]


class Generate(Protocol):
    """Generates with one engine and the policy of this file, or a folder with the same weights."""

    def __call__(
        self, requests: list[GenerationRequest], folder: Path = ..., **sampling: Any
    ) -> list[Completion]: ...


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("policy"), head_dim=HEAD_SIZE)


@pytest.fixture(scope="module", params=ENGINES)
def generate(request: pytest.FixtureRequest, policy: Path) -> Iterator[Generate]:
    engine = build("engines", {"name": request.param, "dtype": "float32"})
    if isinstance(engine, Vllm):
        need_vllm()
        with engine.opened(policy, CONTEXT_LENGTH, RUNTIME) as complete:
            yield lambda requests, folder=policy, **sampling: complete(
                requests,
                _sampling(sampling),
                PromptRenderer(folder, PromptFormat()).stop_token_ids,
                nothing,
            )
        return
    assert isinstance(engine, RolloutEngine)
    yield lambda requests, folder=policy, **sampling: engine.generate(
        folder, requests, _sampling(sampling), RUNTIME, nothing
    )


def _sampling(settings: dict[str, Any]) -> Sampling:
    return Sampling.model_validate({"max_completion_tokens": LIMIT, **settings})


def _greedy(requests: list[GenerationRequest]) -> list[GenerationRequest]:
    return [replace(request, greedy=True) for request in requests]


def test_there_are_engines() -> None:
    assert {"transformers", "vllm"} <= set(menu("engines"))


@pytest.mark.parametrize("name", menu("engines"))
def test_an_engine_says_what_it_is(name: str) -> None:
    engine = build("engines", name)
    assert (
        len((importlib.import_module(f"rollbook.components.engines.{name}").__doc__ or "").split())
        > 10
    )
    assert build("engines", engine.settings()) == engine


@pytest.mark.parametrize("name", menu("engines"))
def test_what_cannot_be_done_is_a_policy_error(name: str, policy: Path, tmp_path: Path) -> None:
    engine = build("engines", name)
    assert isinstance(engine, RolloutEngine)
    with pytest.raises(PolicyError):
        engine.generate(tmp_path, requests_for(1, 1), _sampling({}), RUNTIME, nothing)
    too_long = GenerationRequest([1, *[40] * CONTEXT_LENGTH], seed=0)
    for wrong in (too_long, GenerationRequest([], seed=0)):
        with pytest.raises(PolicyError, match="prompt 1"):
            engine.generate(policy, [*requests_for(1, 1), wrong], _sampling({}), RUNTIME, nothing)
    assert engine.generate(policy, [], _sampling({}), RUNTIME, nothing) == []


@pytest.mark.parametrize("name", menu("engines"))
@pytest.mark.parametrize("size", [1, 7, 500])
def test_every_request_is_in_one_batch(name: str, size: int) -> None:
    engine = build("engines", {"name": name, "batch_size": size})
    assert isinstance(engine, RolloutEngine)
    requests = requests_for(prompts=20, samples=4)
    batches = engine.batches(requests, RUNTIME)
    assert sorted(place for places in batches for place in places) == list(range(len(requests)))
    assert max(map(len, batches)) == min(size, len(requests))
    assert engine.batches([], RUNTIME) == []


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_completions_are_well_formed(generate: Generate, sampling: dict[str, Any]) -> None:
    requests = requests_for(prompts=20, samples=4)
    made = generate(requests, **sampling)
    assert len(made) == len(requests)
    assert {each.finish_reason for each in made} == {"stop", "length"}
    for each in made:
        assert 1 <= len(each.token_ids) == len(each.logprobs) <= LIMIT
        assert all(math.isfinite(value) and value <= 0 for value in each.logprobs)
        assert all(isinstance(token, int) and token >= 0 for token in each.token_ids)
        assert EOS_ID not in each.token_ids[:-1]
        assert (each.finish_reason == "stop") == (each.token_ids[-1] == EOS_ID)
        assert each.finish_reason == "stop" or len(each.token_ids) == LIMIT


def test_a_request_decides_its_completion(generate: Generate) -> None:
    """Again, in another order, with others: the same. With another seed: another."""
    requests = requests_for(prompts=20, samples=4)
    made = generate(requests)
    assert generate(requests) == made
    few = generate(requests[:40:-3])
    assert [each.token_ids for each in few] == [each.token_ids for each in made[:40:-3]]
    others = generate([replace(each, seed=each.seed + 1) for each in requests])
    same = sum(a.token_ids == b.token_ids for a, b in zip(made, others, strict=True))
    assert same < len(made) / 2


def test_more_prompt_tokens_than_fit_into_one_batch(generate: Generate) -> None:
    """vLLM then reads prompts over several steps, which must not touch the seeds of rows."""
    requests = [
        GenerationRequest([1, *range(6, 46), 46 + place % 200], seed=place) for place in range(240)
    ]
    made = generate(requests, max_completion_tokens=2)
    alone = generate(requests[200:210], max_completion_tokens=2)
    assert [each.token_ids for each in alone] == [each.token_ids for each in made[200:210]]


def test_greedy_rows_do_not_look_at_their_seed(generate: Generate) -> None:
    requests = requests_for(prompts=10, samples=2, greedy=True)
    mixed = [*requests, *requests_for(prompts=10, samples=2)]
    made = generate(mixed)[: len(requests)]
    assert [each.token_ids for each in made[::2]] == [each.token_ids for each in made[1::2]]


def test_truncation_narrows_what_is_sampled_and_renormalises(generate: Generate) -> None:
    """With one token left, every log-prob is that of certainty, and the token is the greedy one."""
    requests = requests_for(prompts=10, samples=2)
    certain = generate(requests, top_k=1)
    greedy = generate(_greedy(requests))
    assert [each.token_ids for each in certain] == [each.token_ids for each in greedy]
    assert all(value == pytest.approx(0, abs=1e-6) for each in certain for value in each.logprobs)
    whole = generate(requests)
    assert min(min(each.logprobs) for each in whole) < -1


@pytest.mark.parametrize("limit", [1, 2])
def test_a_stop_token_at_the_limit_is_a_stop(generate: Generate, limit: int) -> None:
    made = generate(requests_for(prompts=30, samples=2), max_completion_tokens=limit)
    for each in made:
        assert (each.finish_reason == "stop") == (each.token_ids[-1] == EOS_ID)
    assert any(len(each.token_ids) == limit and each.finish_reason == "stop" for each in made)


def test_every_stop_token_of_the_generation_config_ends_a_row(
    generate: Generate, policy: Path, tmp_path: Path
) -> None:
    requests = requests_for(prompts=20, samples=4)
    inner = Counter(token for made in generate(requests) for token in made.token_ids[:-1])
    stops = {EOS_ID, inner.most_common(1)[0][0]}
    folder = shutil.copytree(policy, tmp_path / "policy")
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = sorted(stops)
    (folder / "generation_config.json").write_text(json.dumps(config))
    made = generate(requests, folder)
    assert {each.token_ids[-1] for each in made if each.finish_reason == "stop"} == stops
    for each in made:
        assert sum(token in stops for token in each.token_ids) == (each.finish_reason == "stop")


def test_engines_give_the_same_greedy_answers(generate: Generate, policy: Path) -> None:
    requests = _greedy(requests_for(prompts=30, samples=1))
    reference = Transformers(name="transformers").generate(
        policy, requests, _sampling({}), RUNTIME, nothing
    )
    made = generate(requests)
    for got, expected in zip(made, reference, strict=True):
        assert (got.token_ids, got.finish_reason) == (expected.token_ids, expected.finish_reason)
        assert got.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    generate: Generate, policy: Path, sampling: dict[str, Any]
) -> None:
    """Measured again for the tokens that came out, with a plain forward pass over each whole row."""
    import torch

    from rollbook.components.engines.sampling import sampling_logprobs
    from rollbook.components.policies.loading import load_model

    requests = requests_for(prompts=12, samples=2)
    made = generate(requests, **sampling)
    model, settings = load_model(policy, torch.device("cpu")), _sampling(sampling)
    for request, got in zip(requests, made, strict=True):
        ids = [*request.prompt_token_ids, *got.token_ids]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        first = len(request.prompt_token_ids) - 1
        logprobs = sampling_logprobs(logits[first:-1], settings)
        expected = logprobs.gather(-1, torch.tensor(got.token_ids)[:, None])[:, 0]
        assert got.logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_tokens_come_as_often_as_their_probabilities_say(generate: Generate, policy: Path) -> None:
    """First tokens of 2,000 seeds on one prompt: the commonest within five standard errors."""
    prompt = requests_for(1, 1)[0].prompt_token_ids
    made = generate(
        [GenerationRequest(prompt, seed) for seed in range(2000)], max_completion_tokens=1
    )
    counts = Counter(each.token_ids[0] for each in made)
    share = {each.token_ids[0]: math.exp(each.logprobs[0]) for each in made}
    for token, count in counts.most_common(5):
        error = math.sqrt(share[token] * (1 - share[token]) / len(made))
        assert abs(count / len(made) - share[token]) < 5 * error
