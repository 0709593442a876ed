"""Opens policy folders as models, and sets torch up so that the same input gives the same numbers.

Imports stay out of the module's top: `check` looks through this folder without torch.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollbook.components.policies.adapters import OWN_FILES as ADAPTER_FILES
from rollbook.components.policies.adapters import attach_stored, base_folder, is_adapter, merge
from rollbook.core.errors import PolicyError
from rollbook.core.framework_imports import lean_transformers, set_environment
from rollbook.core.hashing import sha256_of
from rollbook.core.process import processors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from rollbook.core.runtime import Runtime

SHOWN_NAMES = 3
REMOTE_CODE_FILE = "remote_code.json"
"""In a policy folder whose own code may be run: SHA-256 of each file of it. Written by `pretrained` when it is told
`trust_remote_code`, carried along from policy to policy like the code itself."""

_attention: str | None = None
"""Of the models loaded from now on; set by `prepare_torch`, like torch's own settings."""


def threads_of(runtime: Runtime) -> int:
    """Threads to compute with; `auto` is one per processor."""
    return processors() if runtime.threads == "auto" else runtime.threads


def prepare_torch(runtime: Runtime) -> torch.device:
    """Makes torch deterministic, sets its threads and how models attend, and returns the device to compute on.

    Raises:
        PolicyError: if the device asked for is not there.
    """
    set_environment()
    import torch

    global _attention
    _attention = runtime.attn_implementation
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(threads_of(runtime))
    if torch.get_num_interop_threads() != 1:
        with contextlib.suppress(RuntimeError):  # too late once parallel work has begun
            torch.set_num_interop_threads(1)
    if runtime.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(runtime.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise PolicyError(
            f"runtime.device: {runtime.device!r} cannot be used: {reason}",
            "allowed: auto, cpu, cuda",
        ) from None
    return device


def load_model(
    folder: Path,
    device: torch.device,
    dtype: Literal["float32", "bfloat16", "stored"] = "float32",
    for_training: bool = False,
) -> PreTrainedModel:
    """Loads a policy folder as a causal language model in evaluation mode (dropout off, also for training).

    Args:
        folder: a Hugging Face folder with safetensors weights, or an adapter, which is merged into its base.
        device: where the weights go.
        dtype: of the loaded weights; `stored` keeps that of the files.
        for_training: whether parameters collect gradients.

    Raises:
        PolicyError: naming what is missing, or why the folder cannot be loaded.
    """
    check_policy_folder(folder)
    model = _merged(folder, dtype) if is_adapter(folder) else load_pretrained(folder, dtype)
    model.requires_grad_(for_training)
    return model.eval().to(device)


def load_pretrained(
    folder: Path,
    dtype: Literal["float32", "bfloat16", "float16", "stored"],
    trust_remote_code: bool | None = None,
) -> PreTrainedModel:
    """Loads a folder, also one with other weight files than safetensors, as a causal language model on the CPU.

    Args:
        folder: with config and weights.
        dtype: of the loaded weights; `stored` is what config.json says.
        trust_remote_code: whether code in the folder may run. Default: if the folder is a policy marked so.

    Raises:
        PolicyError: if it cannot be loaded, or weights and config do not belong together.
    """
    with lean_transformers():
        import torch
        from transformers import AutoModelForCausalLM
    options: Any = {
        "dtype": "auto" if dtype == "stored" else getattr(torch, dtype),
        "local_files_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported below, by name
        "trust_remote_code": runs_own_code(folder)
        if trust_remote_code is None
        else trust_remote_code,
    }
    config = _config_of(folder)
    if _attention is not None:
        options["attn_implementation"] = _attention
    elif config.get("attn_logit_softcapping") is not None:
        options["attn_implementation"] = "eager"  # sdpa would leave the cap out (Gemma 2)
    try:
        with _quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # a foreign folder can make transformers raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        hint = ""
        if "auto_map" in config and not options["trust_remote_code"]:
            hint = "it brings code of its own; if you trust that, set policy.base.trust_remote_code: true"
        raise PolicyError(
            f"{folder}: cannot be loaded as a causal language model: {reason}", hint
        ) from error
    model, info = loaded
    _refuse_incomplete(info, folder)
    return model


def _merged(
    folder: Path, dtype: Literal["float32", "bfloat16", "stored"] = "float32"
) -> PreTrainedModel:
    """The base of an adapter with the adapter merged in float32; `stored` is the type of the base."""
    import torch

    base = base_folder(folder)
    model = load_pretrained(base, "float32")
    attach_stored(model, folder)
    merge(model)
    name = stored_dtype(base) if dtype == "stored" else dtype
    return model if name == "float32" else model.to(getattr(torch, name))


def runs_own_code(folder: Path) -> bool:
    """Whether a policy folder is marked as one whose own code may be run.

    Raises:
        PolicyError: if that code is not the code that was trusted.
    """
    mark = folder / REMOTE_CODE_FILE
    if not mark.is_file():
        return False
    if json.loads(mark.read_text(encoding="utf-8")) != code_in(folder):
        raise PolicyError(
            f"{folder}: its Python files are not those that were trusted when the base policy was made",
            "look at them, then make the base policy again",
        )
    return True


def code_in(folder: Path) -> dict[str, str]:
    """SHA-256 of the Python files of a folder, by name."""
    return {file.name: sha256_of(file) for file in sorted(folder.glob("*.py"))}


def _config_of(folder: Path) -> dict[str, Any]:
    """The model's config.json; nothing where it is no such file, which transformers then says."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def save_weights(model: Any, folder: Path) -> None:
    """Writes config, safetensors and a generation config with the stop tokens."""
    from transformers import GenerationConfig

    known = model.generation_config
    # The full one is copied over this by the caller; saving it anew is refused where it contradicts itself.
    model.generation_config = GenerationConfig(
        bos_token_id=known.bos_token_id,
        eos_token_id=known.eos_token_id,
        pad_token_id=known.pad_token_id,
    )
    model.save_pretrained(folder)
    model.generation_config = known


def check_policy_folder(folder: Path) -> None:
    """Refuses a folder that is no policy, before anything heavy is imported.

    Raises:
        PolicyError: naming the files that are missing.
    """
    if not folder.is_dir():
        raise PolicyError(f"{folder}: is not a folder; a policy is a Hugging Face model folder")
    needed = ADAPTER_FILES if is_adapter(folder) else ("config.json",)
    missing = [name for name in needed if not (folder / name).is_file()]
    if not weight_files(folder) and not is_adapter(folder):
        missing.append("weights (*.safetensors)")
    if missing:
        raise PolicyError(f"{folder}: is not a policy: {' and '.join(missing)} missing")


def weight_files(folder: Path) -> list[Path]:
    """Safetensors files of a policy folder, and the index that lists them if they are several."""
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")])


def stored_dtype(folder: Path) -> str:
    """Name of the floating type that the weights are stored in, such as `bfloat16`.

    Raises:
        PolicyError: if the weight files are damaged or hold no floating-point weights.
    """
    names = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    for file in sorted(folder.glob("*.safetensors")):
        for entry in _header(file).values():
            if entry.get("dtype") in names:
                return names[entry["dtype"]]
    raise PolicyError(f"{folder}: holds no floating-point weights")


def parameter_count(folder: Path) -> int | None:
    """Number of stored weights (tied ones count once), or None if they are not safetensors."""
    headers = [_header(file) for file in sorted(folder.glob("*.safetensors"))]
    entries = [entry for header in headers for entry in header.values()]
    return sum(math.prod(entry["shape"]) for entry in entries) if entries else None


def _header(file: Path) -> dict[str, dict[str, Any]]:
    """Names, types and shapes in a safetensors file: eight bytes of length, then JSON."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise PolicyError(f"{file}: not a safetensors file, or damaged") from error
    header.pop("__metadata__", None)
    return dict(header)


def _refuse_incomplete(info: Mapping[str, Any], folder: Path) -> None:
    """transformers fills weights it does not find with random numbers; here that is an error."""
    for what in ("missing", "mismatched"):
        found = info.get(f"{what}_keys") or ()
        if names := sorted(name if isinstance(name, str) else name[0] for name in found):
            shown = ", ".join(names[:SHOWN_NAMES]) + (" …" if len(names) > SHOWN_NAMES else "")
            raise PolicyError(
                f"{folder}: {what} weights: {shown} ({len(names)} in all)",
                "config.json and the weights must belong together",
            )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without progress bars, for good, and without its report of what did not fit, which becomes an error here."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
