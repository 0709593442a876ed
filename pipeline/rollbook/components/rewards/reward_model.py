"""reward_model: what a trained reward model says, a sequence classifier of transformers.

    r = logits[output]        as they come, without a squashing function

    {name: reward_model, model: models/my_rm}
    {name: reward_model, model: Skywork/Skywork-Reward-V2-Qwen3-0.6B, revision: <commit hash of 40 hex digits>}

As TRL calls a reward model: the conversation, answer included, in the model's own chat template (`style: chat`), or
prompt and completion as one text (`style: text`); padded on the right, no special tokens added. The numbers have no
fixed scale or zero, which group normalisation does not mind and a sum with other rewards does: set `weight`.

Rows of a group go through the model together. In the last digits a number depends on what it is padded with, as in any
batch. Needs torch and transformers: `pip install "rollbook[train]"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from rollbook.components.revisions import refuse_unpinned
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.unicode_text import without_surrogates
from rollbook.core.errors import RewardError
from rollbook.core.hashing import files_in


class RewardModel(Reward):
    """Scores with a model.

    Attributes:
        model: hub id, or a folder that `save_pretrained` wrote for model and tokenizer.
        revision: commit hash of a hub model; a branch such as `main` could change under a run. A folder has none.
        style: how the text is put together.
        output: which logit, for models with several.
        max_tokens: longest text, answer included; a longer one is an error on its row. Default: what the model takes.
        batch_tokens: tokens, padding included, that go through the model at once.
        dtype: floating type to compute in; `stored` keeps the model's own.
        device: where it runs; `auto` is a GPU if there is one.
    """

    in_main_process: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    style: Literal["chat", "text"] = "chat"
    output: NonNegativeInt = 0
    max_tokens: PositiveInt | None = None
    batch_tokens: PositiveInt = 16384
    dtype: Literal["stored", "float32", "bfloat16", "float16"] = "stored"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _can_be_had(self) -> RewardModel:
        if self._is_folder:
            if self.revision is not None:
                raise ValueError(f"{self.model!r} is a folder here, which has no revision")
        else:
            refuse_unpinned(self.model, self.revision, "model")
        return self

    @property
    def _is_folder(self) -> bool:
        return Path(self.model).is_dir()

    def data_files(self) -> list[str]:
        return [str(file) for file in files_in(Path(self.model))] if self._is_folder else []

    def prepare(self) -> None:
        self._loaded()

    def __call__(self, row: RewardInput) -> float | RewardResult | None:
        return self.score([row])[0]

    def score(self, group: Sequence[RewardInput]) -> list[float | RewardResult | None]:
        loaded = self._loaded()
        texts = [without_surrogates(self._text(loaded.tokenizer, row)) for row in group]
        ids = [loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        limit = self.max_tokens or loaded.longest
        results: list[float | RewardResult | None] = [
            None if 0 < len(tokens) <= limit else _unfit(len(tokens), limit) for tokens in ids
        ]
        # By length, so that little is padded; by id, so that the order of rows changes nothing.
        fitting = [place for place, result in enumerate(results) if result is None]
        fitting.sort(key=lambda place: (len(ids[place]), group[place].rollout_id))
        budget = 0 if loaded.pad is None else self.batch_tokens
        for places in _batches(fitting, [len(tokens) for tokens in ids], budget):
            logits = loaded.logits([ids[place] for place in places])
            if self.output >= logits.shape[1]:
                raise RewardError(
                    f"{self.model} has {logits.shape[1]} outputs, so there is no output {self.output}"
                )
            for place, value in zip(places, logits[:, self.output].tolist(), strict=True):
                results[place] = value
        return results

    def _text(self, tokenizer: Any, row: RewardInput) -> str:
        if self.style == "text":
            return row.prompt + row.text
        if not tokenizer.chat_template:
            raise RewardError(f"{self.model} has no chat template; set style: text")
        messages = [dict(message) for message in row.messages]
        messages.append({"role": "assistant", "content": row.text})
        return str(tokenizer.apply_chat_template(messages, tokenize=False))

    def _loaded(self) -> _Loaded:
        return _load(self.model, self.revision, self.dtype, self.device)


class _Loaded:
    """A model and its tokenizer, ready to be asked.

    Attributes:
        pad: the padding token; None if there is none.
        longest: tokens that the model takes.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        positions = getattr(model.config, "max_position_embeddings", None)
        self.pad: int | None = model.config.get_text_config().pad_token_id
        self.longest = min(tokenizer.model_max_length, positions or tokenizer.model_max_length)

    def logits(self, batch: Sequence[Sequence[int]]) -> Any:
        """[rows, outputs] float32 on the CPU, of one batch of token ids."""
        import torch

        width = max(map(len, batch))
        ids = torch.tensor([[*row, *[self.pad] * (width - len(row))] for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
        device = self.model.device
        with torch.inference_mode():
            output = self.model(input_ids=ids.to(device), attention_mask=mask.to(device))
        return output.logits.float().cpu()


@lru_cache(maxsize=2)
def _load(model: str, revision: str | None, dtype: str, device: str) -> _Loaded:
    """Loads once per process.

    Raises:
        RewardError: if the packages, the model or its head are missing.
    """
    try:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError as error:
        raise RewardError(
            f"a reward model needs {error.name}", 'pip install "rollbook[train]"'
        ) from None
    options: Any = {"revision": revision} if revision else {"local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
        classifier, report = AutoModelForSequenceClassification.from_pretrained(
            model,
            dtype="auto" if dtype == "stored" else getattr(torch, dtype),
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # a foreign folder can make transformers raise anything
        reason = " ".join(str(error).split())[:200]
        raise RewardError(f"{model} cannot be loaded as a sequence classifier: {reason}") from error
    if missing := sorted(map(str, report["missing_keys"])):
        # transformers would fill them with random numbers: a language model has no head that scores.
        raise RewardError(f"{model} is no reward model: it has no weights for {missing[0]}")
    config = classifier.config.get_text_config()
    if config.pad_token_id is None:
        # The classifier finds the last token of a row by its padding. Without one it takes single rows only.
        config.pad_token_id = tokenizer.pad_token_id
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return _Loaded(classifier.eval().to(where), tokenizer)


def _batches(places: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places, in order of length, in batches of at most `budget` tokens with padding, or of a single row."""
    batch: list[int] = []
    for place in places:
        if batch and (len(batch) + 1) * lengths[place] > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _unfit(tokens: int, limit: int) -> RewardResult:
    what = f"has {tokens} tokens, the reward model takes {limit}" if tokens else "has no tokens"
    return RewardResult(None, error=f"prompt and completion together: the text {what}")
