"""The reward model against transformers itself, on a tiny classifier with random weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rollbook.components.rewards.base import RewardInput
from rollbook.components.rewards.outcomes import outcomes_of, prepare
from rollbook.core.errors import RewardError
from tests.policy_folders import byte_level, saved
from tests.unit.components.rewards.rows import reward, row
from tests.unit.components.rewards.tiny_reward_model import tiny_reward_model

TEXTS = ("7", "The answer is 7", "", "a much longer answer with many words in it", "half \ud800")
GROUP = [row(text, index=place) for place, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reward_model(tmp_path_factory.mktemp("rm"), labels=2)


def values(model: Path, group: list[RewardInput] = GROUP, **options: Any) -> list[float]:
    results = outcomes_of(reward("reward_model", model=str(model), **options), group)
    assert [result.error for result in results] == [None] * len(group)
    return [result.value for result in results if result.value is not None]


def expected(model: Path, texts: list[str], output: int = 0) -> list[float]:
    """One text at a time, straight from transformers."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    classifier = AutoModelForSequenceClassification.from_pretrained(model)
    found = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            found.append(float(classifier(**ids).logits[0, output]))
    return found


@pytest.mark.parametrize("batch_tokens", [1, 120, 16384])
def test_the_conversation_in_the_models_template(model: Path, batch_tokens: int) -> None:
    texts = [
        f"<|im_start|>user\n3+4=<|im_end|>\n\n<|im_start|>assistant\n{text}<|im_end|>\n\n"
        for text in ("7", "The answer is 7", "", TEXTS[3], "half ?")
    ]
    wanted = expected(model, texts)
    assert values(model, batch_tokens=batch_tokens) == pytest.approx(wanted, abs=1e-6)
    assert len({round(value, 4) for value in wanted}) == len(TEXTS)


def test_batches_hold_what_was_asked_for() -> None:
    from rollbook.components.rewards import reward_model

    lengths = [2, 3, 3, 9, 10]
    for budget, wanted in (
        (9, [[0, 1, 2], [3], [4]]),
        (20, [[0, 1, 2], [3, 4]]),
        (0, [[0], [1], [2], [3], [4]]),
        (50, [[0, 1, 2, 3, 4]]),
    ):
        assert list(reward_model._batches(range(5), lengths, budget)) == wanted


def test_as_one_text_and_another_output(model: Path) -> None:
    wanted = expected(model, ["<user>3+4=<assistant>7"], output=1)
    assert values(model, GROUP[:1], style="text", output=1) == pytest.approx(wanted, abs=1e-6)


def test_padding_is_masked_where_attention_looks_ahead(tmp_path: Path) -> None:
    tiny_reward_model(tmp_path, bidirectional=True, initializer_range=0.5)
    wanted = expected(tmp_path, [f"<user>3+4=<assistant>{text}" for text in TEXTS[:4]])
    assert values(tmp_path, GROUP[:4], style="text") == pytest.approx(wanted, abs=1e-5)


def test_the_order_of_rows_does_not_matter(model: Path) -> None:
    assert values(model, GROUP[::-1], batch_tokens=120) == values(model, batch_tokens=120)[::-1]


def test_without_a_padding_token_rows_go_one_by_one(tmp_path: Path) -> None:
    tiny_reward_model(tmp_path, pad_token_id=None)
    config = (tmp_path / "tokenizer_config.json").read_text().replace('"pad_token"', '"no_pad"')
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token is None
    texts = ["<user>3+4=<assistant>7", "<user>3+4=<assistant>The answer is 7"]
    assert values(tmp_path, GROUP[:2], style="text") == pytest.approx(
        expected(tmp_path, texts), abs=1e-6
    )


def test_too_long_is_an_error_of_its_row(model: Path) -> None:
    group = [row("7", index=0), row("9 " * 300, index=1)]
    short, long = outcomes_of(reward("reward_model", model=str(model)), group)
    assert short.value is not None
    assert long.error is not None
    assert "the reward model takes 256" in long.error
    limited = reward("reward_model", model=str(model), max_tokens=3)
    assert all(result.error for result in outcomes_of(limited, group))


def test_an_output_that_is_not_there(model: Path) -> None:
    (outcome,) = outcomes_of(reward("reward_model", model=str(model), output=2), GROUP[:1])
    assert outcome.error is not None
    assert "has 2 outputs" in outcome.error


def test_a_language_model_is_no_reward_model(model: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    saved(tmp_path, byte_level(bos_first=True))
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(RewardError, match="is no reward model: it has no weights for score"):
        prepare([reward("reward_model", model=str(tmp_path))])


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="cannot be loaded as a sequence classifier"):
        prepare([reward("reward_model", model=str(tmp_path))])


def test_a_tokenizer_without_a_template(tmp_path: Path) -> None:
    tiny_reward_model(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (outcome,) = outcomes_of(reward("reward_model", model=str(tmp_path)), GROUP[:1])
    assert outcome.error is not None
    assert "has no chat template; set style: text" in outcome.error


def test_its_files_decide_results(model: Path) -> None:
    names = {Path(file).name for file in reward("reward_model", model=str(model)).data_files()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names


def test_a_model_of_the_hub_needs_a_commit(model: Path) -> None:
    for revision in (None, "main"):
        with pytest.raises(ValidationError, match="commit hash"):
            reward("reward_model", model="owner/name", revision=revision)
    with pytest.raises(ValidationError, match="has no revision"):
        reward("reward_model", model=str(model), revision="0" * 40)
    assert reward("reward_model", model="owner/name", revision="0" * 40).data_files() == []


def test_without_torch_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from rollbook.components.rewards.outcomes import prepare\n"
        "from tests.unit.components.rewards.rows import reward\n"
        "prepare([reward('reward_model', model='owner/name', revision='0' * 40)])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "needs torch" in result.stderr
    assert 'pip install "rollbook[train]"' in result.stderr
