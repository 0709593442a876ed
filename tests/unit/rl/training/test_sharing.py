from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.components.policies.loading import load_model
from rollbook.core.ragged import Ragged
from rollbook.rl.training.batches import MicroBatch, batch_of
from rollbook.rl.training.logprobs import completion_logprobs
from rollbook.rl.training.rows import Rows
from rollbook.rl.training.sharing import break_even_tokens
from tests.unit.rl.training.small import write_model

CPU = torch.device("cpu")
PROMPTS = Ragged.of([[1, 10, 3], [1, 10, 3], [1, 20], [1, 10, 3]], np.int64)
COMPLETIONS = Ragged.of([[7, 8, 2], [9, 2], [5, 5, 5, 2], [11, 12, 13, 2]], np.int64)
APART, TOGETHER = np.arange(4), np.array([0, 0, 1, 0])


def _rows(prompts: Ragged = PROMPTS, completions: Ragged = COMPLETIONS) -> Rows:
    count = len(completions.lengths)
    return Rows(
        prompts,
        completions,
        Ragged(np.ones(len(completions.values), bool), completions.lengths),
        Ragged(np.zeros(len(completions.values), np.float32), completions.lengths),
        np.zeros(count, bool),
    )


def _model(folder: Path, **config: Any) -> Any:
    write_model(folder, **config)
    return load_model(folder, CPU, for_training=True)


def _measured(model: Any, sequence_of: np.ndarray) -> Any:
    order = np.argsort(sequence_of, kind="stable")
    batch = batch_of(MicroBatch(order, sequence_of[order]), PROMPTS, COMPLETIONS, CPU)
    found = completion_logprobs(model, batch, 1.0, entropy_gradient=True)
    weights = torch.linspace(0.5, 2.0, 16).reshape(4, 4)
    model.zero_grad()
    total = found.logprobs + 0.1 * found.entropies
    (total * weights[torch.from_numpy(order), : total.shape[1]]).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    return found.logprobs[torch.from_numpy(np.argsort(order))], gradients


def test_log_probs_and_gradients_are_those_of_rows_alone(tmp_path: Path) -> None:
    model = _model(tmp_path)
    apart, want = _measured(model, APART)
    together, got = _measured(model, TOGETHER)
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-4)


def test_the_length_at_which_attention_costs_as_much_as_the_matrices(tmp_path: Path) -> None:
    # A layer of 32, with 4 heads and 2 for keys and values: q 32·32, k and v 32·16 each, o 32·32, and three of 32·64.
    matrices = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)
    assert break_even_tokens(_model(tmp_path), _rows()) == matrices / (2 * 32 * 2)


def test_nothing_to_share(tmp_path: Path) -> None:
    alone = Ragged.of([[1], [2], [3], [4]], np.int64)
    assert break_even_tokens(_model(tmp_path), _rows(prompts=alone)) is None


@pytest.mark.parametrize("window", [3, 1000])
def test_a_window_of_attention_that_is_too_short(tmp_path: Path, window: int) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            sliding_window=window,
        )
    ).eval()
    assert (break_even_tokens(model, _rows()) is None) == (window == 3)


def test_an_attention_that_adds_masks_up(tmp_path: Path) -> None:
    model = _model(tmp_path)
    model.set_attn_implementation("eager")
    assert break_even_tokens(model, _rows()) is None


def test_a_configuration_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that overlooks the mask it is given."""
    model = _model(tmp_path)
    forward = model.model.forward

    def overlooking(*args: Any, **options: Any) -> Any:
        if options["attention_mask"].ndim == 4:
            options["attention_mask"] = None
        return forward(*args, **options)

    monkeypatch.setattr(model.model, "forward", overlooking)
    assert break_even_tokens(model, _rows()) is None
