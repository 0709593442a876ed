"""Generates a group of completions per prompt with the policy before the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from rollbook.components.engines.base import Completion, GenerationRequest
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.ids import BASE_KEY, rollout_id_of, seed_of
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.generation import completion_columns, completion_metrics, completions_of
from rollbook.settings.recipe_sections import GenerateRollouts
from rollbook.tables.artifacts import schema_of


class Settings(StageSettings):
    """Engine, group size and sampling of the recipe."""

    seed: Annotated[int, From("seed")]
    generate: Annotated[GenerateRollouts, From("recipe.generate_rollouts")]


@dataclass(frozen=True)
class _AskedRollout:
    """One rollout to be made."""

    group_id: str
    prompt_id: str
    prompt_token_ids: list[int]
    sample: int
    greedy: bool
    seed: int


def generate_rollouts(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Rollouts table, groups in the order of the prompts, the greedy rollout last in its group.

    Metrics are about the sampled rollouts.

    Raises:
        PolicyError: if the policy cannot be loaded, or a prompt does not fit into its context.
    """
    generate, policy = settings.generate, inputs.folders["policies"]
    prompts = inputs.tables["prompts"].select(["group_id", "prompt_id", "prompt_token_ids"])
    rows = [
        _AskedRollout(
            **prompt,
            sample=sample,
            greedy=sample == generate.group_size,
            seed=seed_of("rollout", settings.seed, context.key, prompt["prompt_id"], sample),
        )
        for prompt in prompts.to_pylist()
        for sample in range(generate.group_size + generate.greedy)
    ]
    requests = [GenerationRequest(row.prompt_token_ids, row.seed, row.greedy) for row in rows]
    completions = completions_of(generate.engine, requests, generate, "rollouts", inputs, context)
    columns = {
        "rollout_id": [rollout_id_of(row.group_id, row.sample) for row in rows],
        "group_id": [row.group_id for row in rows],
        "prompt_id": [row.prompt_id for row in rows],
        "iteration": [context.key] * len(rows),
        "sample_index": [row.sample for row in rows],
        "greedy": [row.greedy for row in rows],
        "seed": [row.seed for row in rows],
        **completion_columns(completions, PromptRenderer(policy, PromptFormat())),
        "policy_digest": [inputs.digest("policies")] * len(rows),
    }
    table = schema_of("rollouts").build(columns)
    sampled = [
        (row.group_id, completion)
        for row, completion in zip(rows, completions, strict=True)
        if not row.greedy
    ]
    metrics = {
        **completion_metrics([completion for _, completion in sampled]),
        **_diversity(sampled),
    }
    return Outputs(tables={"rollouts": table}, metrics=metrics)


def _diversity(completions: Sequence[tuple[str, Completion]]) -> dict[str, float]:
    """Mean log-prob of the sampled tokens, and the share of different completions within groups.

    Args:
        completions: each with the id of its group.
    """
    logprobs = np.concatenate([np.array(completion.logprobs) for _, completion in completions])
    different = len({(group_id, tuple(each.token_ids)) for group_id, each in completions})
    return {
        "sampling/logprob/mean": float(logprobs.mean()) if len(logprobs) else float("nan"),
        "completions/distinct_share": different / max(len(completions), 1),
    }


STAGE = Stage(
    name="generate_rollouts",
    settings=Settings,
    run=generate_rollouts,
    inputs=(
        Input("prompts"),
        Input("policies", key="previous"),
        Input("policies", key=BASE_KEY, name="base", under="policies"),
    ),
    outputs=(Output("rollouts"),),
)

if __name__ == "__main__":
    STAGE.main()
