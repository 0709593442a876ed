"""What frozen models say about the rollouts: the policy before the update, the reference of the KL term, the critic.

Measures only what the recipe's update needs; if that is nothing, it writes an empty table without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np

from rollbook.core.ids import BASE_KEY
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.recipe_sections import CriticSetting
from rollbook.tables.artifacts import schema_of

if TYPE_CHECKING:
    from rollbook.rl.training.measure import Measured
    from rollbook.rl.training.rows import Rows


class Settings(StageSettings):
    """Not the whole of `update_policy`: another learning rate must not measure everything again."""

    needs_old: Annotated[bool, From("recipe.needs_old")]
    needs_reference: Annotated[bool, From("recipe.needs_reference")]
    critic: Annotated[CriticSetting, From("recipe.measured_critic")]
    precision: Annotated[str, From("recipe.update_policy.precision")]
    micro_batch_tokens: Annotated[int, From("recipe.update_policy.micro_batch_tokens")]
    share_prompts: Annotated[bool, From("recipe.update_policy.share_prompts")]
    temperature: Annotated[float, From("recipe.generate_rollouts.temperature")]


def measure_logprobs(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Log-probs of every completion token under the policies that the update needs, and the critic's values.

    Raises:
        TrainingError: if the rollouts do not come from this policy, or the critic is not one of this policy.
        PolicyError: if a policy cannot be loaded.
    """
    if not (settings.needs_old or settings.needs_reference):
        return Outputs(tables={"logprobs": schema_of("logprobs").empty()}, metrics={"rows": 0})
    from rollbook.core.ragged import Ragged
    from rollbook.rl.training.measured import logprobs_table, sampling_metrics
    from rollbook.rl.training.rows import rows_of

    rollouts = inputs.tables["rollouts"]
    rows = rows_of(inputs.tables["prompts"], rollouts, inputs.digest("policies"))
    measured = _measure(settings, inputs, context, rows)
    old = measured.get("policies")
    values = None if old is None else old.values
    if values is None and settings.critic is not None:  # it has learned nothing yet, and says 0
        values = Ragged(np.zeros(len(rows.completions.values)), rows.completions.lengths)
    return Outputs(
        tables={"logprobs": logprobs_table(rollouts, old, measured.get("reference"), values)},
        metrics={"rows": len(rows), **sampling_metrics(rows, old)},
    )


def _measure(
    settings: Settings, inputs: Inputs, context: Context, rows: Rows
) -> dict[str, Measured]:
    """Measurements by input name. A reference that is the policy itself is not run twice.

    A critic that has learned something is run beside the policy before the update.
    """
    from rollbook.components.policies.frozen import FrozenPolicies
    from rollbook.components.policies.loading import prepare_torch
    from rollbook.rl.training.critic import open_critic
    from rollbook.rl.training.critic_state import continued
    from rollbook.rl.training.measure import measure

    policies = FrozenPolicies(prepare_torch(context.runtime))
    learned = continued(inputs.folders["values"], settings.critic, with_moments=False)
    wanted = [
        name
        for name, needed in (
            ("policies", settings.needs_old),
            ("reference", settings.needs_reference),
        )
        if needed
    ]
    digests = {name: inputs.digest(name) for name in wanted}
    by_digest: dict[str, Measured] = {}
    with context.progress(len(rows) * len(set(digests.values())), "rollouts", "tokens") as bar:
        for name, digest in digests.items():
            if digest not in by_digest:
                folder = inputs.folders[name]
                model, critic = policies.open(folder), None
                if settings.critic is not None and learned.kind and name == "policies":
                    critic = open_critic(settings.critic, learned, folder, model)
                by_digest[digest] = measure(
                    model,
                    rows,
                    settings.temperature,
                    settings.precision,
                    settings.micro_batch_tokens,
                    settings.share_prompts,
                    bar.update,
                    critic,
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
        Input("policies", key=BASE_KEY, name="base", under="policies"),
        Input("values", key="previous"),
    ),
    outputs=(Output("logprobs"),),
)

if __name__ == "__main__":
    STAGE.main()
