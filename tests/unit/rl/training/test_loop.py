from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rollbook.components.losses.base import Loss
from rollbook.components.policies.loading import load_model, prepare_torch
from rollbook.core.ragged import Ragged
from rollbook.core.registry import build, menu
from rollbook.rl.tokens import token_batch
from rollbook.rl.training.checkpoint import checkpoint_layers
from rollbook.rl.training.logprobs import completion_logprobs
from rollbook.rl.training.loop import PolicyUpdate
from rollbook.rl.training.optimizer import OptimizerState, clip_gradient
from rollbook.rl.training.records import LoopSettings
from rollbook.rl.training.rows import TrainingRows, training_rows
from rollbook.rl.training.window import Window, window_of
from tests.unit.rl.training.small import RUNTIME, settings_of, tables_for, write_model

ADVANTAGES = [[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.3, -1.0, -0.7]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_torch(RUNTIME)
    (tmp_path / "policy").mkdir()
    write_model(tmp_path / "policy")
    return tmp_path / "policy"


def _rows(update: Any, **columns: Any) -> TrainingRows:
    return training_rows(tables_for("digest", ADVANTAGES, **columns), update, "digest")


def _numbers(rows: TrainingRows, seed: int, low: float, high: float) -> Ragged:
    """One number per completion token."""
    lengths = rows.completions.lengths
    values = np.random.default_rng(seed).uniform(low, high, lengths.sum())
    return Ragged(values.astype(np.float32), lengths)


def _update(folder: Path, rows: TrainingRows | None = None, **options: Any) -> PolicyUpdate:
    update = settings_of(old_logprobs="sampling", **options)
    model = load_model(folder, torch.device("cpu"), for_training=True)
    settings = LoopSettings(update, 0.9, 12, 0, "i0001")
    return PolicyUpdate(model, rows or _rows(update), settings, OptimizerState())


def _window(update: PolicyUpdate, index: NDArray[np.int64]) -> Window:
    recipe = update.settings.update
    return window_of(update.rows, index, recipe.loss, recipe.top_entropy)


def _gradient(update: PolicyUpdate, index: list[int] | None = None) -> torch.Tensor:
    rows = update.rows
    chosen = np.flatnonzero(update.computed) if index is None else np.array(index)
    update._accumulate(
        chosen, _window(update, np.arange(len(rows))), update.controllers.loss(), lambda *_: None
    )
    return torch.cat([value.grad.flatten() for value in update.parameters.values()])


def _log_softmax(update: PolicyUpdate) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Row by row, after the gradients are cleared: log-softmax at each completion token, and the tokens."""
    update.model.zero_grad()
    found = []
    for row in range(len(update.rows)):
        prompt, completion = (
            lists.rows(np.array([row])).values.tolist()
            for lists in (update.rows.prompts, update.rows.completions)
        )
        logits = update.model(torch.tensor([prompt + completion])).logits[0] / 0.9
        table = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        found.append((table, torch.tensor(completion)))
    return found


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got - want).norm() / want.norm() < 1e-5


INDEPENDENT = [
    name
    for name in menu("losses")
    if name != "cispo"
    and not (loss := cast(Loss, build("losses", name))).depends_on_split
    and not loss.needs_pairs
]


@pytest.mark.parametrize(
    "options",
    [
        *({"loss": name} for name in INDEPENDENT),
        {"loss": {"name": "cispo", "cap": 5.0}},
        {"loss": {"name": "dapo", "entropy_coef": 0.3}},
        {"loss": {"name": "grpo", "entropy_coef": 0.3}, "top_entropy": 0.4},
        {"loss": {"name": "grpo", "count_empty_rows": False}},
        {"loss": {"name": "grpo", "aggregation": "group_mean"}},
    ],
    ids=str,
)
def test_the_gradient_does_not_depend_on_micro_batches(
    folder: Path, options: dict[str, Any]
) -> None:
    rows = _rows(settings_of(old_logprobs="sampling"))
    mask = Ragged(rows.loss_mask.values.copy(), rows.loss_mask.lengths)
    mask.values[mask.row_of == 2] = False  # a row without tokens
    rows = replace(
        rows,
        loss_mask=mask,
        rollout_weights=_numbers(rows, 1, 0.5, 1.5),
        old_entropies=_numbers(rows, 2, 0.0, 1.0) if "top_entropy" in options else None,
    )
    whole = _gradient(_update(folder, rows, **options))
    for budget in (1, 20, 37):  # row by row, and packed by two budgets
        _close(_gradient(_update(folder, rows, micro_batch_tokens=budget, **options)), whole)


def test_only_tokens_of_high_entropy_in_the_whole_step_carry_the_policy_term(folder: Path) -> None:
    rows = _rows(settings_of(old_logprobs="sampling"))
    rows = replace(rows, old_entropies=_numbers(rows, 2, 0.0, 1.0))
    update = _update(folder, rows, top_entropy=0.25)
    index = np.arange(8)  # two groups of three
    window = _window(update, index)
    assert rows.old_entropies is not None
    assert window.policy_mask is not None
    inside = rows.loss_mask.places(index)
    entropies, chosen = rows.old_entropies.values, window.policy_mask.values
    assert chosen.sum() == window.policy_tokens == round(0.25 * len(inside))
    assert (
        entropies[chosen].min() > np.delete(entropies[inside], np.flatnonzero(chosen[inside])).max()
    )
    assert not np.delete(chosen, inside).any()
    assert (window.rows, window.tokens) == (8, len(inside))


def test_rows_without_tokens_are_left_out_of_the_rows_of_a_step_if_the_loss_says_so(
    folder: Path,
) -> None:
    rows = _rows(settings_of(old_logprobs="sampling"))
    mask = Ragged(rows.loss_mask.values & (rows.loss_mask.row_of != 2), rows.loss_mask.lengths)
    for count, want in ((True, 12), (False, 11)):
        loss = {"name": "grpo", "count_empty_rows": count}
        update = _update(folder, replace(rows, loss_mask=mask), loss=loss)
        assert _window(update, np.arange(12)).rows == want


def test_an_entropy_bonus_pushes_entropy_up_by_its_own_gradient(folder: Path) -> None:
    rows = _rows(settings_of(old_logprobs="sampling"))
    rows = replace(rows, advantages=np.zeros(12))
    update = _update(folder, rows, loss={"name": "dapo", "entropy_coef": 0.5})
    found = _gradient(update)
    tables = _log_softmax(update)
    entropy = -sum((table.exp() * table).sum() for table, _ in tables)
    (-0.5 * entropy / rows.trained_tokens.sum()).backward()
    _close(found, torch.cat([value.grad.flatten() for value in update.parameters.values()]))


def test_rollout_weights_multiply_the_policy_term(folder: Path) -> None:
    rows = _rows(settings_of(old_logprobs="sampling"))
    twice = Ragged(np.full(len(rows.completions.values), 2.0), rows.completions.lengths)
    weighed = _gradient(_update(folder, replace(rows, rollout_weights=twice)))
    _close(weighed, 2 * _gradient(_update(folder, rows)))


def test_rows_without_signal_change_nothing_but_the_time(folder: Path) -> None:
    skipping, computing = _update(folder), _update(folder, skip_zero_gradient=False)
    assert skipping.computed.sum() == 7
    assert computing.computed.sum() == 12
    _close(_gradient(skipping), _gradient(computing))


def test_the_gradient_is_that_of_the_formula(folder: Path) -> None:
    """On its own: -A times the gradient of each token's log-prob, ratio included, over all tokens of the step."""
    update = _update(folder, loss={"name": "dapo", "clip_low": 1.0, "clip_high": 1e9})
    found = _gradient(update)
    rows, total = update.rows, torch.zeros(())
    for (table, ids), advantage in zip(_log_softmax(update), rows.advantages, strict=True):
        logprobs = table.gather(-1, ids[:, None])[:, 0]
        total = total - advantage * (logprobs + 0.5).exp().sum()  # old is -0.5
    (total / rows.trained_tokens.sum()).backward()
    want = torch.cat([value.grad.flatten() for value in update.parameters.values()])
    _close(found, want)


def test_an_update_makes_good_completions_likelier_and_bad_ones_less(folder: Path) -> None:
    rows = _rows(settings_of(old_logprobs="measured"))  # one step: on-policy
    update = _update(folder, rows, learning_rate=1e-3)
    before = update.run(lambda *_: None).policy_logprobs
    again = _update(folder, rows)
    again.model.load_state_dict(update.model.state_dict())
    after = again.run(lambda *_: None).policy_logprobs
    change = (after.padded(0) - before.padded(0)).sum(-1)
    advantages = np.concatenate(ADVANTAGES)
    assert (np.sign(change) == np.sign(advantages))[np.abs(advantages) >= 1].all()


def test_a_parameter_without_gradient_is_stepped_like_one_with_a_gradient_of_zero(
    folder: Path,
) -> None:
    update = _update(folder)
    update.optimizer.zero_grad()
    assert clip_gradient(update.parameters.values(), 1.0) == 0.0
    assert all(value.grad is not None for value in update.parameters.values())


def test_gradients_are_clipped_and_the_norm_before_that_is_kept(folder: Path) -> None:
    free = _update(folder)
    norm = _gradient(free).norm().item()
    assert clip_gradient(free.parameters.values(), None) == pytest.approx(norm, rel=1e-5)
    held = _update(folder)
    _gradient(held)
    assert clip_gradient(held.parameters.values(), norm / 10) == pytest.approx(norm, rel=1e-5)
    clipped = torch.cat([value.grad.flatten() for value in held.parameters.values()])
    assert clipped.norm().item() == pytest.approx(norm / 10, rel=1e-4)


def test_checkpointed_layers_are_run_twice_and_give_the_same_gradient(folder: Path) -> None:
    update = _update(folder)
    want = _gradient(update)
    other = _update(folder)
    checkpoint_layers(other.model)
    runs: list[int] = []
    layer = other.model.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: runs.append(1))
    _close(_gradient(other), want)
    assert len(runs) == 2
    assert not layer.training


def test_dropout_is_off(tmp_path: Path) -> None:
    write_model(tmp_path, attention_dropout=0.5)
    update = _update(tmp_path)
    checkpoint_layers(update.model)
    _close(_gradient(_update(tmp_path)), _gradient(update))


def test_token_advantages_take_the_place_of_row_advantages(folder: Path) -> None:
    update = settings_of(old_logprobs="sampling")
    lengths = _rows(update).completions.lengths
    lists = [[value] * int(n) for value, n in zip(np.concatenate(ADVANTAGES), lengths, strict=True)]
    same = _rows(update, token_advantages=lists, advantage=[9.0] * 12)
    assert same.has_signal.tolist() == _rows(update).has_signal.tolist()
    _close(_gradient(_update(folder, same)), _gradient(_update(folder)))


def test_policy_logprobs_are_those_before_the_step(folder: Path) -> None:
    update = _update(folder)
    record = update.run(lambda *_: None)
    fresh = _update(folder)
    rows = fresh.rows
    for row in np.flatnonzero(record.computed):
        index = np.array([row])
        batch = token_batch(
            rows.prompts.rows(index), rows.completions.rows(index), torch.device("cpu")
        )
        want = completion_logprobs(fresh.model, batch, 0.9).logprobs[0].detach().numpy()
        assert record.policy_logprobs.rows(index).values == pytest.approx(want, abs=1e-5)
