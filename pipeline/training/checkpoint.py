"""Policy folders in and out of an update: float32 master weights come in, the stored precision goes out.

Where a policy is stored in bf16 or fp16, its float32 master weights travel in the optimizer folder: a step of 1e-6 is
lost in bf16, whose neighbours near 1 are 0.004 to 0.008 apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.artifacts import FolderWriter
from pipeline.errors import TrainingError
from pipeline.hashing import FACTS_FILE
from pipeline.policies.loading import load_model, stored_dtype, weight_files
from pipeline.training.optimizer import OptimizerState, refuse_other_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.config import UpdatePolicy

REDUCED = ("bfloat16", "float16")


def load_for_training(
    folder: Path, masters: Mapping[str, Tensor], settings: UpdatePolicy, device: torch.device
) -> PreTrainedModel:
    """The policy as float32 model in evaluation mode, its master weights in place.

    Raises:
        PolicyError: if the folder cannot be loaded.
        TrainingError: if the masters are not those of this policy.
    """
    model = load_model(folder, device, "float32", for_training=True)
    parameters = dict(model.named_parameters())
    refuse_other_model(OptimizerState(masters=masters), parameters)
    restore_masters(parameters, masters, stored_dtype(folder))
    if settings.gradient_checkpointing:
        checkpoint_layers(model)
    return model


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
        model: after the update; its weights are rounded to `stored` for good.
        previous: the policy folder it came from, whose other files are carried over byte for byte.
        stored: floating type to store the weights in.
    """
    model.to(getattr(torch, stored))
    left_out = {FACTS_FILE, *(file.name for file in weight_files(previous))}

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        shutil.copytree(
            previous,
            folder,
            ignore=lambda _, names: left_out.intersection(names),
            copy_function=shutil.copyfile,
            dirs_exist_ok=True,
        )

    return write
