"""Score rollouts: run the recipe's reward functions on every group and add up what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.rewards.base import RewardInput, run_info_of
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.scoring.inputs import inputs_of
from rollbook.rl.scoring.scorer import score_groups
from rollbook.rl.scoring.totals import mean_and_std, reward_metrics
from rollbook.settings.recipe_sections import ScoreRollouts
from rollbook.tables.columns import numbers_in
from rollbook.tables.schemas.rollouts import IDS
from rollbook.tables.schemas.scores import SCHEMA


class Settings(StageSettings):
    """The recipe's rewards."""

    score_rollouts: Annotated[ScoreRollouts, From("recipe.score_rollouts")]


def score_rollouts(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Scores table in the order of the rollouts, and TRL's reward metrics of the sampled ones.

    Raises:
        RewardError: if a larger share of rollouts than allowed made a reward fail.
        ArtifactError: if prompts and rollouts do not belong together.
    """
    rewards = settings.score_rollouts.rewards
    rollouts = inputs.tables["rollouts"]
    rows = inputs_of(inputs.tables["prompts"], rollouts)
    with context.progress(len(rows), "rollouts") as bar:
        columns = score_groups(
            rewards,
            rows,
            settings.score_rollouts.max_error_share,
            bar.update,
            context.runtime.scoring_processes,
        )
    ids = {name: rollouts[name] for name in IDS}
    table = SCHEMA.build({**ids, **columns})
    return Outputs(
        tables={"scores": table},
        metrics={
            **_metrics(
                table,
                rollouts["greedy"],
                [reward.column for reward in rewards],
                rows,
                context,
            ),
            **_greedy_mean(table.filter(rollouts["greedy"])),
        },
        run_info=run_info_of(rewards),
    )


def _greedy_mean(table: pa.Table) -> dict[str, float]:
    """Mean reward of the greedy rollouts, if there are any."""
    mean, _ = mean_and_std(numbers_in(table["reward"]))
    return {"reward_greedy": mean} if table.num_rows else {}


def _metrics(
    table: pa.Table,
    greedy: pa.ChunkedArray,
    names: Sequence[str],
    rows: Sequence[RewardInput],
    context: Context,
) -> dict[str, float]:
    """`errors` made a reward fail; `unscorable` are rows that no reward applies to. All about sampled rollouts."""
    sampled = pc.invert(greedy)
    silent = pc.and_(pc.is_null(table["reward"]), pc.is_null(table["error"]))
    unscorable = np.flatnonzero(pc.and_(silent, sampled).to_numpy())
    table = table.filter(sampled)
    if len(unscorable):
        row = rows[int(unscorable[0])]
        context.warn(
            f"no reward applies to {len(unscorable)} of {table.num_rows} rollouts; they carry no signal. The first is "
            f"{row.rollout_id}: reference answer {str(row.reference_answer)[:60]!r}, finish reason {row.finish_reason}"
        )
    components = np.column_stack([numbers_in(table[name]) for name in names])
    labels = [name.removeprefix("reward_") for name in names]
    return {
        **reward_metrics(numbers_in(table["reward"]), components, labels),
        **_logged_means(table, {*SCHEMA.columns, *names}),
        "errors": table.num_rows - table["error"].null_count,
        "unscorable": len(unscorable),
    }


def _logged_means(table: pa.Table, known: set[str]) -> dict[str, float]:
    """`logged/<column>/mean` of what rewards logged as numbers or truth values, in the order of names."""
    means = {}
    for name in table.column_names:
        if name not in known and not pa.types.is_string(table.schema.field(name).type):
            means[f"logged/{name}/mean"] = mean_and_std(numbers_in(table[name]))[0]
    return means


STAGE = Stage(
    name="score_rollouts",
    settings=Settings,
    run=score_rollouts,
    inputs=(Input("prompts"), Input("rollouts")),
    outputs=(Output("scores"),),
    pandas_later=True,
)

if __name__ == "__main__":
    STAGE.main()
