"""AdamW whose state is an artifact: moments and master weights as safetensors, counters as JSON, resumed bit by bit.

optimizers/<key>/state.json             {"optimizer_step": steps taken along the chain, "controllers": {name: value}}
optimizers/<key>/exp_avg.safetensors    <parameter>, float32; absent before a first step
optimizers/<key>/exp_avg_sq.safetensors likewise; files apart, so that DVC hashes them side by side
optimizers/<key>/masters.safetensors    <parameter>, float32; only where the policy itself is stored with fewer bits

torch is imported where it is used: `init_policy` writes the state of a fresh chain without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.components.policies.misfit import misfit
from rollbook.core.errors import ArtifactError, TrainingError
from rollbook.rl.training.controllers import STATE_FILE, read_state
from rollbook.tables.artifacts import FolderWriter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rollbook.settings.recipe_sections import UpdatePolicy

MASTERS_FILE = "masters.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of AdamW's moments, in torch and of their files."""


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer folder holds.

    Attributes:
        optimizer_step: steps taken along the chain of iterations.
        moments: `exp_avg` and `exp_avg_sq`, each by parameter; empty before the first step.
        masters: float32 weights by parameter, where the policy is stored with fewer bits.
        controllers: coefficients that follow a target, by name (`pipeline/rollbook/rl/training/controllers.py`).
    """

    optimizer_step: int = 0
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    masters: Mapping[str, Tensor] = field(default_factory=dict)
    controllers: Mapping[str, float] = field(default_factory=dict)


def empty_optimizer_state() -> FolderWriter:
    """Fills `optimizers/i0000`: no step taken yet."""
    return optimizer_state_writer(OptimizerState())


def optimizer_state_writer(state: OptimizerState) -> FolderWriter:
    """Fills an optimizer folder with a state; the same state gives the same bytes."""

    def write(folder: Path) -> None:
        counters = {
            "optimizer_step": state.optimizer_step,
            "controllers": dict(state.controllers),
        }
        text = json.dumps(counters, sort_keys=True, allow_nan=False)
        (folder / STATE_FILE).write_text(text + "\n", encoding="utf-8")
        write_tensors({MASTERS_FILE: state.masters, **files_of(state.moments)}, folder)

    return write


def read_optimizer_state(folder: Path) -> OptimizerState:
    """Reads what `optimizer_state_writer` wrote.

    Raises:
        ArtifactError: if the folder is no optimizer state.
    """
    step, controllers = read_state(folder)
    try:
        masters, moments = read_tensors(folder / MASTERS_FILE), read_moments(folder)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder}: is not an optimizer state: {error}") from error
    return OptimizerState(step, moments, masters, controllers)


def clip_gradient(parameters: Iterable[torch.nn.Parameter], limit: float | None) -> float:
    """Scales gradients down to a norm of `limit`, if there is one. Returns the norm before that.

    A parameter without a gradient gets one of zeros: skipped rows would have given it exactly that, and momentum and
    bias correction must go on as if they had.
    """
    import torch

    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
    return float(norm)


def learning_rate_at(settings: UpdatePolicy, optimizer_step: int) -> float:
    """Learning rate of the n-th optimizer step of the chain: linear up to `warmup_steps`, then constant.

    Steps are counted from 1, so the first one already moves (Hugging Face's schedule starts with one step at 0).
    """
    warmth = optimizer_step / settings.warmup_steps if settings.warmup_steps else 1.0
    return settings.learning_rate * min(1.0, warmth)


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter], settings: UpdatePolicy, state: OptimizerState
) -> torch.optim.AdamW:
    """AdamW over named parameters, with the moments of `state`.

    Weight decay leaves out biases and norms, as Hugging Face's trainer does: all parameters of one dimension.

    Raises:
        TrainingError: if the state belongs to another model.
    """
    import torch

    refuse_other_model(state, parameters)
    matrices = [value for value in parameters.values() if value.ndim >= 2]
    vectors = [value for value in parameters.values() if value.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_epsilon,
        fused=True,  # one pass over the weights instead of one per operation
    )
    if state.moments:
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {
                # Fused AdamW reads the counter on the device of the weights; on CUDA one left on the CPU is a fault.
                "step": torch.tensor(float(state.optimizer_step), device=parameter.device),
                **{m: state.moments[m][name].to(parameter.device) for m in MOMENTS},
            }
    return optimizer


def moments_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, dict[str, Tensor]]:
    """The optimizer's moments, each by parameter, on the CPU; empty before a step."""
    if not optimizer.state:
        return {}
    return {
        moment: {
            name: optimizer.state[parameter][moment].cpu()
            for name, parameter in parameters.items()
            if parameter in optimizer.state
        }
        for moment in MOMENTS
    }


def refuse_other_model(state: OptimizerState, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raises TrainingError unless moments and masters have exactly the model's names and shapes."""
    held = {f"{moment}/": values for moment, values in state.moments.items()}
    if state.masters:
        held[""] = state.masters
    for kind, tensors in held.items():
        if differs := misfit(tensors, parameters):
            raise TrainingError(
                f"the optimizer state belongs to another model: {kind}{differs}",
                "start a new chain from this policy, or give the optimizer state that was written with it",
            )


def files_of(moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Mapping[str, Tensor]]:
    """The files that moments are written to, by name."""
    return {_file_of(moment): values for moment, values in moments.items()}


def write_tensors(files: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """Writes safetensors files by name; one without tensors is left out. The same tensors give the same bytes."""
    for name, content in files.items():
        if content:
            from safetensors.torch import save_file

            save_file({key: value.contiguous() for key, value in content.items()}, folder / name)


def read_moments(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The moments in a folder; empty before a first step.

    Raises:
        OSError, ValueError: if a file is damaged.
    """
    read = {moment: read_tensors(folder / _file_of(moment)) for moment in MOMENTS}
    return read if any(read.values()) else {}


def _file_of(moment: str) -> str:
    return f"{moment}.safetensors"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; none if there is no such file.

    Raises:
        OSError, ValueError: if it is damaged.
    """
    if not file.exists():
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error
