from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import load_file

from rollbook.components.policies.base import WarmStartExample
from rollbook.components.policies.loading import check_policy_folder, load_model, parameter_count
from rollbook.components.policies.tiny import Tiny
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.runtime import Runtime

RUNTIME = Runtime(device="cpu", threads=1)
SMALL: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 32,
    "intermediate_size": 64,
    "heads": 2,
    "warm_start_steps": 30,
    "warm_start_batch": 32,
}
EXAMPLES = [
    WarmStartExample([{"role": "user", "content": f"{n}+1="}], str(n + 1)) for n in range(20)
]


def _created(
    folder: Path, seed: int = 0, examples: Any = EXAMPLES, **options: Any
) -> dict[str, float]:
    created = Tiny.model_validate({**SMALL, **options}).create(examples, seed, RUNTIME)
    folder.mkdir(exist_ok=True)
    created.write(folder)
    return dict(created.facts)


def _weights(folder: Path) -> np.ndarray:
    return np.concatenate(
        [value.ravel() for _, value in sorted(load_file(folder / "model.safetensors").items())]
    )


def test_it_writes_a_policy_that_every_tool_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    facts = _created(tmp_path)
    check_policy_folder(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.model_type == "llama"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.num_parameters() == facts["parameters"] == parameter_count(tmp_path)
    renderer = PromptRenderer(tmp_path, PromptFormat())
    assert renderer.stop_token_ids == (tokenizer.eos_token_id,)
    assert renderer.context_length == Tiny(name="tiny").context_length
    assert facts["warm_start/examples"] == 20


def test_it_is_small_by_default_and_knows_its_size_beforehand(tmp_path: Path) -> None:
    default = Tiny(name="tiny")
    assert default.parameter_count() <= 1_000_000
    created = default.create([], 0, RUNTIME)
    assert created.facts["parameters"] == default.parameter_count()


def test_its_heads_have_a_size_that_vllm_takes(tmp_path: Path) -> None:
    _created(tmp_path)
    assert load_model(tmp_path, torch.device("cpu")).config.head_dim == 32


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    facts = [_created(tmp_path / str(place), seed) for place, seed in enumerate((0, 0, 1))]
    files = [(tmp_path / str(place) / "model.safetensors").read_bytes() for place in range(3)]
    assert facts[0] == facts[1] != facts[2]
    assert files[0] == files[1] != files[2]


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    _created(tmp_path)
    assert torch.equal(state, torch.get_rng_state())


def test_the_warm_start_learns_from_the_examples(tmp_path: Path) -> None:
    facts = [
        _created(tmp_path / str(steps), warm_start_steps=steps, wrong_share=0.0)
        for steps in (1, 60)
    ]
    assert facts[1]["warm_start/loss"] < facts[0]["warm_start/loss"] - 2
    model = load_model(tmp_path / "60", torch.device("cpu"))
    ids = PromptRenderer(tmp_path / "60", PromptFormat()).render(EXAMPLES[3].messages).token_ids
    likeliest = model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()
    text = PromptRenderer(tmp_path / "60", PromptFormat()).decode(
        [int(likeliest)], keep_special=True
    )
    assert text.isdigit()


def test_answers_may_be_texts_or_missing(tmp_path: Path) -> None:
    texts = [WarmStartExample([{"role": "user", "content": c}], f"the {c}") for c in "abc"]
    assert _created(tmp_path / "texts", examples=texts)["warm_start/loss"] < 6
    unanswered = [WarmStartExample([{"role": "user", "content": "a"}], None)]
    facts = _created(tmp_path / "none", examples=unanswered)
    assert facts["warm_start/examples"] == 0
    untouched = _created(tmp_path / "never", warm_start_steps=0)
    assert untouched["warm_start/examples"] == 20
    assert (_weights(tmp_path / "none") == _weights(tmp_path / "never")).all()


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValidationError, match="head_size must be even"):
        Tiny.model_validate({**SMALL, "head_size": 7})
    with pytest.raises(ValidationError, match="wrong_share"):
        Tiny.model_validate({**SMALL, "wrong_share": 1.5})
    with pytest.raises(ValidationError, match="did you mean 'layers'"):
        Tiny.model_validate({**SMALL, "layer": 1})
