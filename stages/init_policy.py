"""Makes the base policy, iteration i0000, an optimizer state of no steps, no critic and a history of no prompts."""

from __future__ import annotations

from typing import Annotated

from rollbook.components.policies.base import WarmStartExample
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.rl.training.critic_state import empty_critic_state
from rollbook.rl.training.optimizer import empty_optimizer_state
from rollbook.settings.config import Policy
from rollbook.tables.artifacts import schema_of


class Settings(StageSettings):
    """How the base policy comes to be."""

    seed: Annotated[int, From("seed")]
    policy: Annotated[Policy, From("policy")]


def init_policy(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """The base policy's folder, and facts about it as metrics.

    Only training prompts are handed to a policy that warms up: evaluation prompts stay unseen.

    Raises:
        PolicyError: if the model cannot be had.
    """
    columns = inputs.tables["data"].select(["messages", "reference_answer"]).to_pylist()
    examples = [WarmStartExample(row["messages"], row["reference_answer"]) for row in columns]
    created = settings.policy.base.create(examples, settings.seed, context.runtime)
    return Outputs(
        tables={"history": schema_of("history").empty()},
        folders={
            "policies": created.write,
            "optimizers": empty_optimizer_state(),
            "values": empty_critic_state(),
        },
        metrics=created.facts,
    )


STAGE = Stage(
    name="init_policy",
    settings=Settings,
    run=init_policy,
    inputs=(Input("data", key="train"),),
    outputs=(Output("policies"), Output("optimizers"), Output("values"), Output("history")),
)

if __name__ == "__main__":
    STAGE.main()
