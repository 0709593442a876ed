"""A sequence classifier with random weights, small and made here, saved as transformers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.policy_folders import CHATML, byte_level, saved


def tiny_reward_model(
    folder: Path, labels: int = 1, bidirectional: bool = False, **config: Any
) -> Path:
    """A Llama, or a BERT, of one layer with a head for `labels` outputs; a byte tokenizer with a chat template."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForSequenceClassification,
    )

    tokenizer = saved(folder, byte_level(bos_first=True), chat_template=CHATML)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "num_labels": labels,
        "pad_token_id": tokenizer.pad_token_id,
        **config,
    }
    torch.manual_seed(0)
    model: Any = (
        BertForSequenceClassification(BertConfig(**settings))
        if bidirectional
        else LlamaForSequenceClassification(LlamaConfig(**settings))
    )
    model.save_pretrained(folder)
    return folder
