"""pretrained: any causal language model, from a folder or from the Hugging Face hub at a pinned revision.

    {name: pretrained, model: HuggingFaceTB/SmolLM2-135M-Instruct, revision: <commit hash of 40 hex digits>}
    {name: pretrained, model: models/my_model}

Weights are rewritten as safetensors; tokenizer, chat template and generation config are copied as they are. Quantised
weights are refused: they could not be trained. Code that a model brings is run only with `trust_remote_code: true`; it
is then copied along, and later stages run exactly that code.

A mixture of experts is trained on the policy's loss alone: its router's auxiliary loss, which evens out the load of the
experts in pretraining, stays out. So rollouts whose gradient is 0 may be skipped here too.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from rollbook.components.policies.base import BasePolicy, CreatedPolicy, WarmStartExample
from rollbook.components.revisions import refuse_unpinned
from rollbook.core.errors import PolicyError

if TYPE_CHECKING:
    from rollbook.core.runtime import Runtime

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
SAFETENSORS = ("*.safetensors", "*.safetensors.index.json")
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
CODE = ("*.py",)
WEIGHTS = (*SAFETENSORS, *PICKLED)
COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "additional_chat_templates/*",
    "generation_config.json",
)
"""What makes a tokenizer, its templates and the generation config."""


class Pretrained(BasePolicy):
    """A model that others have trained.

    Attributes:
        model: hub id, or a folder.
        revision: commit hash of a hub model; a branch such as `main` could change under a run. A folder has none.
        dtype: floating type to store the policy in; `stored` keeps the model's own.
        trust_remote_code: whether Python files that the model brings may be run, with your rights on this machine.
    """

    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    dtype: Literal["stored", "float32", "bfloat16", "float16"] = "stored"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _can_be_had(self) -> Pretrained:
        if self._is_folder:
            if self.revision is not None:
                raise ValueError(f"{self.model!r} is a folder here, which has no revision")
            _refuse_unusable(Path(self.model), self.trust_remote_code)
        elif not HUB_ID.fullmatch(self.model):
            raise ValueError(f"{self.model!r} is no folder here, and no hub id such as owner/name")
        else:
            refuse_unpinned(self.model, self.revision, "model")
        return self

    @property
    def _is_folder(self) -> bool:
        return Path(self.model).is_dir()

    def data_files(self) -> list[str]:
        if not self._is_folder:
            return []
        patterns = ("config.json", *WEIGHTS, *COPIED, *self._code)
        found = {file for pattern in patterns for file in self._files(pattern)}
        return sorted(map(str, found))

    def create(
        self,
        examples: Sequence[WarmStartExample],  # noqa: ARG002
        seed: int,  # noqa: ARG002
        runtime: Runtime,
    ) -> CreatedPolicy:
        from rollbook.components.policies.loading import (
            REMOTE_CODE_FILE,
            code_in,
            load_pretrained,
            prepare_torch,
            save_weights,
            stored_dtype,
        )

        source = Path(self.model) if self._is_folder else self._downloaded()
        try:
            _refuse_unusable(source, self.trust_remote_code)
        except ValueError as error:
            raise PolicyError(f"policy.base: {error}") from None
        dtype: Any = self.dtype
        if dtype == "stored" and any(source.glob("*.safetensors")):
            dtype = stored_dtype(source)  # config.json may say otherwise
        prepare_torch(runtime)
        model = load_pretrained(source, dtype, self.trust_remote_code)

        def write(folder: Path) -> None:
            save_weights(model, folder)
            _write_tokenizer(source, folder)
            if self.trust_remote_code and (code := code_in(source)):
                _copy(source, CODE, folder)
                mark = json.dumps(code, indent=1, sort_keys=True)
                (folder / REMOTE_CODE_FILE).write_text(mark + "\n", encoding="utf-8")

        return CreatedPolicy(write, {"parameters": model.num_parameters()})

    def parameter_count(self) -> int | None:
        from rollbook.components.policies.loading import parameter_count

        return parameter_count(Path(self.model)) if self._is_folder else None

    @property
    def _code(self) -> tuple[str, ...]:
        return CODE if self.trust_remote_code else ()

    def _files(self, pattern: str) -> list[Path]:
        return [file for file in Path(self.model).glob(pattern) if file.is_file()]

    def _downloaded(self) -> Path:
        """The hub model in the local cache of huggingface_hub; pickled weights only where there are no safetensors."""
        from huggingface_hub import snapshot_download

        folder = Path()
        try:
            for weights in (SAFETENSORS, PICKLED):
                folder = Path(
                    snapshot_download(
                        self.model,
                        revision=self.revision,
                        allow_patterns=["config.json", *weights, *COPIED, *self._code],
                        ignore_patterns=["*/*.safetensors*", "*/*.bin*"],  # copies in other formats
                    )
                )
                if any(True for pattern in weights for _ in folder.glob(pattern)):
                    break
        except Exception as error:
            reason = " ".join(str(error).split())
            raise PolicyError(
                f"policy.base: {self.model} at {self.revision} cannot be had from the hub: {reason[:300]}",
                "check the id and the commit hash; a gated model needs `hf auth login`, and a first use the network",
            ) from error
        return folder


def _refuse_unusable(folder: Path, trust_remote_code: bool) -> None:
    """Raises ValueError if a folder is no model folder, or one that cannot be trained."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        missing.append("weights (*.safetensors)")
    if not any(
        True for pattern in ("tokenizer*", "*.model", "vocab.*") for _ in folder.glob(pattern)
    ):
        missing.append("a tokenizer (tokenizer.json)")
    if missing:
        raise ValueError(
            f"{str(folder)!r} is no model folder: {', '.join(missing)} missing; "
            "it must be one that `save_pretrained` wrote, for model and tokenizer"
        )
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} is not valid JSON: {error}") from None
    if "quantization_config" in config:
        raise ValueError(
            f"{str(folder)!r} holds quantised weights, which cannot be trained; take the model in bfloat16"
        )
    if "auto_map" in config and "model_type" not in config and not trust_remote_code:
        raise ValueError(
            f"{str(folder)!r} brings code of its own, which runs only with trust_remote_code: true; "
            "or take a model that transformers knows"
        )


def _write_tokenizer(source: Path, folder: Path) -> None:
    """Copies the tokenizer with its templates, or has transformers make a tokenizer.json.

    Raises:
        PolicyError: if there is no way to tokenizer.json.
    """
    _copy(source, COPIED, folder)
    if (folder / "tokenizer.json").is_file():
        return
    try:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source, local_files_only=True).save_pretrained(folder)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PolicyError(f"{source}: its tokenizer cannot be loaded: {reason[:300]}") from error
    if not (folder / "tokenizer.json").is_file():
        raise PolicyError(
            f"{source}: its tokenizer cannot be written as tokenizer.json",
            "use a model with a fast tokenizer",
        )


def _copy(source: Path, patterns: Sequence[str], folder: Path) -> None:
    """Copies the files that match."""
    for pattern in patterns:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                target = folder / file.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)
