"""Reads a Llama-architecture model with its tokenizer out of a GGUF file, weights de-quantized to float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. transformers' own `gguf_file=` gives the same weights
(a test compares), parses the file several times over, and leaves a model that counts as quantized and cannot be saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.core.errors import PolicyError

READABLE = ("llama", "gpt2", "smollm")
CONTROL_TOKEN = 3
"""Type of tokens that mark roles and ends, and are no text."""
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufLlama:
    """A GGUF file.

    Raises:
        PolicyError: if the package gguf is missing, or the file holds something else.
    """

    def __init__(self, file: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError:
            raise PolicyError("reading GGUF needs the package gguf", "pip install gguf") from None
        try:
            self._reader = GGUFReader(file)
        except (ValueError, OSError, IndexError, KeyError) as error:
            raise PolicyError(f"{file}: not a GGUF file, or damaged: {error}") from error
        kinds = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
        found = tuple(self._value(name) for name in kinds)
        if found != READABLE:
            raise PolicyError(
                f"{file}: holds model, tokenizer and splitting of the kinds {', '.join(found)}; "
                f"can be read: {', '.join(READABLE)}"
            )

    def model(self) -> Any:
        """The model, made from the file's configuration, with its weights in float32; tied embeddings stay tied.

        Raises:
            PolicyError: if weights are missing, or of another shape.
        """
        from rollbook.core.framework_imports import lean_transformers

        with lean_transformers():
            import torch
            from transformers import LlamaForCausalLM
            from transformers.initialization import no_init_weights
        config = self._config()
        with no_init_weights():
            model = LlamaForCausalLM(config)
        model.tie_weights()
        weights = {name: torch.from_numpy(value) for name, value in self._weights().items()}
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise PolicyError(f"the GGUF file does not hold a whole model: {reason}") from error
        return model.eval()

    def tokenizer(self) -> Any:
        """The tokenizer with its chat template: bytes, and every digit a token (llama.cpp calls it `smollm`).

        transformers' reading of the file leaves out that digits are split off first, and then takes the white space in
        front of a number apart otherwise than the model has learned it.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        tokens = self._value("tokenizer.ggml.tokens")
        types = self._value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        made = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, merges))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        made.decoder = decoders.ByteLevel()
        control = [
            token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN
        ]
        made.add_special_tokens(
            [AddedToken(each, special=True, normalized=False) for each in control]
        )
        named = {
            name: tokens[self._value(f"tokenizer.ggml.{key}_token_id")]
            for name, key in (
                ("bos_token", "bos"),
                ("eos_token", "eos"),
                ("unk_token", "unknown"),
                ("pad_token", "padding"),
            )
        }
        return PreTrainedTokenizerFast(
            tokenizer_object=made,
            chat_template=self._value("tokenizer.chat_template"),
            model_max_length=self._value("llama.context_length"),
            clean_up_tokenization_spaces=False,
            **named,
        )

    def _value(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        if field is None:
            raise PolicyError(f"the GGUF file says nothing about {key}")
        return field.contents()

    def _config(self) -> Any:
        from transformers import LlamaConfig

        heads = self._value("llama.attention.head_count")
        width = self._value("llama.embedding_length")
        return LlamaConfig(
            vocab_size=len(self._value("tokenizer.ggml.tokens")),
            hidden_size=width,
            intermediate_size=self._value("llama.feed_forward_length"),
            num_hidden_layers=self._value("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._value("llama.attention.head_count_kv"),
            head_dim=width // heads,
            max_position_embeddings=self._value("llama.context_length"),
            # float32 in the file: 9.999999747378752e-06 was 1e-05.
            rms_norm_eps=float(
                np.format_float_positional(
                    np.float32(self._value("llama.attention.layer_norm_rms_epsilon"))
                )
            ),
            rope_parameters={
                "rope_type": "default",
                "rope_theta": self._value("llama.rope.freq_base"),
            },
            tie_word_embeddings="output.weight" not in {each.name for each in self._reader.tensors},
            bos_token_id=self._value("tokenizer.ggml.bos_token_id"),
            eos_token_id=self._value("tokenizer.ggml.eos_token_id"),
            pad_token_id=self._value("tokenizer.ggml.padding_token_id"),
        )

    def _weights(self) -> dict[str, NDArray[np.float32]]:
        from gguf import dequantize

        heads = {
            "attn_q": self._value("llama.attention.head_count"),
            "attn_k": self._value("llama.attention.head_count_kv"),
        }
        weights = {}
        for tensor in self._reader.tensors:
            value = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=True)
            part = tensor.name.split(".")[-2]
            weights[_name_of(tensor.name)] = (
                _halves_apart(value, heads[part]) if part in heads else value
            )
        return weights


def _name_of(name: str) -> str:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    first, *rest = name.split(".")
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    if first == "blk" and len(rest) == 3 and rest[1] in LAYER_NAMES:
        return f"model.layers.{rest[0]}.{LAYER_NAMES[rest[1]]}.{rest[2]}"
    raise PolicyError(f"the GGUF file holds weights {name}, which a Llama has not")


def _halves_apart(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF keeps the two numbers that a rotary position turns next to each other, transformers half a head apart."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))
