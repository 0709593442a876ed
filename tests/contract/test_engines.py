"""Laws of every engine in `pipeline/engines`, so that a new file is tested on arrival."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Sampling
from pipeline.engines.base import Completion, GenerationRequest, RolloutEngine
from pipeline.errors import PolicyError
from pipeline.policies.byte_tokenizer import EOS_ID
from pipeline.registry import build, menu
from tests.unit.engines.models import CONTEXT_LENGTH, RUNTIME, nothing, requests_for, save_llama

ENGINES = menu("engines")
LIMIT = 6
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.3},
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("policy"))


def _generate(
    name: str, policy: Path, requests: list[GenerationRequest], **sampling: Any
) -> list[Completion]:
    engine = build("engines", name)
    assert isinstance(engine, RolloutEngine)
    settings = Sampling.model_validate({"max_completion_tokens": LIMIT, **sampling})
    return engine.generate(policy, requests, settings, RUNTIME, nothing)


def test_there_are_engines() -> None:
    assert "transformers" in ENGINES


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_says_what_it_is(name: str) -> None:
    engine = build("engines", name)
    assert len((importlib.import_module(f"pipeline.engines.{name}").__doc__ or "").split()) > 10
    assert build("engines", engine.settings()) == engine


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ENGINES)
def test_completions_are_well_formed(name: str, policy: Path, sampling: dict[str, Any]) -> None:
    requests = requests_for(prompts=20, samples=4)
    made = _generate(name, policy, requests, **sampling)
    assert len(made) == len(requests)
    assert {each.finish_reason for each in made} == {"stop", "length"}
    for each in made:
        assert 1 <= len(each.token_ids) == len(each.logprobs) <= LIMIT
        assert all(math.isfinite(value) and value <= 0 for value in each.logprobs)
        assert all(isinstance(token, int) and token >= 0 for token in each.token_ids)
        assert EOS_ID not in each.token_ids[:-1]
        assert (each.finish_reason == "stop") == (each.token_ids[-1] == EOS_ID)
        assert each.finish_reason == "stop" or len(each.token_ids) == LIMIT


@pytest.mark.parametrize("name", ENGINES)
def test_a_request_decides_its_completion(name: str, policy: Path) -> None:
    """Again, in another order, with others: the same. With another seed: another."""
    requests = requests_for(prompts=20, samples=4)
    made = _generate(name, policy, requests)
    assert _generate(name, policy, requests) == made
    few = _generate(name, policy, requests[:40:-3])
    assert [each.token_ids for each in few] == [each.token_ids for each in made[:40:-3]]
    others = _generate(name, policy, [replace(each, seed=each.seed + 1) for each in requests])
    same = sum(a.token_ids == b.token_ids for a, b in zip(made, others, strict=True))
    assert same < len(made) / 2


@pytest.mark.parametrize("name", ENGINES)
def test_greedy_rows_do_not_look_at_their_seed(name: str, policy: Path) -> None:
    requests = requests_for(prompts=10, samples=2, greedy=True)
    mixed = [*requests, *requests_for(prompts=10, samples=2)]
    made = _generate(name, policy, mixed)[: len(requests)]
    assert [each.token_ids for each in made[::2]] == [each.token_ids for each in made[1::2]]


@pytest.mark.parametrize("name", ENGINES)
def test_truncation_narrows_what_is_sampled_and_renormalises(name: str, policy: Path) -> None:
    """With one token left, every log-prob is that of certainty, and the token is the greedy one."""
    requests = requests_for(prompts=10, samples=2)
    certain = _generate(name, policy, requests, top_k=1)
    greedy = _generate(name, policy, [replace(each, greedy=True) for each in requests])
    assert [each.token_ids for each in certain] == [each.token_ids for each in greedy]
    assert all(value == pytest.approx(0, abs=1e-6) for each in certain for value in each.logprobs)
    whole = _generate(name, policy, requests)
    assert min(min(each.logprobs) for each in whole) < -1


@pytest.mark.parametrize("name", ENGINES)
def test_what_cannot_be_done_is_a_policy_error(name: str, policy: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        _generate(name, tmp_path, requests_for(1, 1))
    too_long = GenerationRequest([1, *[40] * CONTEXT_LENGTH], seed=0)
    with pytest.raises(PolicyError, match="prompt 1"):
        _generate(name, policy, [*requests_for(1, 1), too_long])
