"""Evaluates a policy with the run's fixed scorer, samples and limits, whatever the recipes reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa

from rollbook.components.engines.base import GenerationRequest
from rollbook.components.prompting import PromptRenderer, RenderedPrompt
from rollbook.components.rewards.base import run_info_of
from rollbook.core.ids import BASE_KEY, group_id_of, rollout_id_of, seed_of
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.evaluation import evaluation_metrics
from rollbook.rl.generation import completion_columns, completions_of
from rollbook.rl.scoring.inputs import inputs_of
from rollbook.rl.scoring.scorer import score_groups
from rollbook.settings.config import EvaluatePolicy
from rollbook.tables.artifacts import schema_of


class Settings(StageSettings):
    """The fixed evaluation, and whether this iteration has one (the base policy always does)."""

    seed: Annotated[int, From("seed")]
    evaluate: Annotated[EvaluatePolicy, From("evaluate_policy")]
    wanted: Annotated[bool, From("evaluated")]


@dataclass(frozen=True)
class _AskedSample:
    """One completion to be made for one evaluation prompt."""

    place: int
    sample: int
    greedy: bool


def evaluate_policy(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Evaluations table and the numbers of each set; no rows where the iteration asks for no evaluation.

    Seeds contain neither the iteration nor the recipe: every policy meets the same noise, so differences are paired.

    Raises:
        RewardError: if the scorer failed on any row.
        PolicyError: if the policy cannot be loaded.
    """
    schema, data = schema_of("evaluations"), inputs.tables["data"]
    if not settings.wanted or not data.num_rows:
        return Outputs(tables={"evaluations": schema.empty()})
    evaluate = settings.evaluate
    renderer = PromptRenderer(inputs.folders["policies"], evaluate)
    rendered = renderer.render_all(data["messages"].to_pylist())
    prompts = _prompts(data, rendered, context.key)
    table = _completed(settings, prompts, rendered, renderer, inputs, context)
    scores = score_groups(
        [evaluate.scorer],
        inputs_of(prompts, table),
        processes=context.runtime.scoring_processes,
    )
    table = schema.build({**{name: table[name] for name in table.column_names}, **scores})
    label = evaluate.scorer.title
    return Outputs(
        tables={"evaluations": table},
        metrics=evaluation_metrics(table, evaluate.samples, label),
        run_info=run_info_of([evaluate.scorer]),
    )


def _completed(
    settings: Settings,
    prompts: pa.Table,
    rendered: Sequence[RenderedPrompt],
    renderer: PromptRenderer,
    inputs: Inputs,
    context: Context,
) -> pa.Table:
    """The evaluations table without scores: for each prompt the samples, then the greedy completion."""
    evaluate = settings.evaluate
    rows = prompts.select(
        ["prompt_id", "set", "group_id", "prompt", "reference_answer"]
    ).to_pylist()
    asked = [
        _AskedSample(place, sample, sample == evaluate.samples)
        for place in range(len(rows))
        for sample in range(evaluate.samples + evaluate.greedy)
    ]
    ids = [_ids(rows[each.place], each, settings.seed, context.key) for each in asked]
    requests = [
        GenerationRequest(rendered[each.place].token_ids, row["seed"], each.greedy)
        for each, row in zip(asked, ids, strict=True)
    ]
    completions = completions_of(
        evaluate.engine, requests, evaluate, "completions", inputs, context
    )
    return schema_of("evaluations").build(
        {
            **{name: [row[name] for row in ids] for name in ids[0]},
            **completion_columns(completions, renderer),
            "policy_digest": [inputs.digest("policies")] * len(asked),
        }
    )


def _ids(row: dict[str, Any], asked: _AskedSample, seed: int, key: str) -> dict[str, Any]:
    """What a completion has of its prompt, its name, and its seed."""
    return {
        "rollout_id": rollout_id_of(row["group_id"], asked.sample),
        **{
            name: row[name]
            for name in ("group_id", "prompt_id", "set", "prompt", "reference_answer")
        },
        "iteration": key,
        "sample_index": asked.sample,
        "greedy": asked.greedy,
        "seed": seed_of("evaluation", seed, row["set"], row["prompt_id"], asked.sample),
    }


def _prompts(data: pa.Table, rendered: Sequence[RenderedPrompt], key: str) -> pa.Table:
    """The evaluation data as the scorer's prompts: rendered, and named by group."""
    pairs = zip(data["prompt_id"].to_pylist(), data["set"].to_pylist(), strict=True)
    groups = [group_id_of(key, prompt_id, set_name) for prompt_id, set_name in pairs]
    return data.append_column("group_id", pa.array(groups)).append_column(
        "prompt", pa.array([prompt.text for prompt in rendered])
    )


STAGE = Stage(
    name="evaluate_policy",
    settings=Settings,
    run=evaluate_policy,
    inputs=(
        Input("data", key="evaluation"),
        Input("policies"),
        Input("policies", key=BASE_KEY, name="base", under="policies"),
    ),
    outputs=(Output("evaluations"),),
    pandas_later=True,
)

if __name__ == "__main__":
    STAGE.main()
