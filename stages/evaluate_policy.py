"""Evaluates a policy with the run's fixed scorer, samples and limits, whatever the recipes reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa

from pipeline.artifacts import schema_of
from pipeline.config import EvaluatePolicy
from pipeline.engines.base import GenerationRequest
from pipeline.evaluation import evaluation_metrics
from pipeline.generation import completion_columns
from pipeline.ids import group_id_of, rollout_id_of, seed_of
from pipeline.plan import From, StageSettings
from pipeline.prompting import PromptRenderer
from pipeline.rewards.inputs import inputs_of
from pipeline.rewards.scoring import score_groups
from pipeline.stage import Context, Input, Inputs, Output, Outputs, Stage


class Settings(StageSettings):
    """The fixed evaluation, and whether this iteration has one (the base policy always does)."""

    seed: Annotated[int, From("seed")]
    evaluate: Annotated[EvaluatePolicy, From("evaluate_policy")]
    wanted: Annotated[bool, From("evaluated")]


@dataclass(frozen=True)
class _Asked:
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
    rows = data.to_pylist()
    asked = [
        _Asked(place, sample, sample == evaluate.samples)
        for place in range(len(rows))
        for sample in range(evaluate.samples + evaluate.greedy)
    ]
    renderer = PromptRenderer(inputs.folders["policies"], evaluate)
    prompts = renderer.render_all([row["messages"] for row in rows])
    ids = list(_ids(rows, asked, settings.seed, context.key))
    requests = [
        GenerationRequest(prompts[each.place].token_ids, row["seed"], each.greedy)
        for each, row in zip(asked, ids, strict=True)
    ]
    with context.progress(len(requests), "completions", "tokens") as bar:
        completions = evaluate.engine.generate(
            inputs.folders["policies"], requests, evaluate, context.runtime, bar.update
        )
    columns: dict[str, Any] = {name: [row[name] for row in ids] for name in ids[0]}
    columns |= {
        "prompt": [prompts[each.place].text for each in asked],
        "reference_answer": [rows[each.place]["reference_answer"] for each in asked],
        "greedy": [each.greedy for each in asked],
        **completion_columns(completions, renderer),
        "policy_digest": [inputs.digest("policies")] * len(asked),
    }
    table = schema.build(columns)
    scores = score_groups([evaluate.scorer], inputs_of(_prompts(data, prompts, context.key), table))
    table = schema.build({**{name: table[name] for name in table.column_names}, **scores})
    lenient = f"{evaluate.scorer.label or evaluate.scorer.name}_lenient"
    return Outputs(
        tables={"evaluations": table}, metrics=evaluation_metrics(table, evaluate.samples, lenient)
    )


def _ids(
    rows: list[dict[str, Any]], asked: list[_Asked], seed: int, key: str
) -> Iterator[dict[str, Any]]:
    """Ids, set and seed of each completion; the greedy one comes after the samples."""
    for each in asked:
        row = rows[each.place]
        group_id = group_id_of(key, row["prompt_id"], row["set"])
        yield {
            "rollout_id": rollout_id_of(group_id, each.sample),
            "group_id": group_id,
            "prompt_id": row["prompt_id"],
            "iteration": key,
            "set": row["set"],
            "sample_index": each.sample,
            "seed": seed_of("evaluation", seed, row["set"], row["prompt_id"], each.sample),
        }


def _prompts(data: pa.Table, prompts: list[Any], key: str) -> pa.Table:
    """The evaluation data as the scorer's prompts: rendered, and named by group."""
    pairs = zip(data["prompt_id"].to_pylist(), data["set"].to_pylist(), strict=True)
    groups = [group_id_of(key, prompt_id, set_name) for prompt_id, set_name in pairs]
    return data.append_column("group_id", pa.array(groups)).append_column(
        "prompt", pa.array([prompt.text for prompt in prompts])
    )


STAGE = Stage(
    name="evaluate_policy",
    settings=Settings,
    run=evaluate_policy,
    inputs=(Input("data", key="evaluation"), Input("policies")),
    outputs=(Output("evaluations"),),
    pandas_later=True,
)

if __name__ == "__main__":
    STAGE.main()
