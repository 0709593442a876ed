"""A small random Llama, rollouts sampled from nothing in particular, and stage inputs made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollbook.core.runtime import Runtime
from rollbook.rl.context import Context, Inputs
from rollbook.rl.training.critic_state import empty_critic_state
from rollbook.rl.training.optimizer import empty_optimizer_state
from rollbook.settings.recipe_sections import UpdatePolicy
from rollbook.tables.artifacts import Facts, write_folder
from tests.builders import prompt_rows, rollout_rows, table

VOCABULARY = 64
RUNTIME = Runtime(device="cpu", threads=1)


def write_model(folder: Path, dtype: str = "float32", seed: int = 0, **config: Any) -> None:
    """Two layers, 32 wide, tied embeddings; with a chat template beside it, as a policy has."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": VOCABULARY,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
                "initializer_range": 0.2,
                **config,
            }
        )
    )
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def write_policy(key: str = "i0000", **options: Any) -> Facts:
    """A policy in the current project, with an optimizer state that has taken no step, and no critic."""
    write_folder(empty_optimizer_state(), "optimizers", key)
    write_folder(empty_critic_state(), "values", key)
    return write_folder(lambda folder: write_model(folder, **options), "policies", key)


def tables_for(
    policy_digest: str,
    advantages: list[list[float]],
    lengths: list[list[int]] | None = None,
    iteration: str = "i0001",
    **columns: Any,
) -> dict[str, pa.Table]:
    """Prompts, rollouts and advantages; `advantages[g][i]` of the i-th rollout of group g.

    Args:
        policy_digest: of the policy the rollouts claim to come from.
        advantages: one list per group.
        lengths: characters of each completion, default 1, 2, 3, …; a stop token follows.
        iteration: their key.
        columns: further columns of the advantages table.
    """
    lengths = lengths or [[1 + i for i, _ in enumerate(group)] for group in advantages]
    texts = [
        [(chr(97 + 3 * g + i) + "0123456789")[:n] for i, n in enumerate(group)]
        for g, group in enumerate(lengths)
    ]
    prompts = prompt_rows(len(advantages), iteration)
    for place, prompt in enumerate(prompts):  # prompts of different length
        prompt["prompt_token_ids"] = [1, *range(10, 11 + place % 3), 3]
    rollouts = rollout_rows(prompts, texts, policy_digest)
    flat = [value for group in advantages for value in group]
    rows = [
        {
            **{name: row[name] for name in ("rollout_id", "group_id", "prompt_id", "iteration")},
            "advantage": advantage,
            "token_advantages": None,
            "token_returns": None,
            "group_mean": 0.5,
            "group_std": 0.5,
            "informative": True,
            "kept": True,
        }
        for row, advantage in zip(rollouts, flat, strict=True)
    ]
    made = {
        "prompts": table("prompts", prompts),
        "rollouts": table("rollouts", rollouts),
        "advantages": table("advantages", rows),
        "logprobs": table("logprobs", []),
    }
    for name, values in columns.items():
        made["advantages"] = with_column(made["advantages"], name, values)
    return made


def with_column(data: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with one column replaced."""
    place = data.column_names.index(name)
    return data.set_column(place, name, pa.array(values, data.schema.field(name).type))


def inputs_for(
    tables: dict[str, pa.Table], policy: str = "i0000", reference: str = "i0000"
) -> Inputs:
    """Stage inputs from tables and the folders of the current project."""
    from rollbook.tables.artifacts import path_of, read_folder

    folders = {
        "policies": path_of("policies", policy),
        "optimizers": path_of("optimizers", policy),
        "values": path_of("values", policy),
        "reference": path_of("policies", reference),
    }
    facts = {
        name: read_folder(path, "policies" if name == "reference" else name)
        for name, path in folders.items()
    }
    return Inputs(tables, folders, facts)


def context(key: str = "i0001") -> Context:
    return Context(key, RUNTIME, "test")


def settings_of(**options: Any) -> UpdatePolicy:
    return UpdatePolicy.model_validate({"learning_rate": 1e-2, **options})


def weights(folder: Path) -> dict[str, np.ndarray]:
    """All stored tensors of a folder, as float64."""
    import torch
    from safetensors.torch import load_file

    return {
        f"{file.name}/{name}": value.to(torch.float64).numpy()
        for file in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }
