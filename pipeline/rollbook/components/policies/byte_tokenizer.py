"""A tokenizer of one token per byte with three role marks, for policies small enough to train in a minute.

Every text has a token for each of its bytes, so nothing is unknown; printable ASCII is one token per character.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>")
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
VOCABULARY_SIZE = len(SPECIAL_TOKENS) + 256
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""BOS once, then each message behind the mark of its role; an answer ends with EOS."""


def save_byte_tokenizer(folder: Path, context_length: int) -> None:
    """Writes tokenizer.json, its configuration and the chat template.

    Args:
        folder: a policy folder.
        context_length: tokens the model can read, prompt and completion together.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[BOS_ID],
        eos_token=SPECIAL_TOKENS[EOS_ID],
        pad_token=SPECIAL_TOKENS[PAD_ID],
        extra_special_tokens=list(SPECIAL_TOKENS[3:]),
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def encode_bytes(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts, without special tokens, by the tokenizer in `folder`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [
        encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ]
