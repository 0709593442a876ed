"""Policy folders in and out of an update: float32 master weights come in, the stored precision goes out.

Where a policy is stored in bf16 or fp16, its float32 master weights travel in the optimizer folder: a step of 1e-6 is
lost in bf16, whose neighbours near 1 are 0.004 to 0.008 apart. An adapter is float32 itself and needs none.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rollbook.components.policies.adapters import DTYPE as ADAPTER_DTYPE
from rollbook.components.policies.adapters import OWN_FILES as ADAPTER_FILES
from rollbook.components.policies.adapters import (
    attach_new,
    attach_stored,
    base_folder,
    has_adapter,
    is_adapter,
    refuse_other_shape,
    write_adapter,
)
from rollbook.components.policies.loading import (
    load_model,
    save_weights,
    stored_dtype,
    weight_files,
)
from rollbook.core.errors import TrainingError
from rollbook.core.hashing import FACTS_FILE
from rollbook.rl.training.optimizer import OptimizerState, refuse_other_model
from rollbook.tables.artifacts import FolderWriter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rollbook.components.policies.lora import Lora
    from rollbook.settings.recipe_sections import UpdatePolicy

REDUCED = ("bfloat16", "float16")


def load_for_training(
    folder: Path,
    masters: Mapping[str, Tensor],
    settings: UpdatePolicy,
    device: torch.device,
    seed: int = 0,
) -> PreTrainedModel:
    """The policy as float32 model in evaluation mode, its master weights in place.

    Args:
        folder: of the policy; with `settings.lora` an adapter, or the base that a new one is put on.
        masters: float32 weights, where the policy is stored with fewer bits.
        settings: of the update.
        device: where the weights go.
        seed: of the run; decides a new adapter.

    Raises:
        PolicyError: if the folder cannot be loaded.
        TrainingError: if the masters are not those of this policy, or it is an adapter and should not be.
    """
    if settings.lora is not None:
        model = _adapted(folder, settings.lora, seed).eval().to(device)
    else:
        if is_adapter(folder):
            raise TrainingError(
                f"{folder}: is an adapter, and update_policy.lora is not set",
                "give the recipe the `lora` of the iterations before",
            )
        model = load_model(folder, device, "float32", for_training=True)
        parameters = trained_parameters(model)
        refuse_other_model(OptimizerState(masters=masters), parameters)
        restore_masters(parameters, masters, stored_dtype(folder))
    if settings.gradient_checkpointing:
        checkpoint_layers(model)
    return model


def _adapted(folder: Path, lora: Lora, seed: int) -> PreTrainedModel:
    """The base in float32 on the CPU, whatever it is stored in, with the adapter that is trained."""
    cpu = torch.device("cpu")
    if is_adapter(folder):
        refuse_other_shape(folder, lora)
        model = load_model(base_folder(folder), cpu)
        attach_stored(model, folder)
    else:
        model = load_model(folder, cpu)
        attach_new(model, lora, seed)
    return model


def trained_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """What an update changes, by name: all weights, or those of the adapter."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def written_dtype(previous: Path, settings: UpdatePolicy) -> str:
    """Floating type that the next policy is stored in: that of the one before, or an adapter's.

    Raises:
        PolicyError: if the weight files of `previous` are damaged.
    """
    return ADAPTER_DTYPE if settings.lora is not None else stored_dtype(previous)


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Recomputes activations of each layer in the backward pass instead of keeping them.

    transformers does so in training mode only. Here just the layers themselves enter it, and not what is inside
    them, so that dropout stays off.

    Raises:
        TrainingError: if the architecture cannot.
    """
    if not model.supports_gradient_checkpointing:
        raise TrainingError(
            f"{type(model).__name__} does not support gradient checkpointing",
            "set update_policy.gradient_checkpointing: false",
        )
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def restore_masters(
    parameters: Mapping[str, torch.nn.Parameter], masters: Mapping[str, Tensor], stored: str
) -> None:
    """Replaces weights as read from a policy folder by their float32 masters.

    Args:
        parameters: the model's, in float32, as read.
        masters: by parameter; empty if there are none.
        stored: floating type of the policy folder.

    Raises:
        TrainingError: if the masters, rounded, are not the policy's weights.
    """
    for name, master in masters.items():
        parameter, dtype = parameters[name], getattr(torch, stored)
        rounded = master.to(dtype)
        if not torch.equal(rounded, parameter.detach().to("cpu", dtype)):
            raise TrainingError(
                f"the master weights in the optimizer folder are not those of the policy ({name} differs)",
                "give the optimizer folder that was written together with this policy",
            )
        with torch.no_grad():
            parameter.copy_(master)


def masters_of(parameters: Mapping[str, torch.nn.Parameter], stored: str) -> dict[str, Tensor]:
    """Copies of the float32 weights if the policy is stored with fewer bits, else nothing."""
    if stored not in REDUCED:
        return {}
    return {name: value.detach().to("cpu", copy=True) for name, value in parameters.items()}


def policy_writer(model: PreTrainedModel, previous: Path, stored: str) -> FolderWriter:
    """Fills a policy folder: the model's weights; config, tokenizer, chat template and the rest from `previous`.

    Args:
        model: after the update; its weights are rounded to `stored` for good. Of one with an adapter only that is
            written.
        previous: the policy folder it came from, whose other files are carried over byte for byte.
        stored: floating type to store the weights in.
    """
    adapted = has_adapter(model)
    if not adapted:
        model.to(getattr(torch, stored))
    left_out = {FACTS_FILE, *(file.name for file in weight_files(previous))}
    if adapted:
        # With the base's config under its own name, other tools would take it for a whole model.
        left_out |= {"config.json", *ADAPTER_FILES}

    def write(folder: Path) -> None:
        if adapted:
            write_adapter(model, previous, folder)
        else:
            save_weights(model, folder)
        shutil.copytree(
            previous,
            folder,
            ignore=lambda _, names: left_out.intersection(names),
            copy_function=shutil.copyfile,
            dirs_exist_ok=True,
        )

    return write
