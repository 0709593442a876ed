"""A critic beside a small random Llama: what it reads, what it learns, and what that does to the policy."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from rollbook.components.losses.aggregate import Aggregation
from rollbook.components.policies.loading import load_model, prepare_torch
from rollbook.core.errors import TrainingError
from rollbook.core.registry import menu
from rollbook.rl.tokens import TokenBatch
from rollbook.rl.training import logprobs as logprobs_module
from rollbook.rl.training.batches import batch_of, micro_batches
from rollbook.rl.training.checkpoint import checkpoint_layers
from rollbook.rl.training.critic import CriticUpdate, ValueFunction, open_critic
from rollbook.rl.training.critic_state import CriticState
from rollbook.rl.training.logprobs import completion_logprobs
from rollbook.rl.training.loop import PolicyUpdate
from rollbook.rl.training.optimizer import OptimizerState
from rollbook.rl.training.records import LoopSettings
from rollbook.rl.training.rows import TrainingRows, training_rows
from rollbook.rl.training.window import window_of
from tests.unit.rl.training.small import RUNTIME, settings_of, tables_for, with_column, write_model
from tests.unit.rl.training.taught import taught

CPU = torch.device("cpu")
ADVANTAGES = [[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.3, -1.0, -0.7]]
CRITICS = menu("critics")
every_critic = pytest.mark.parametrize("name", CRITICS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_torch(RUNTIME)
    (tmp_path / "policy").mkdir()
    write_model(tmp_path / "policy")
    return tmp_path / "policy"


def _update(
    folder: Path, critic: Any = None, unscored: tuple[int, ...] = (), **options: Any
) -> PolicyUpdate:
    """An update whose critic, if there is one, says something else at every position."""
    update = settings_of(old_logprobs="sampling", critic=critic, **options)
    tables = tables_for("digest", ADVANTAGES)
    rows = training_rows(
        tables if critic is None else taught(tables, unscored=unscored), update, "digest"
    )
    model = load_model(folder, CPU, for_training=True)
    if update.gradient_checkpointing:
        checkpoint_layers(model)
    return PolicyUpdate(
        model,
        rows,
        LoopSettings(update, 0.9, 12, 0, "i0001"),
        OptimizerState(),
        None if critic is None else _critic_of(update, folder, model, rows),
    )


def _critic_of(update: Any, folder: Path, model: Any, rows: TrainingRows) -> CriticUpdate:
    function = open_critic(
        update.critic, CriticState(), folder, model, update.gradient_checkpointing
    )
    _learned(function)
    return CriticUpdate(function, update, CriticState(), rows, 12, "i0001")


def _learned(function: ValueFunction) -> None:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        function.head.weight.copy_(torch.randn(function.head.weight.shape, generator=generator))
        function.head.bias.fill_(0.25)


def _gradients(update: PolicyUpdate) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of the policy and of the critic, in one step over all rows."""
    every = np.flatnonzero(update.rows.kept)
    if update.critic is not None:
        update.critic.begin_step(every)
    window = window_of(update.rows, every, update.settings.update.loss, 1.0)
    computed = np.flatnonzero(update.computed)
    update._accumulate(computed, window, update.controllers.loss(), lambda *_: None)

    def flat(parameters: Any) -> torch.Tensor:
        return torch.cat([value.grad.flatten() for value in parameters.values()])

    critic = None if update.critic is None else flat(update.critic.parameters)
    return flat(update.parameters), critic


def _close(got: Any, want: Any) -> None:
    assert (got - want).norm() / want.norm() < 1e-5


def _batch(rows: TrainingRows, share: bool = False) -> tuple[TokenBatch, np.ndarray]:
    """All rows in one batch, and which row of them stands where."""
    every = np.flatnonzero(rows.kept)
    (part,) = micro_batches(every, rows.prompts, rows.completions, 10_000, 1e9 if share else None)
    return batch_of(part, rows.prompts, rows.completions, CPU), part.rows


@pytest.mark.parametrize("share", [False, True])
@every_critic
def test_a_value_is_read_where_its_token_is_predicted(folder: Path, name: str, share: bool) -> None:
    """Row by row, without padding: the hidden state before the token, and neither at it nor one further."""
    update = _update(folder, {"name": name})
    assert update.critic is not None
    batch, order = _batch(update.rows, share)
    function, model = update.critic.function, update.model
    with torch.no_grad():
        hidden = completion_logprobs(model, batch, 1.0).hidden
        found = function(batch, hidden, "float32")
        for place, row in enumerate(order):
            prompt, completion = (
                lists.rows(np.array([row])).values.tolist()
                for lists in (update.rows.prompts, update.rows.completions)
            )
            states = model.model(torch.tensor([prompt + completion])).last_hidden_state[0]
            said = (states @ function.head.weight[0] + 0.25)[len(prompt) - 1 : -1]
            got = found[place, : len(completion)]
            assert got.tolist() == pytest.approx(said.tolist(), abs=1e-5)
            assert not found[place, len(completion) :].any()


@every_critic
def test_a_fresh_critic_says_nothing_anywhere(folder: Path, name: str) -> None:
    update = settings_of(critic=name)
    assert update.critic is not None
    model = load_model(folder, CPU)
    function = open_critic(update.critic, CriticState(), folder, model)
    rows = training_rows(
        taught(tables_for("digest", ADVANTAGES)), settings_of(critic=name), "digest"
    )
    batch, _ = _batch(rows)
    hidden = completion_logprobs(model, batch, 1.0).hidden
    assert not function(batch, hidden, "float32").any()


@pytest.mark.parametrize(
    "memory",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 37},
        {"share_prompts": False},
        {"gradient_checkpointing": True},
        {"chunks": True},
    ],
    ids=str,
)
@every_critic
def test_the_gradient_does_not_depend_on_memory_settings(
    folder: Path, name: str, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = {"name": name, "coef": 0.7, "aggregation": "row_mean"}
    policy, head = _gradients(_update(folder, critic))
    if memory.pop("chunks", False):
        monkeypatch.setattr(logprobs_module, "LOGITS_AT_ONCE", 64 * 3)  # three tokens at once
    other_policy, other_head = _gradients(_update(folder, critic, **memory))
    _close(other_policy, policy)
    _close(other_head, head)


def test_the_value_loss_of_a_head_goes_on_into_the_policy(folder: Path) -> None:
    plain, _ = _gradients(_update(folder))
    once, half = (_gradients(_update(folder, {"name": "head", "coef": c}))[0] for c in (1.0, 0.5))
    assert (once - plain).norm() > 0.01 * plain.norm()
    _close(2 * (half - plain), once - plain)


@pytest.mark.parametrize("critic", [{"name": "head", "detach": True}, {"name": "network"}], ids=str)
def test_the_policy_does_not_notice_a_critic_that_does_not_share_it(
    folder: Path, critic: dict[str, Any]
) -> None:
    plain, _ = _gradients(_update(folder))
    policy, own = _gradients(_update(folder, critic))
    _close(policy, plain)
    assert own is not None and own.norm() > 0


def test_all_weights_of_a_network_learn(folder: Path) -> None:
    update = _update(folder, {"name": "network"})
    _gradients(update)
    assert update.critic is not None
    names = set(update.critic.parameters)
    assert {"head.weight", "head.bias", "backbone.model.embed_tokens.weight"} <= names
    assert not any("lm_head" in name for name in names)
    assert all(value.grad.any() for value in update.critic.parameters.values())


def test_rows_that_say_nothing_to_the_policy_teach_the_critic(folder: Path) -> None:
    update = _update(folder, {"name": "head"}, unscored=(4, 5))
    assert update.computed.tolist() == [True] * 4 + [False, False, True, True] + [True] * 4
    assert _update(folder).computed.sum() == 7
    _, gradient = _gradients(update)
    _, of_all = _gradients(_update(folder, {"name": "head"}))
    assert gradient is not None and of_all is not None and not torch.equal(gradient, of_all)


def test_the_loss_is_the_mean_over_all_tokens_with_returns(folder: Path) -> None:
    """By hand, from the values of the naive forward pass: ½ mean((V − R)²), for V has not moved."""
    update = _update(folder, {"name": "head", "value_clip": None}, unscored=(0, 7))
    critic, rows = update.critic, update.rows
    assert critic is not None and rows.returns is not None and rows.teaches is not None
    batch, order = _batch(rows)
    with torch.no_grad():
        hidden = completion_logprobs(update.model, batch, 1.0).hidden
        values = critic.function(batch, hidden, "float32").double().numpy()
    errors = [
        (values[place, : len(returns)] - returns) ** 2
        for place, row in enumerate(order)
        if rows.teaches[row]
        for returns in [rows.returns.rows(np.array([row])).values]
    ]
    _gradients(update)
    metrics = critic.finish_step()
    assert metrics["value_loss"] == pytest.approx(0.5 * np.concatenate(errors).mean(), rel=1e-5)
    assert metrics["value_clip_ratio"] == 0


@pytest.mark.parametrize("aggregation", ["token_mean", "row_mean", "group_mean"])
def test_denominators_count_what_teaches(folder: Path, aggregation: str) -> None:
    """All of the values are a quarter, and a group, a row of another and their tokens have no returns."""
    critic = {"name": "head", "value_clip": None, "aggregation": aggregation}
    update = _update(folder, critic, unscored=(0, 4, 5, 6, 7))
    rows = update.rows
    assert update.critic is not None and rows.returns is not None and rows.teaches is not None
    with torch.no_grad():
        update.critic.function.head.weight.zero_()
    errors = {
        row: (0.25 - rows.returns.rows(np.array([row])).values) ** 2
        for row in np.flatnonzero(rows.teaches)
    }
    groups = [[errors[row] for row in part] for part in ((1, 2, 3), (8, 9, 10, 11))]
    expected = {
        "token_mean": np.concatenate([*errors.values()]).mean(),
        "row_mean": np.mean([each.mean() for each in errors.values()]),
        "group_mean": np.mean([np.concatenate(each).mean() for each in groups]),
    }
    _gradients(update)
    value_loss = update.critic.finish_step()["value_loss"]
    assert value_loss == pytest.approx(0.5 * expected[aggregation], rel=1e-5)


def test_a_step_without_rewards_teaches_nothing(folder: Path) -> None:
    critic = {"name": "head", "aggregation": "group_mean"}
    update = _update(folder, critic, unscored=(0, 1, 2, 3), optimizer_steps=3)
    losses = [step.metrics["value_loss"] for step in update.run(lambda *_: None).steps]
    assert sorted(loss > 0 for loss in losses) == [False, True, True]


def test_it_learns_at_its_own_rate_and_with_its_own_limit(folder: Path) -> None:
    critic = {"name": "head", "learning_rate": 0.03, "max_grad_norm": 0.001}
    update = _update(folder, critic)
    assert update.critic is not None
    head = update.critic.function.head
    before = head.bias.item()
    (step,) = update.run(lambda *_: None).steps
    assert step.metrics["critic_grad_norm"] > 0.001
    gradients = [value.grad for value in update.critic.parameters.values()]
    norms = [each.norm() for each in gradients if each is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(0.001, rel=0.01)
    # Adam's first step is the learning rate, whatever the gradient.
    assert abs(head.bias.item() - before) == pytest.approx(0.03, rel=1e-3)


def test_broken_weights_of_a_critic_stop_the_update(folder: Path) -> None:
    update = _update(folder, {"name": "head", "detach": True})
    assert update.critic is not None
    for group in update.critic.optimizer.param_groups:
        group["lr"] = float("inf")
    with pytest.raises(TrainingError, match=r"weights head\.\w+ are not finite"):
        update.run(lambda *_: None)


@pytest.mark.parametrize(
    "aggregation", sorted({*get_args(Aggregation)} - {"micro_batch_token_mean"})
)
def test_steps_without_a_reward_teach_the_critic_nothing(folder: Path, aggregation: str) -> None:
    critic = {"name": "head", "detach": True, "aggregation": aggregation}
    options = {"skip_zero_gradient": False, "optimizer_steps": 3}
    update = _update(folder, critic, tuple(range(4, 12)), **options)
    records = update.run(lambda *_: None).steps
    silent = [each.metrics["critic_grad_norm"] for each in records]
    assert sorted(norm == 0 for norm in silent) == [False, True, True]
    assert sorted(each.metrics["value_loss"] == 0 for each in records) == [False, True, True]


def test_an_iteration_without_any_reward_is_one_of_no_returns(folder: Path) -> None:
    update = settings_of(old_logprobs="sampling", critic="head")
    tables = taught(tables_for("digest", ADVANTAGES), unscored=range(12))
    with pytest.raises(TrainingError, match="the advantages table no token_returns"):
        training_rows(tables, update, "digest")
    unscored = with_column(tables["advantages"], "group_mean", [None] * 12)
    rows = training_rows({**tables, "advantages": unscored}, update, "digest")
    assert rows.teaches is not None and not rows.teaches.any()
    assert not rows.value_mask.counts().any()


def test_a_value_loss_that_is_not_finite_stops_the_update(folder: Path) -> None:
    update = _update(folder, {"name": "head", "detach": True})
    assert update.critic is not None
    with torch.no_grad():
        update.critic.function.head.bias.fill_(float("inf"))
    with pytest.raises(TrainingError, match=r"step 1 of the critic, in i0001: value loss is inf"):
        update.run(lambda *_: None)


def test_the_critic_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    write_model(tmp_path / "wide", hidden_size=16)
    update = settings_of(critic="head")
    model = load_model(tmp_path / "wide", CPU, for_training=True)
    critic = _update(folder, {"name": "head"}).critic
    assert critic is not None and update.critic is not None
    with pytest.raises(TrainingError, match=r"another model: head\.weight is \(1, 32\), the pol"):
        open_critic(update.critic, critic.state(), tmp_path / "wide", model)
