"""From messages to the text and the token ids that a policy continues, and from ids back to text.

Light: reads the policy folder's own files with `tokenizers` and Jinja, and imports neither torch nor transformers
(except where a folder has no tokenizer.json). The ids equal those of `tokenizer.apply_chat_template(messages,
add_generation_prompt=True)`, with one addition: if the tokenizer begins every text with BOS, and the template does
not, BOS is put in front, since the model has never seen a text without it. So BOS is there exactly once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from rollbook.components.chat_template import chosen_template, compiled, templates_in
from rollbook.core.errors import DataError, PolicyError

if TYPE_CHECKING:
    from rollbook.components.prompt_format import PromptFormat

Messages = Sequence[Mapping[str, str]]

TOKENIZER_FILE = "tokenizer.json"
ADAPTERS_CONFIG_FILE = "base_config.json"
"""The base's config.json in an adapter's folder: under its own name, transformers looks for a whole model there."""
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
NO_LIMIT = 10**9
"""Tokenizers say 1e30 where they know no limit."""
PLAIN_SEPARATOR = "\n\n"


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as the policy sees it.

    Attributes:
        text: as rendered; without a BOS that only the tokenizer adds.
        token_ids: what the policy continues; the truth.
    """

    text: str
    token_ids: list[int]


class PromptRenderer:
    """Renders prompts for one policy folder in one format.

    Args:
        folder: a Hugging Face folder with a tokenizer.
        format: the recipe's (or the evaluation's) prompt format.

    Raises:
        PolicyError: if the folder has no usable tokenizer.
        ConfigError: if the format's template is no template.
    """

    def __init__(self, folder: Path, format: PromptFormat) -> None:
        self.format = format
        self._config = _read(folder / "config.json") or _read(folder / ADAPTERS_CONFIG_FILE)
        self._generation = _read(folder / "generation_config.json")
        with ExitStack() as stack:
            place = folder
            if not (folder / TOKENIZER_FILE).is_file():
                place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                _convert_tokenizer(folder, place)
            self._tokenizer = _load(place / TOKENIZER_FILE)
            self._tokenizer_config = _read(place / "tokenizer_config.json")
            self._special = _special_tokens(place, self._tokenizer_config)
            self._templates = templates_in(place, self._tokenizer_config)
        self._tokenizer.encode_special_tokens = bool(
            self._tokenizer_config.get("split_special_tokens", False)
        )

    @cached_property
    def _render(self) -> Any:
        """The chosen template, compiled; None for plain text. Chosen late: decoding needs no template."""
        template = chosen_template(self.format.chat_template, self._templates)
        return compiled(template) if template is not None else None

    def render(self, messages: Messages) -> RenderedPrompt:
        """Renders one prompt; see `render_all`."""
        return self.render_all([messages])[0]

    def render_all(self, prompts: Sequence[Messages]) -> list[RenderedPrompt]:
        """Renders many prompts.

        Raises:
            DataError: if the template refuses a prompt, or a system message would stand there twice.
        """
        texts = [self._text(messages) + self.format.assistant_prefix for messages in prompts]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            RenderedPrompt(text, self._with_bos(encoding.ids))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, token_ids: Sequence[int], keep_special: bool) -> str:
        """Text of token ids, with or without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=not keep_special)

    def decode_all(self, token_ids: Sequence[Sequence[int]], keep_special: bool) -> list[str]:
        """Texts of many rows of token ids."""
        rows = [list(row) for row in token_ids]
        return self._tokenizer.decode_batch(rows, skip_special_tokens=not keep_special)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a completion: all of the generation config's (or the model's), and the tokenizer's EOS."""
        configured = self._generation.get("eos_token_id", self._model("eos_token_id"))
        ids = configured if isinstance(configured, list) else [configured]
        return tuple(
            sorted({each for each in (*ids, self._id_of("eos_token")) if each is not None})
        )

    @cached_property
    def pad_token_id(self) -> int:
        """Id to fill rows with; never look at it to find a row's end, since it may be a stop token."""
        known = (
            self._id_of("pad_token"),
            self._generation.get("pad_token_id"),
            self._model("pad_token_id"),
            *self.stop_token_ids,
        )
        return next((each for each in known if each is not None and each >= 0), 0)

    @cached_property
    def context_length(self) -> int | None:
        """Most tokens, prompt and completion together, that the model can read; None if its folder does not say."""
        known = [self._model(key) for key in CONTEXT_KEYS]
        known.append(self._tokenizer_config.get("model_max_length"))
        return next((int(each) for each in known if each is not None and 0 < each < NO_LIMIT), None)

    def _text(self, messages: Messages) -> str:
        if self.format.system_prompt is not None:
            if any(message["role"] == "system" for message in messages):
                raise DataError(
                    f"prompt {_shown(messages)} brings a system message of its own, and system_prompt is set",
                    "remove system_prompt, or the system messages from the data",
                )
            messages = [{"role": "system", "content": self.format.system_prompt}, *messages]
        if self._render is None:
            return PLAIN_SEPARATOR.join(message["content"] for message in messages)
        try:
            return self._render(**self._names, messages=messages)
        except Exception as error:  # whatever a template does wrong
            hint = "it may know no system message: remove system_prompt"
            raise DataError(
                f"prompt {_shown(messages)} is refused by the chat template: {error}",
                hint if self.format.system_prompt is not None else "",
            ) from None

    @cached_property
    def _names(self) -> dict[str, Any]:
        """What a template can use beside the messages."""
        given = {"tools": None, "documents": None, "add_generation_prompt": True}
        return {**given, **self._special, **self.format.chat_template_kwargs}

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        bos = self._id_of("bos_token")
        if self._render is not None and (bos not in self._prefix or bos in token_ids):
            return token_ids
        return [*self._prefix, *token_ids]

    @cached_property
    def _prefix(self) -> list[int]:
        """What the tokenizer puts in front of every text."""
        encoding = self._tokenizer.encode("0")
        added = list(encoding.special_tokens_mask)
        if 0 in added:
            return encoding.ids[: added.index(0)]
        return [each for each in encoding.ids[:1] if each == self._id_of("bos_token")]

    def _id_of(self, name: str) -> int | None:
        token = self._special.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)

    def _model(self, key: str) -> Any:
        """A value of the model's config, or of the text part of a config with several parts."""
        return self._config.get(key, (self._config.get("text_config") or {}).get(key))


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise PolicyError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise PolicyError(f"{file}: holds {type(content).__name__}, expected an object")
    return content


def _load(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise PolicyError(f"{file}: not a valid tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _convert_tokenizer(folder: Path, target: Path) -> None:
    """Lets transformers make a tokenizer.json (and its config) from whatever files the folder has."""
    try:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(target)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PolicyError(f"{folder}: has no usable tokenizer: {reason[:300]}") from error
    if not (target / TOKENIZER_FILE).is_file():
        raise PolicyError(
            f"{folder}: its tokenizer cannot be written as {TOKENIZER_FILE}",
            "use a model with a fast tokenizer",
        )


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens as text, as transformers finds them: the old separate file counts only for old configs."""
    found = dict(config)
    if "added_tokens_decoder" not in config:
        found |= _read(folder / "special_tokens_map.json")
    tokens = {name: found[name] for name in SPECIAL_TOKENS if found.get(name) is not None}
    return {
        name: token["content"] if isinstance(token, Mapping) else str(token)
        for name, token in tokens.items()
    }


def _shown(messages: Messages) -> str:
    text = messages[-1]["content"]
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
