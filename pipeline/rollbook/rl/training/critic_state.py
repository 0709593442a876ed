"""A critic as an artifact: its weights and AdamW moments as safetensors, what it is as JSON, resumed bit by bit.

values/<key>/state.json             {"critic": kind or null, "optimizer_step": steps it has taken along the chain}
values/<key>/weights.safetensors    head.weight, head.bias, and backbone.<parameter> of one with its own transformer
values/<key>/exp_avg.safetensors    <parameter>; absent before a first step
values/<key>/exp_avg_sq.safetensors likewise

All tensors are float32, whatever the policy is stored in. Without a critic the folder holds `state.json` alone: the
base policy has none, nor has an iteration whose recipe has none.

torch is imported where it is used: `init_policy` writes an empty folder without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.core.errors import ArtifactError
from rollbook.rl.training.controllers import STATE_FILE
from rollbook.rl.training.optimizer import files_of, read_moments, read_tensors, write_tensors
from rollbook.tables.artifacts import FolderWriter

if TYPE_CHECKING:
    from torch import Tensor

    from rollbook.components.critics.base import Critic

WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class CriticState:
    """What a values folder holds.

    Attributes:
        kind: `Critic.label` of the critic; empty: there is none.
        optimizer_step: steps it has taken along the chain of iterations.
        weights: by parameter.
        moments: `exp_avg` and `exp_avg_sq`, each by parameter; empty before the first step.
    """

    kind: str = ""
    optimizer_step: int = 0
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


def empty_critic_state() -> FolderWriter:
    """Fills a values folder of a policy that has no critic, such as `values/i0000`."""
    return critic_state_writer(CriticState())


def critic_state_writer(state: CriticState) -> FolderWriter:
    """Fills a values folder; the same state gives the same bytes, and no critic one small file."""

    def write(folder: Path) -> None:
        facts = {"critic": state.kind or None, "optimizer_step": state.optimizer_step}
        text = json.dumps(facts, sort_keys=True)
        (folder / STATE_FILE).write_text(text + "\n", encoding="utf-8")
        write_tensors({WEIGHTS_FILE: state.weights, **files_of(state.moments)}, folder)

    return write


def stored_kind(folder: Path) -> str:
    """Kind of the critic in a values folder, empty if there is none; reads no tensors.

    Raises:
        ArtifactError: if the folder holds no critic's state.
    """
    return _facts_in(folder)[0]


def continued(folder: Path, critic: Critic | None, with_moments: bool = True) -> CriticState:
    """The state that a critic goes on from: that of the folder, or an empty one where its critic is of another kind.

    Args:
        folder: of the iteration before.
        critic: of the recipe; None: there is nothing to go on.
        with_moments: whether the optimizer's moments are read, which nobody needs who only asks the critic.

    Raises:
        ArtifactError: if the folder holds no critic's state, or is damaged.
    """
    kind, step = _facts_in(folder)
    if critic is None or kind != critic.label:
        return CriticState()
    try:
        weights = read_tensors(folder / WEIGHTS_FILE)
        moments = read_moments(folder) if with_moments else {}
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder}: is not the state of a critic: {error}") from error
    return CriticState(kind, step, weights, moments)


def _facts_in(folder: Path) -> tuple[str, int]:
    try:
        content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        return content["critic"] or "", int(content["optimizer_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{folder}: is not the state of a critic: {error}") from error
