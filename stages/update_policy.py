"""The gradient steps of an iteration: from rollouts and their advantages to the next policy.

Reads the policy, the optimizer state and the critic of the predecessor; writes the next ones, what the update did with
every rollout, and one row per optimizer step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rollbook.components.advantages.kl_reward import RewardKl
from rollbook.components.coefficients import KlCoefficient
from rollbook.core.errors import TrainingError
from rollbook.core.ids import BASE_KEY
from rollbook.project.dependencies import From, StageSettings
from rollbook.project.stage import Input, Output, Stage
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.recipe_correction import RolloutCorrection
from rollbook.settings.recipe_sections import UpdatePolicy

if TYPE_CHECKING:
    from rollbook.rl.training.rows import TrainingRows


MUCH = 0.5
"""Share of rollouts without tokens that is worth a warning."""


class Settings(StageSettings):
    seed: Annotated[int, From("seed")]
    update: Annotated[UpdatePolicy, From("recipe.update_policy")]
    temperature: Annotated[float, From("recipe.generate_rollouts.temperature")]
    max_completion_tokens: Annotated[int, From("recipe.generate_rollouts.max_completion_tokens")]
    correction: Annotated[RolloutCorrection | None, From("recipe.rollout_correction")]
    reward_kl: Annotated[KlCoefficient, From("recipe.compute_advantages.kl_coef")]
    reward_kl_estimator: Annotated[RewardKl, From("recipe.compute_advantages.kl_estimator")]


def update_policy(settings: Settings, inputs: Inputs, context: Context) -> Outputs:
    """Trains the previous policy on the iteration's rollouts.

    Raises:
        TrainingError: if the tables do not belong to this policy or to each other, or a number is not finite.
        PolicyError: if the policy cannot be loaded.
    """
    from rollbook.components.policies.loading import prepare_torch
    from rollbook.rl.training import tables
    from rollbook.rl.training.checkpoint import (
        load_for_training,
        masters_of,
        policy_writer,
        trained_parameters,
        written_dtype,
    )
    from rollbook.rl.training.critic import CriticUpdate, open_critic
    from rollbook.rl.training.critic_state import continued, critic_state_writer, empty_critic_state
    from rollbook.rl.training.loop import PolicyUpdate
    from rollbook.rl.training.optimizer import (
        OptimizerState,
        optimizer_state_writer,
        read_optimizer_state,
    )
    from rollbook.rl.training.records import LoopSettings
    from rollbook.rl.training.rows import training_rows

    device = prepare_torch(context.runtime)
    update, previous = settings.update, inputs.folders["policies"]
    rows = training_rows(inputs.tables, update, inputs.digest("policies"), settings.correction)
    _check_rows(rows, update, context)
    state = read_optimizer_state(inputs.folders["optimizers"])
    model = load_for_training(previous, state.masters, update, device, settings.seed)
    loop = LoopSettings(
        update,
        settings.temperature,
        settings.max_completion_tokens,
        settings.seed,
        context.key,
        settings.reward_kl,
    )
    critic = None
    if update.critic is not None:
        before = continued(inputs.folders["values"], update.critic)
        function = open_critic(
            update.critic, before, previous, model, update.gradient_checkpointing
        )
        critic = CriticUpdate(
            function, update, before, rows, settings.max_completion_tokens, context.key
        )
    _say_dropped(inputs, update, context)
    total = update.epochs * int(rows.kept.sum())
    with context.progress(total, "rollouts", "tokens") as bar:
        record = PolicyUpdate(model, rows, loop, state, critic).run(bar.update)
    stored = written_dtype(previous, update)
    if stored != "float32" and update.lora is None and settings.correction is None:
        context.warn(
            f"the policy is stored in {stored} and trained in float32: what generates samples from rounded weights; "
            "update_policy.rollout_correction can weigh that"
        )
    masters = masters_of(trained_parameters(model), stored)
    if record.controllers.follows_kl:
        kl = record.mean_kl if update.loss.needs_reference else _reward_kl(settings, inputs)
        record.controllers.after_iteration(kl, int(rows.kept.sum()))
    state_after = OptimizerState(
        record.steps[-1].optimizer_step, record.moments, masters, record.controllers.state()
    )
    return Outputs(
        tables={
            "updates": tables.updates_table(inputs.tables["rollouts"], rows, record),
            "optimizer_steps": tables.optimizer_steps_table(context.key, record.steps),
        },
        folders={
            "policies": policy_writer(model, previous, stored),
            "optimizers": optimizer_state_writer(state_after),
            "values": empty_critic_state()
            if critic is None
            else critic_state_writer(critic.state()),
        },
        metrics={
            **tables.update_metrics(record.steps, rows),
            **tables.engine_metrics(inputs.tables["logprobs"], rows, record),
            **tables.value_metrics(rows),
        },
    )


def _say_dropped(inputs: Inputs, update: UpdatePolicy, context: Context) -> None:
    """Warns if the iteration before left a critic that this one does not go on with."""
    from rollbook.rl.training.critic_state import stored_kind

    kind = stored_kind(inputs.folders["values"])
    wanted = "" if update.critic is None else update.critic.label
    if kind and kind != wanted:
        instead = f"a {wanted} begins anew" if wanted else "the recipe has none"
        context.warn(f"the {kind} critic of the iteration before is not carried on: {instead}")


def _reward_kl(settings: Settings, inputs: Inputs) -> float:
    """Mean over the sampled rollouts of the KL per token that was taken off their rewards, nats."""
    from rollbook.components.advantages.kl_reward import row_mean, token_kl
    from rollbook.rl.estimation import aligned_logprobs, old_and_reference, sampled_loss_mask

    rollouts = inputs.tables["rollouts"]
    logprobs = aligned_logprobs(inputs.tables["logprobs"], rollouts)
    old, ref = old_and_reference(logprobs, rollouts)
    mask = sampled_loss_mask(rollouts)
    return row_mean(token_kl(old, ref, mask, settings.reward_kl_estimator), mask)


def _check_rows(rows: TrainingRows, update: UpdatePolicy, context: Context) -> None:
    """Raises TrainingError if there is nothing to train on; warns where there is much less than was generated."""
    groups = rows.kept_groups
    if not groups:
        raise TrainingError(
            f"{context.key}: no rollout is kept, so there is nothing to train on",
            "look at the column `kept` of the advantages table",
        )
    emptied = rows.emptied_by[rows.kept]
    if not rows.trained_tokens[rows.kept].any():
        reasons = ", ".join(sorted(set(emptied) - {""})) or "the engine gave none"
        raise TrainingError(
            f"{context.key}: no kept rollout has a token to train on ({reasons})",
            "raise generate_rollouts.max_completion_tokens, or loosen what masks and rejects",
        )
    if (share := float((emptied != "").mean())) > MUCH:
        context.warn(f"{share:.0%} of the kept rollouts have no token to train on")
    if groups < update.optimizer_steps:
        context.warn(
            f"{groups} groups make {groups} optimizer steps, not {update.optimizer_steps}: groups stay whole"
        )


STAGE = Stage(
    name="update_policy",
    settings=Settings,
    run=update_policy,
    inputs=(
        Input("prompts"),
        Input("rollouts"),
        Input("logprobs"),
        Input("advantages"),
        Input("pairs"),
        Input("policies", key="previous"),
        Input("policies", key=BASE_KEY, name="base", under="policies"),
        Input("optimizers", key="previous"),
        Input("values", key="previous"),
    ),
    outputs=(
        Output("policies"),
        Output("optimizers"),
        Output("values"),
        Output("updates"),
        Output("optimizer_steps"),
    ),
)

if __name__ == "__main__":
    STAGE.main()
