import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.components.engines.base import Completion, GenerationRequest, Sampling
from rollbook.components.engines.sampling import choose, sampling_logprobs, uniforms
from rollbook.components.engines.transformers import Transformers
from rollbook.components.policies.byte_tokenizer import EOS_ID, save_byte_tokenizer
from rollbook.components.policies.loading import load_model
from rollbook.core.errors import PolicyError
from tests.unit.components.engines.models import (
    CONTEXT_LENGTH,
    ROUNDING,
    RUNTIME,
    SIZES,
    nothing,
    requests_for,
    save_llama,
)

LIMIT = 8


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("policy"))


def _generate(
    policy: Path, requests: list[GenerationRequest], batch_size: int = 64, **sampling: Any
) -> list[Completion]:
    engine = Transformers(name="transformers", batch_size=batch_size)
    settings = Sampling.model_validate({"max_completion_tokens": LIMIT, **sampling})
    return engine.generate(policy, requests, settings, RUNTIME, nothing)


def _one_by_one(
    policy: Path, request: GenerationRequest, sampling: Sampling
) -> tuple[Completion, list[float]]:
    """The same without batch, padding and cache, and how close each uniform is to the edge of its token's interval."""
    model = load_model(policy, torch.device("cpu"))
    ids, scores, margins = list(request.prompt_token_ids), [], []
    prompt = len(ids)
    while len(ids) - prompt < sampling.max_completion_tokens:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        logprobs = sampling_logprobs(logits, sampling)
        uniform = uniforms(np.array([request.seed]), len(ids) - prompt)
        token, score = choose(logprobs, torch.from_numpy(uniform), torch.tensor([request.greedy]))
        edges = np.concatenate([[0.0], logprobs[0].double().exp().cumsum(0).numpy()])
        margins.append(float(np.abs(edges[token.item() : token.item() + 2] - uniform[0]).min()))
        ids.append(int(token))
        scores.append(float(score))
        if ids[-1] == EOS_ID:
            break
    reason = "stop" if ids[-1] == EOS_ID else "length"
    return Completion(ids[prompt:], scores, reason), margins


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"top_k": 5, "temperature": 1.3}])
def test_a_batch_gives_what_each_row_alone_gives(policy: Path, sampling: dict[str, Any]) -> None:
    requests = requests_for(prompts=12, samples=2)
    settings = Sampling.model_validate({"max_completion_tokens": LIMIT, **sampling})
    for request, got in zip(requests, _generate(policy, requests, **sampling), strict=True):
        expected, _ = _one_by_one(policy, request, settings)
        assert got.token_ids == expected.token_ids
        assert got.finish_reason == expected.finish_reason
        assert got.logprobs == pytest.approx(expected.logprobs, rel=1e-5, abs=1e-5)


def test_completions_have_many_lengths(policy: Path) -> None:
    made = _generate(policy, requests_for(prompts=40, samples=4))
    reasons = Counter(completion.finish_reason for completion in made)
    assert min(reasons["stop"], reasons["length"]) > 20  # so that the tests above see both
    assert len({len(completion.token_ids) for completion in made}) == LIMIT


def test_batch_size_and_order_change_a_row_only_at_the_edge_of_a_token(policy: Path) -> None:
    requests = requests_for(prompts=250, samples=8)
    order = np.random.default_rng(0).permutation(len(requests))
    reference = _generate(policy, requests, batch_size=512)
    shuffled = _generate(policy, [requests[place] for place in order], batch_size=37)
    different = [
        int(place)
        for place, made in zip(order, shuffled, strict=True)
        if made.token_ids != reference[place].token_ids
    ]
    assert len(different) <= 0.001 * len(requests)
    for place in different:
        alone, margins = _one_by_one(policy, requests[place], Sampling(max_completion_tokens=LIMIT))
        pairs = zip(alone.token_ids, reference[place].token_ids, strict=False)
        first = next((at for at, (a, b) in enumerate(pairs) if a != b), len(margins) - 1)
        assert min(margins[: first + 1]) < 1e-4


def test_a_greedy_row_takes_the_likeliest_token_whatever_its_seed(policy: Path) -> None:
    greedy = requests_for(prompts=6, samples=2, greedy=True)
    sampled = requests_for(prompts=6, samples=2)
    made = _generate(policy, [*greedy, *sampled])
    for first, second in zip(made[:12:2], made[1:12:2], strict=True):
        assert first.token_ids == second.token_ids
    for request, got in zip(greedy, made, strict=False):
        assert (
            got.token_ids
            == _one_by_one(policy, request, Sampling(max_completion_tokens=LIMIT))[0].token_ids
        )
    assert [each.token_ids for each in made[12:]] == [
        each.token_ids for each in _generate(policy, sampled)
    ]


def test_generation_stops_at_every_configured_id_and_counts_it_once(
    policy: Path, tmp_path: Path
) -> None:
    other = save_llama(tmp_path)
    requests = requests_for(prompts=30, samples=4)
    ended_by_default = _generate(other, requests)
    common = Counter(
        token for made in ended_by_default for token in made.token_ids[:-1]
    ).most_common(1)[0][0]
    config = json.loads((other / "generation_config.json").read_text())
    config["eos_token_id"] = [EOS_ID, common]
    (other / "generation_config.json").write_text(json.dumps(config))
    made = _generate(other, requests)
    ends = Counter(each.token_ids[-1] for each in made if each.finish_reason == "stop")
    assert ends.keys() == {EOS_ID, common}
    for each in made:
        stops = [token in (EOS_ID, common) for token in each.token_ids]
        assert sum(stops) == (each.finish_reason == "stop") == stops[-1]


def test_a_stop_token_at_the_limit_is_a_stop(policy: Path) -> None:
    for limit in (1, 2):
        made = _generate(policy, requests_for(prompts=60, samples=2), max_completion_tokens=limit)
        for each in made:
            assert (each.finish_reason == "stop") == (each.token_ids[-1] == EOS_ID)
        assert any(len(e.token_ids) == limit and e.finish_reason == "stop" for e in made)


def test_a_prompt_that_leaves_no_room_is_named(policy: Path) -> None:
    long = replace(requests_for(1, 1)[0], prompt_token_ids=[1, *[55] * (CONTEXT_LENGTH - LIMIT)])
    with pytest.raises(PolicyError, match=r"prompt 3 \('R+'\) has 57 tokens; with 8 .* the 64"):
        _generate(policy, [*requests_for(3, 1), long])
    fits = replace(long, prompt_token_ids=long.prompt_token_ids[1:])
    assert len(_generate(policy, [fits])) == 1
    with pytest.raises(PolicyError, match="prompt 0 has no tokens"):
        _generate(policy, [replace(long, prompt_token_ids=[])])


def test_progress_adds_up_to_rows_and_tokens(policy: Path) -> None:
    done, tokens = 0, 0

    def count(rows: int, amount: int) -> None:
        nonlocal done, tokens
        done, tokens = done + rows, tokens + amount

    requests = requests_for(prompts=30, samples=2)
    made = Transformers(name="transformers", batch_size=16).generate(
        policy, requests, Sampling(max_completion_tokens=LIMIT), RUNTIME, count
    )
    assert (done, tokens) == (60, sum(len(each.token_ids) for each in made))


def test_nothing_asked_is_nothing_made(policy: Path) -> None:
    assert _generate(policy, []) == []


def test_weights_that_are_not_numbers_are_an_error(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, stop_bias=float("nan"))
    with pytest.raises(PolicyError, match="not numbers"):
        _generate(folder, requests_for(2, 2))


def _save_other(folder: Path, name: str) -> None:
    import transformers

    common = {
        key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    }
    if name == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT_LENGTH}
    else:
        sizes = {key: value for key, value in SIZES.items() if key not in common}
    if name == "Gemma3Text":
        sizes |= {
            "sliding_window": 4,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**common, **sizes, initializer_range=0.3)
    architecture = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    model = getattr(transformers, architecture.get(name, f"{name}ForCausalLM"))(config)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, CONTEXT_LENGTH)


@pytest.mark.parametrize("name", ["GPT2", "Qwen2", "Gemma3Text", "Phi3"])
def test_other_architectures_give_what_each_row_alone_gives(tmp_path: Path, name: str) -> None:
    """Learned positions, biases, and a window that is shorter than the prompts."""
    _save_other(tmp_path, name)
    requests = requests_for(prompts=7, samples=2)
    sampling = Sampling(max_completion_tokens=LIMIT)
    for request, got in zip(requests, _generate(tmp_path, requests), strict=True):
        expected, _ = _one_by_one(tmp_path, request, sampling)
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, rel=1e-5, abs=1e-5)


def test_a_batch_alone_gives_the_same_bits(policy: Path) -> None:
    requests, sampling = requests_for(prompts=20, samples=3), Sampling(max_completion_tokens=LIMIT)
    engine = Transformers(name="transformers", batch_size=16)
    batches = engine.batches(requests, RUNTIME)
    whole, some = (
        list(engine.generate_batches(policy, requests, wanted, sampling, RUNTIME, nothing))
        for wanted in (batches, batches[2:0:-1])
    )
    assert some == whole[2:0:-1]


def test_completions_that_outgrow_the_room_of_the_cache(tmp_path: Path) -> None:
    """More tokens than are made room for at once, rows that leave on the way, and shared key heads."""
    from rollbook.components.engines.lean.cache import ROOM

    limit = 2 * ROOM + 5
    folder = save_llama(tmp_path, stop_bias=1.2, max_position_embeddings=4 * ROOM)
    save_byte_tokenizer(folder, 4 * ROOM)
    sampling, requests = Sampling(max_completion_tokens=limit), requests_for(prompts=3, samples=3)
    made = Transformers(name="transformers").generate(folder, requests, sampling, RUNTIME, nothing)
    assert min(len(each.token_ids) for each in made) < ROOM
    assert max(len(each.token_ids) for each in made) > 2 * ROOM
    for request, got in zip(requests, made, strict=True):
        expected, _ = _one_by_one(folder, request, sampling)
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_lean_models_give_the_same_but_for_rounding(tmp_path: Path, key_heads: int) -> None:
    """Attention over keys that heads share and padding hides, as transformers computes it."""
    from rollbook.components.engines.lean.model import ATTENTION, make_lean

    folder = save_llama(tmp_path, num_key_value_heads=key_heads)
    plain, lean = (load_model(folder, torch.device("cpu")) for _ in range(2))
    make_lean(lean)
    assert lean.config._attn_implementation == ATTENTION
    assert plain.config._attn_implementation == "sdpa"
    ids = torch.randint(6, 200, (5, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[3, :7] = 0
    with torch.inference_mode():
        a, b = (model(input_ids=ids, attention_mask=mask).logits for model in (plain, lean))
        alone = plain(input_ids=ids[3:4, 7:]).logits
    torch.testing.assert_close(b[mask.bool()], a[mask.bool()], rtol=0, atol=ROUNDING)
    assert torch.allclose(b[3, 7:], alone[0], atol=1e-5)


def test_a_large_head_reads_last_positions_without_copies_of_its_weights(tmp_path: Path) -> None:
    from rollbook.components.engines.lean.model import SMALL_HEAD_BYTES, make_lean

    words = SMALL_HEAD_BYTES // 4 // SIZES["hidden_size"] + 64
    folder = save_llama(tmp_path, vocab_size=words)
    plain, lean = (load_model(folder, torch.device("cpu")) for _ in range(2))
    make_lean(lean)
    ids = torch.full((6, 9), 50)
    products = []
    for model in (plain, lean):
        with torch.inference_mode(), torch.profiler.profile() as profile:
            model(input_ids=ids, logits_to_keep=1)
        products.append(sum(event.name == "aten::bmm" for event in profile.events()))
    assert products[1] == products[0] - 1


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bfloat16"), ("stored", "float32")])
def test_only_float32_agrees_with_the_trainer(dtype: Any, precision: str) -> None:
    """Weights in bfloat16 are rounded once more than under autocast."""
    assert not Transformers(name="transformers", dtype=dtype).agrees_with_trainer(precision)
    assert not Transformers(name="transformers").agrees_with_trainer("bfloat16")
    assert Transformers(name="transformers").agrees_with_trainer("float32")
