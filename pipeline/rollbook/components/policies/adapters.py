"""LoRA adapters as policies (Hu et al., arXiv 2106.09685): W x becomes W x + alpha / rank · B A x, and W stays.

policies/<key>/adapter_config.json          as peft writes it, without what varies from run to run
policies/<key>/adapter_model.safetensors    A and B of every adapted module, float32
policies/<key>/base.json                    {"key": policy it stands on, "digest": that policy's}
policies/<key>/base_config.json             the base's config.json
policies/<key>/…                            tokenizer, templates and generation config, copied from the base

`base.json` is part of the adapter's digest: the same numbers on another base are another policy. Layers are put into
transformers' own model, so whatever works on a policy works on an adapted one, and names of weights stay.
peft is imported where it is used: stages that only look at the folder need neither it nor torch.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.components.policies.misfit import misfit
from rollbook.components.prompting import ADAPTERS_CONFIG_FILE
from rollbook.core.errors import PolicyError
from rollbook.core.ids import BASE_KEY, seed_of
from rollbook.tables.artifacts import path_of, read_facts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from rollbook.components.policies.lora import Lora

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
OWN_FILES = (CONFIG_FILE, WEIGHTS_FILE, BASE_FILE)
"""What an adapter must have and its base has not."""
DTYPE = "float32"
"""Adapters are trained and stored in it: they are small."""
NAME = "default"
"""peft's name of the one adapter of a model."""
PREFIX = "base_model.model."
"""In front of every name in peft's files."""
INSTALL = "pip install 'rollbook[lora]'"


def is_adapter(folder: Path) -> bool:
    """Whether a policy folder holds an adapter instead of a whole model."""
    return (folder / CONFIG_FILE).is_file()


def base_folder(folder: Path) -> Path:
    """The policy that an adapter stands on: the folder beside it that `base.json` names.

    Raises:
        PolicyError: if the adapter does not say so, or what lies there is another policy.
        ArtifactError: if there is no such policy.
    """
    named = _json(folder / BASE_FILE)
    base = folder.parent / str(named.get("key"))
    if (found := read_facts(base).content_hash) != named.get("digest"):
        raise PolicyError(
            f"{folder}: is an adapter on policy {str(named.get('digest'))[:12]}, and {base} is {found[:12]}",
            f"restore the base with `dvc checkout {base}`, or train again from the one that is there",
        )
    return base


def attach_new(model: PreTrainedModel, lora: Lora, seed: int) -> None:
    """Puts a fresh adapter into a model, in place: A random, B zero, so that the policy stays exactly what it was.

    Args:
        model: on the CPU, in float32; its own weights stop collecting gradients.
        lora: size and places of the adapter.
        seed: decides A.

    Raises:
        PolicyError: if peft is missing, or a module asked for is not there or cannot be adapted.
    """
    _inject(model, lora.rank, lora.alpha, lora.target_modules, seed)


def attach_stored(model: PreTrainedModel, folder: Path) -> None:
    """Puts a stored adapter into the model of its base, in place; the model's own weights stop collecting gradients.

    Raises:
        PolicyError: if peft is missing, or the adapter does not fit this model.
    """
    config = _json(folder / CONFIG_FILE)
    try:
        rank, alpha, modules = (config[name] for name in ("r", "lora_alpha", "target_modules"))
    except KeyError as error:
        raise PolicyError(f"{folder / CONFIG_FILE}: does not say {error}") from None
    _inject(model, rank, alpha, modules, seed=0)
    load_weights(model, folder)


def load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Replaces the weights of a model's adapter by those of a folder.

    Raises:
        PolicyError: if names or shapes differ.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise PolicyError(f"{folder}: its adapter cannot be read: {error}") from error
    own = {_name_in_file(name): value for name, value in adapter_parameters(model).items()}
    if differs := misfit(stored, own):
        raise PolicyError(f"{folder}: the adapter does not fit its base: {differs}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(stored[name])


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether a model holds an adapter."""
    return any(True for _ in _layers(model))


def switch(model: PreTrainedModel, on: bool) -> None:
    """Turns a model's adapter on, or off: then it is exactly its base."""
    for _, layer in _layers(model):
        layer.enable_adapters(on)
        layer.requires_grad_(False)


def merge(model: PreTrainedModel) -> None:
    """Adds B A into the weights and takes the adapter out, in place. Log-probs change by rounding only."""
    for name, layer in list(_layers(model)):
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.get_base_layer())
    del model.peft_config


def adapter_parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """Weights of a model's adapter by their names in the model."""
    inside = tuple(f"{name}." for name, _ in _layers(model))
    return {
        name: value
        for name, value in model.named_parameters()
        if name.startswith(inside) and f".{NAME}." in name
    }


def write_adapter(model: PreTrainedModel, previous: Path, folder: Path) -> None:
    """Writes the adapter of a model into a folder; the same adapter gives the same bytes.

    Args:
        model: with an adapter.
        previous: the policy that was trained: the base, or an adapter on it.
        folder: to write into; the tokenizer is not written.
    """
    from safetensors.torch import save_file

    if is_adapter(previous):
        base = _json(previous / BASE_FILE)
        shutil.copyfile(previous / ADAPTERS_CONFIG_FILE, folder / ADAPTERS_CONFIG_FILE)
    else:
        facts = read_facts(previous)
        base = {"key": facts.key, "digest": facts.content_hash}
        shutil.copyfile(previous / "config.json", folder / ADAPTERS_CONFIG_FILE)
    tensors = {
        _name_in_file(name): value.detach().cpu().contiguous()
        for name, value in adapter_parameters(model).items()
    }
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config: Any = model.peft_config[NAME]
    _write_json(base, folder / BASE_FILE)
    _write_json(
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": path_of("policies", base["key"]).as_posix(),
            "inference_mode": True,
            "r": config.r,
            "lora_alpha": config.lora_alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": config.fan_in_fan_out,
            "target_modules": _short_names(model),
        },
        folder / CONFIG_FILE,
    )


def refuse_other_shape(folder: Path, lora: Lora) -> None:
    """Raises PolicyError unless an adapter has the rank and alpha of the settings."""
    config = _json(folder / CONFIG_FILE)
    found = (config.get("r"), config.get("lora_alpha"))
    if found != (lora.rank, lora.alpha):
        raise PolicyError(
            f"{folder}: is an adapter of rank {found[0]} and alpha {found[1]}, and update_policy.lora says "
            f"{lora.rank} and {lora.alpha:g}",
            f"an adapter keeps its shape: set rank: {found[0]} and alpha: {found[1]}, or start from {BASE_KEY}",
        )


def _inject(
    model: PreTrainedModel, rank: int, alpha: float, modules: str | list[str], seed: int
) -> None:
    """Makes the layers. Only theirs are the weights that collect gradients afterwards."""
    import torch

    from rollbook.core.framework_imports import lean_transformers

    try:
        with lean_transformers():
            from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise PolicyError(
            f"LoRA needs the package peft: {error}", f"install it: {INSTALL}"
        ) from None
    options: dict[str, Any] = {  # peft says that alpha is a whole number, and takes any
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": modules,
        "task_type": "CAUSAL_LM",
    }
    config = LoraConfig(**options)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of what is refused below, and of layers stored the other way round
            torch.manual_seed(seed_of("lora", seed))
            inject_adapter_in_model(config, model, NAME)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise PolicyError(
            f"update_policy.lora.target_modules: {modules} cannot be adapted: {reason[:300]}",
            f"name linear layers of {type(model).__name__}, or say all-linear",
        ) from None
    _refuse_embeddings(model)
    model.eval()


def _refuse_embeddings(model: PreTrainedModel) -> None:
    """Embeddings and the head may share their weights, which a merge would tear apart."""
    adapted = {id(layer) for _, layer in _layers(model)}
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        if id(part) in adapted:
            raise PolicyError(
                "update_policy.lora.target_modules: embeddings and the output head are not adapted",
                "name linear layers inside the model, or say all-linear",
            )


def _layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """Adapted modules by name."""
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.lora import LoraLayer

    yield from (
        (name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)
    )


def _short_names(model: PreTrainedModel) -> list[str]:
    """Last parts of the adapted modules' names if these say which they are, else whole names; sorted."""
    adapted = {name for name, _ in _layers(model)}
    last = {name.rpartition(".")[2] for name in adapted}
    meant = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in last}
    return sorted(last if meant == adapted else adapted)


def _name_in_file(name: str) -> str:
    return PREFIX + name.replace(f".{NAME}.", ".")


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{file}: is missing or damaged: {error}") from None
    if not isinstance(content, dict):
        raise PolicyError(f"{file}: holds {type(content).__name__}, expected an object")
    return content


def _write_json(content: Mapping[str, Any], file: Path) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
