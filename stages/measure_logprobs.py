"""What frozen policies say about the rollouts: the policy before the update, and the reference of the KL term.

Measures only what the recipe's update needs; if that is nothing, it writes an empty table without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pipeline.artifacts import schema_of
from pipeline.config import UpdatePolicy
from pipeline.plan import From, StageSettings
from pipeline.stage import Context, Input, Inputs, Output, Outputs, Stage
from pipeline.training.needs import Measurements, measurements_of

if TYPE_CHECKING:
    from pipeline.training.measure import Measured
    from pipeline.training.rows import Rows


class Settings(StageSettings):
    update: Annotated[UpdatePolicy, From("recipe.update_policy")]
    temperature: Annotated[float, From("recipe.generate_rollouts.temperature")]


def measure_logprobs(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Log-probs of every completion token under the policies that the update needs.

    Raises:
        TrainingError: if the rollouts do not come from this policy.
        PolicyError: if a policy cannot be loaded.
    """
    needs = measurements_of(settings.update)
    if not needs.any:
        return Outputs(tables={"logprobs": schema_of("logprobs").empty()}, metrics={"rows": 0})
    from pipeline.training import tables
    from pipeline.training.rows import rows_of

    rollouts = inputs.tables["rollouts"]
    rows = rows_of(inputs.tables["prompts"], rollouts, inputs.digest("policies"))
    measured = _measure(settings, inputs, context, rows, needs)
    old = measured.get("policies")
    return Outputs(
        tables={"logprobs": tables.logprobs_table(rollouts, old, measured.get("reference"))},
        metrics={"rows": len(rows), **tables.sampling_metrics(rows, old)},
    )


def _measure(
    settings: Settings, inputs: Inputs, context: Context, rows: Rows, needs: Measurements
) -> dict[str, Measured]:
    """Measurements by input name. A reference that is the policy itself is not run twice."""
    from pipeline.policies.loading import load_model, prepare_torch
    from pipeline.training.measure import measure

    device = prepare_torch(context.runtime)
    wanted = [
        name for name, needed in (("policies", needs.old), ("reference", needs.reference)) if needed
    ]
    digests = {name: inputs.digest(name) for name in wanted}
    by_digest: dict[str, Measured] = {}
    with context.progress(len(rows) * len(set(digests.values())), "rollouts", "tokens") as bar:
        for name, digest in digests.items():
            if digest not in by_digest:
                model = load_model(inputs.folders[name], device, "float32")
                by_digest[digest] = measure(
                    model, rows, settings.update, settings.temperature, bar.update
                )
    return {name: by_digest[digest] for name, digest in digests.items()}


STAGE = Stage(
    name="measure_logprobs",
    settings=Settings,
    run=measure_logprobs,
    inputs=(
        Input("prompts"),
        Input("rollouts"),
        Input("policies", key="previous"),
        Input("policies", key="reference", name="reference"),
    ),
    outputs=(Output("logprobs"),),
)

if __name__ == "__main__":
    STAGE.main()
