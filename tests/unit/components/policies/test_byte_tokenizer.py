from pathlib import Path

import pytest

from rollbook.components.policies.byte_tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
    encode_bytes,
    save_byte_tokenizer,
)
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer

MESSAGES = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+2="},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "5+7="},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder, 100)
    return folder


def test_every_byte_is_a_token_and_nothing_is_unknown(folder: Path) -> None:
    texts = [chr(code) for code in range(32, 127)]
    assert all(len(ids) == 1 for ids in encode_bytes(folder, texts))
    hard = "\x00\n\t é 数学 🙂"
    (ids,) = encode_bytes(folder, [hard])
    assert len(ids) == len(hard.encode())
    assert max(ids) < VOCABULARY_SIZE
    assert PromptRenderer(folder, PromptFormat()).decode(ids, keep_special=True) == hard


def test_transformers_loads_what_was_saved(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == VOCABULARY_SIZE
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        PAD_ID,
        BOS_ID,
        EOS_ID,
    )
    assert tokenizer.model_max_length == 100
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == PromptRenderer(folder, PromptFormat()).render(MESSAGES).token_ids


def test_a_chat_begins_with_one_bos_and_marks_roles(folder: Path) -> None:
    rendered = PromptRenderer(folder, PromptFormat()).render(MESSAGES)
    assert rendered.text == (
        "<|bos|><|system|>Add.<|user|>1+2=<|assistant|>3<|eos|><|user|>5+7=<|assistant|>"
    )
    assert rendered.token_ids.count(BOS_ID) == 1
    system, user, assistant = (
        SPECIAL_TOKENS.index(f"<|{role}|>") for role in ("system", "user", "assistant")
    )
    assert rendered.token_ids[:2] == [BOS_ID, system]
    assert rendered.token_ids[-1] == assistant
    assert rendered.token_ids.count(user) == 2
