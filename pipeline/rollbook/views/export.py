"""A stored policy as a folder that any tool loads and serves: whole weights, tokenizer, templates and a model card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollbook.components.policies.adapters import OWN_FILES as ADAPTER_FILES
from rollbook.components.policies.adapters import base_folder, is_adapter
from rollbook.components.policies.loading import (
    REMOTE_CODE_FILE,
    load_model,
    parameter_count,
    save_weights,
    stored_dtype,
    weight_files,
)
from rollbook.components.prompting import ADAPTERS_CONFIG_FILE
from rollbook.core.atomic import replacing
from rollbook.core.errors import ArtifactError
from rollbook.core.hashing import FACTS_FILE, files_in
from rollbook.project.ancestry import ancestry_of
from rollbook.project.run.policies import checked_digest
from rollbook.project.run.store import Store
from rollbook.views.model_card import model_card

if TYPE_CHECKING:
    import torch

Dtype = Literal["stored", "float32", "bfloat16", "float16"]
CARD = "README.md"
WRITTEN_WITH_WEIGHTS = ("config.json",)
"""Says the type of the weights, so it is written anew where that changes."""
READABLE = 0o644
"""Mode of exported files: others serve them."""


def export_policy(run: Store, policy: Path, target: Path, dtype: Dtype) -> str:
    """Writes a policy to `target`, which appears whole or not at all. The same policy gives the same bytes.

    Weights are copied as they are where nothing changes. An adapter is merged into its base in float32 first.

    Args:
        run: that the policy is part of.
        policy: its folder.
        target: a folder that does not exist, or is empty.
        dtype: of the weights; `stored` is that of the policy, of an adapter that of its base.

    Returns:
        The floating type that was written.

    Raises:
        ArtifactError: if the target holds something, or the policy is damaged or its history is not known here.
        PolicyError: if it cannot be loaded.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ArtifactError(
            f"{target}: is not empty, and nothing is written over", "give a new folder"
        )
    digest = checked_digest(policy)
    adapted = is_adapter(policy)
    if adapted:
        checked_digest(base_folder(policy))
    stored = stored_dtype(base_folder(policy) if adapted else policy)
    wanted = stored if dtype == "stored" else dtype
    ancestry = ancestry_of(run, digest)
    ancestry.refuse_replaced()
    with replacing(target.absolute()) as folder:
        folder.mkdir()
        if adapted or wanted != stored:
            _write_weights(policy, folder, wanted)
        else:
            for file in (*weight_files(policy), *(policy / name for name in WRITTEN_WITH_WEIGHTS)):
                shutil.copyfile(file, folder / file.name)
        _copy_the_rest(policy, folder)
        for file in files_in(folder):  # safetensors writes for its owner's eyes only
            file.chmod(READABLE)
        weights = f"{wanted}, an adapter merged into its base" if adapted else wanted
        card = model_card(
            run, ancestry, target.absolute().name, weights, parameter_count(folder) or 0
        )
        (folder / CARD).write_text(card, encoding="utf-8")
    return wanted


def _write_weights(policy: Path, folder: Path, dtype: str) -> None:
    """Loads, merges and converts; config.json says the new type."""
    import torch

    cpu: torch.device = torch.device("cpu")
    model: Any = load_model(policy, cpu).to(getattr(torch, dtype))
    save_weights(model, folder)


def _copy_the_rest(policy: Path, folder: Path) -> None:
    """Tokenizer, templates, generation config: everything but weights and what only Rollbook reads, byte for byte."""
    left_out = {FACTS_FILE, CARD, REMOTE_CODE_FILE, ADAPTERS_CONFIG_FILE, *ADAPTER_FILES}
    left_out |= {*WRITTEN_WITH_WEIGHTS, *(file.name for file in weight_files(policy))}
    for file in files_in(policy):
        place = file.relative_to(policy)
        if place.as_posix() not in left_out:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / place)
