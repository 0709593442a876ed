"""Re-score rollouts: what the recipe of a re-score says about the rollouts of an iteration, beside what was said."""

from __future__ import annotations

from typing import Annotated

from rollbook.components.coefficients import AdaptiveKl
from rollbook.components.rewards.base import run_info_of
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.rescoring import TABLES, rescored, summary
from rollbook.rl.scoring.scorer import Scorer
from rollbook.settings.recipe_sections import ComputeAdvantages, ScoreRollouts


class Settings(StageSettings):
    """Rewards and estimator of the re-score's recipe, and whose policy sampled."""

    score_rollouts: Annotated[ScoreRollouts, From("rescore.score_rollouts")]
    compute_advantages: Annotated[ComputeAdvantages, From("rescore.compute_advantages")]
    previous: Annotated[str, From("iteration.previous")]


def rescore_rollouts(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Rescores table in the order of the rollouts, and numbers about the differences.

    Raises:
        RewardError: if a larger share of rollouts than allowed made a reward fail.
        ArtifactError: if the tables do not belong together, or lack what the estimator reads.
        RollbookError: if the KL to the reference is part of the rewards and was not measured.
    """
    compute = settings.compute_advantages
    if isinstance(compute.kl_coef, AdaptiveKl):
        context.warn("compute_advantages.kl_coef follows a target; re-scoring takes its start")
    score = settings.score_rollouts
    with (
        context.progress(inputs.tables["rollouts"].num_rows, "rollouts") as bar,
        Scorer(score.rewards, context.runtime.scoring_processes) as scorer,
    ):
        table = rescored(inputs.tables, scorer, score, compute, bar.update)
    return Outputs(
        tables={"rescores": table},
        metrics=summary(table, settings.previous),
        run_info=run_info_of(score.rewards),
    )


STAGE = Stage(
    name="rescore_rollouts",
    settings=Settings,
    run=rescore_rollouts,
    inputs=tuple(Input(kind) for kind in TABLES),
    outputs=(Output("rescores"),),
    pandas_later=True,
    of_rescores=True,
)

if __name__ == "__main__":
    STAGE.main()
