from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.components.policies.loading import load_model
from rollbook.core.ragged import Ragged
from rollbook.rl.tokens import TokenBatch, token_batch
from rollbook.rl.training import logprobs as logprobs_module
from rollbook.rl.training.logprobs import completion_logprobs, selected_logprobs
from tests.unit.rl.training.small import write_model

CPU = torch.device("cpu")
ROUNDING = 1e-5
"""How far one token's log-prob may be apart where rows stand in batches, or meet the head in parts, of other shapes. A
logit is the sum of 32 float32 products that come to 6 in absolute value at most; another order of adding moves it by
about √32 · 2^-24 · 6 = 2e-6, and by 32 · 2^-24 · 6 = 1.1e-5 at most. 1e-6 would be 2 units in the last place of a
log-prob of -5: it asks a processor to add in the same order whatever the shape is."""
PROMPTS = [[1, 10, 3], [1, 20], [1, 30, 31, 32, 3]]
COMPLETIONS = [[7, 8, 2], [9, 2], [5]]


def _ragged(lists: list[list[int]]) -> Ragged:
    values = np.array([item for items in lists for item in items], dtype=np.int32)
    return Ragged(values, np.array([len(items) for items in lists], dtype=np.int64))


def _batch(rows: list[int]) -> TokenBatch:
    return token_batch(
        _ragged([PROMPTS[row] for row in rows]), _ragged([COMPLETIONS[row] for row in rows]), CPU
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("model")
    write_model(folder)
    return load_model(folder, CPU, for_training=True)


def _naive(model: Any, row: int, temperature: float) -> tuple[list[float], list[float]]:
    """Full softmax over an unpadded row: logits at t - 1 score the token at t."""
    ids = PROMPTS[row] + COMPLETIONS[row]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double() / temperature
    table = torch.log_softmax(logits, -1)
    places = range(len(PROMPTS[row]), len(ids))
    entropies = [-(table[t - 1].exp() * table[t - 1]).sum().item() for t in places]
    return [table[t - 1, ids[t]].item() for t in places], entropies


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_to_the_full_softmax_of_each_row_alone(model: Any, temperature: float) -> None:
    found = completion_logprobs(model, _batch([0, 1, 2]), temperature)
    for row in range(3):
        logprobs, entropies = _naive(model, row, temperature)
        length = len(COMPLETIONS[row])
        assert found.logprobs[row, :length].tolist() == pytest.approx(logprobs, abs=ROUNDING)
        assert found.entropies[row, :length].tolist() == pytest.approx(entropies, abs=ROUNDING)
        assert not found.logprobs[row, length:].any()
    assert found.logprobs.requires_grad
    assert not found.entropies.requires_grad


def test_company_and_padding_do_not_matter(model: Any) -> None:
    alone = completion_logprobs(model, _batch([1]), 1.0).logprobs
    together = completion_logprobs(model, _batch([2, 1, 0]), 1.0).logprobs
    torch.testing.assert_close(together[1:2, :2], alone, rtol=0, atol=ROUNDING)


def test_the_head_sees_only_what_predicts_completions(model: Any) -> None:
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, __, out: seen.append(out.shape))
    completion_logprobs(model, _batch([0, 1, 2]), 1.0)
    handle.remove()
    assert seen == [(1, 6, 64)]  # six completion tokens of 3 rows and 6 positions


def test_a_model_that_names_no_head_gives_the_same(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = completion_logprobs(model, _batch([0, 1, 2]), 1.0).logprobs
    monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
    got = completion_logprobs(model, _batch([0, 1, 2]), 1.0).logprobs
    torch.testing.assert_close(got, want, rtol=0, atol=ROUNDING)


def test_gradient_is_that_of_the_full_softmax(model: Any) -> None:
    batch = _batch([0, 1, 2])
    completion_logprobs(model, batch, 0.9).logprobs.sum().backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    logits = model(batch.input_ids, attention_mask=batch.attention_mask).logits.flatten(0, 1)
    table = torch.log_softmax(logits[batch.predicting] / 0.9, -1)
    table.gather(-1, batch.completion_ids[:, None]).sum().backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad, rtol=1e-4, atol=1e-5)
    model.zero_grad()


def test_softmax_is_taken_in_float32_of_coarse_logits() -> None:
    logits = torch.tensor([[20.0, 20.125]], dtype=torch.bfloat16)
    found, entropies = selected_logprobs(logits, torch.tensor([0]), 1.0)
    # -ln(1 + e^0.125) = -0.757599; p = 0.468791 and H = 0.691198
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(-0.757599, abs=1e-6)
    assert entropies.item() == pytest.approx(0.691198, abs=1e-5)


def test_bfloat16_means_autocast_with_float32_weights(model: Any) -> None:
    exact = completion_logprobs(model, _batch([0]), 1.0).logprobs
    rough = completion_logprobs(model, _batch([0]), 1.0, "bfloat16").logprobs
    assert rough.dtype == torch.float32
    assert 1e-6 < (rough - exact).abs().max() < 0.5
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_the_hook_is_gone_afterwards(model: Any) -> None:
    completion_logprobs(model, _batch([0]), 1.0)
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 64)


def _gradients(model: Any, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a sum with a weight for each token, so that swapped tokens show."""
    model.zero_grad()
    weights = torch.linspace(0.5, 2.0, logprobs.numel()).reshape(logprobs.shape)
    (logprobs * weights).sum().backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_few_rows_at_a_time_is_the_same(
    model: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = completion_logprobs(model, _batch([0, 1, 2]), temperature, entropy_gradient=True)
    want = _gradients(model, whole.logprobs + whole.entropies)
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 2 * 64)
    seen: list[torch.Size] = []
    handle = model.lm_head.register_forward_hook(lambda _, __, out: seen.append(out.shape))
    parts = completion_logprobs(model, _batch([0, 1, 2]), temperature, entropy_gradient=True)
    got = _gradients(model, parts.logprobs + parts.entropies)
    handle.remove()
    assert max(shape[1] for shape in seen) == 2
    torch.testing.assert_close(parts.logprobs, whole.logprobs, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(parts.entropies, whole.entropies, rtol=0, atol=ROUNDING)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5)


def test_logits_that_are_capped_behind_the_head_stay_capped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    capped = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            initializer_range=1.0,
            final_logit_softcapping=2.0,
        )
    ).eval()
    whole = completion_logprobs(capped, _batch([0, 1, 2]), 1.0).logprobs
    monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 64)
    parts = completion_logprobs(capped, _batch([0, 1, 2]), 1.0).logprobs
    torch.testing.assert_close(parts, whole, rtol=0, atol=ROUNDING)
