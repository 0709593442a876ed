"""Critics along a chain of iterations: what the stages read, write and measure of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollbook.components.policies.loading import load_model
from rollbook.core.registry import menu
from rollbook.rl.context import Context, Outputs
from rollbook.rl.training.critic import CriticUpdate, open_critic
from rollbook.rl.training.critic_state import CriticState
from rollbook.rl.training.loop import PolicyUpdate
from rollbook.rl.training.optimizer import OptimizerState
from rollbook.rl.training.records import LoopSettings
from rollbook.rl.training.rows import training_rows
from rollbook.settings.recipe_sections import UpdatePolicy
from rollbook.stages.measure_logprobs import Settings as MeasureSettings
from rollbook.stages.measure_logprobs import measure_logprobs
from rollbook.stages.update_policy import update_policy
from rollbook.tables.artifacts import path_of, write_folder, write_table
from tests.unit.rl.training.small import (
    context,
    inputs_for,
    settings_of,
    tables_for,
    weights,
    write_policy,
)
from tests.unit.rl.training.taught import taught
from tests.unit.stages.updates import settings_for

CPU = torch.device("cpu")
ADVANTAGES = [[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.3, -1.0, -0.7]]
every_critic = pytest.mark.parametrize("name", menu("critics"))


def _settings(critic: Any, **options: Any) -> UpdatePolicy:
    return settings_of(**{"old_logprobs": "sampling", "critic": critic, **options})


def _update(
    tables: dict[str, pa.Table], update: UpdatePolicy, here: Context, previous: str = "i0000"
) -> Outputs:
    outputs = update_policy(settings_for(update), inputs_for(tables, previous), here)
    for kind, table in outputs.tables.items():
        write_table(table, kind, here.key)
    for kind, write in outputs.folders.items():
        write_folder(write, kind, here.key)
    return outputs


def _iterate(count: int, update: UpdatePolicy) -> list[Outputs]:
    """Iterations in a row, each from the folders of the one before."""
    made, previous = [], "i0000"
    for key in _keys(count):
        tables = taught(tables_for(_digest(previous), ADVANTAGES, iteration=key))
        made.append(_update(tables, update, context(key), previous))
        previous = key
    return made


def _keys(count: int) -> list[str]:
    return [f"i{number:04d}" for number in range(1, count + 1)]


def _digest(key: str) -> str:
    from rollbook.tables.artifacts import read_facts

    return read_facts(path_of("policies", key)).content_hash


def _state(key: str) -> dict[str, Any]:
    return dict(json.loads((path_of("values", key) / "state.json").read_text()))


def _measured(
    tables: dict[str, pa.Table], critic: Any, previous: str, **options: Any
) -> list[list[float]]:
    """Values of every rollout."""
    read = _settings(critic).critic
    settings = MeasureSettings(
        needs_old=True,
        needs_reference=False,
        critic=None if read is None else read.as_read(),
        precision="float32",
        micro_batch_tokens=options.get("micro_batch_tokens", 16384),
        share_prompts=options.get("share_prompts", True),
        temperature=1.0,
    )
    outputs = measure_logprobs(settings, inputs_for(tables, previous), context("i0009"))
    write_table(outputs.tables["logprobs"], "logprobs", "i0009")  # passes its schema
    column: list[list[float]] = outputs.tables["logprobs"]["values"].to_pylist()
    return column


@every_critic
def test_while_the_critic_warms_up_the_policy_stands_still(project: Path, name: str) -> None:
    write_policy()
    critic = {"name": name, "warmup_steps": 4}
    first, second = _iterate(2, _settings(critic, optimizer_steps=3, weight_decay=0.1))
    before, after, later = (weights(path_of("policies", key)) for key in ("i0000", *_keys(2)))
    assert all(np.array_equal(before[tensor], after[tensor]) for tensor in before)
    assert any(not np.array_equal(after[tensor], later[tensor]) for tensor in before)
    rates = [
        row["learning_rate"]
        for outputs in (first, second)
        for row in outputs.tables["optimizer_steps"].to_pylist()
    ]
    assert rates == [0.0] * 4 + [1e-2] * 2
    heads = [weights(path_of("values", key))["weights.safetensors/head.weight"] for key in _keys(2)]
    assert heads[0].any() and not np.array_equal(*heads)
    assert _state("i0002") == {"critic": name, "optimizer_step": 6}


@every_critic
def test_going_on_from_folders_is_exact(project: Path, name: str) -> None:
    """Two iterations with everything saved and loaded between them equal two in one process."""
    digest = write_policy().content_hash
    update = _settings({"name": name, "learning_rate": 0.02}, optimizer_steps=2, weight_decay=0.1)
    _iterate(2, update)
    folder = path_of("policies", "i0000")
    model = load_model(folder, CPU, for_training=True)
    assert update.critic is not None
    function = open_critic(update.critic, CriticState(), folder, model)
    state, critic_state = OptimizerState(), CriticState()
    for key in _keys(2):
        rows = training_rows(taught(tables_for(digest, ADVANTAGES, iteration=key)), update, digest)
        critic = CriticUpdate(function, update, critic_state, rows, 12, key)
        loop = LoopSettings(update, 1.0, 12, 0, key)
        record = PolicyUpdate(model, rows, loop, state, critic).run(lambda *_: None)
        state = OptimizerState(record.steps[-1].optimizer_step, record.moments)
        critic_state = critic.state()
    policy, values = (weights(path_of(kind, "i0002")) for kind in ("policies", "values"))
    for tensor, value in model.named_parameters():
        stored = policy[f"model.safetensors/{tensor}"]
        assert np.array_equal(value.detach().double().numpy(), stored)
    expected = {
        "weights": critic_state.weights,
        **critic_state.moments,
    }
    assert {name.partition(".")[0] for name in values} == expected.keys()
    for file, tensors in expected.items():
        for tensor, value in tensors.items():
            stored = values[f"{file}.safetensors/{tensor}"]
            assert np.array_equal(value.double().numpy(), stored), (file, tensor)


@every_critic
def test_the_same_inputs_give_the_same_bytes(project: Path, name: str) -> None:
    tables = taught(tables_for(write_policy().content_hash, ADVANTAGES))
    update = _settings({"name": name}, optimizer_steps=2)
    one = _update(tables, update, context())
    first = {kind: _bytes(kind) for kind in one.folders}
    assert _update(tables, update, context()).tables == one.tables
    assert {kind: _bytes(kind) for kind in one.folders} == first


def _bytes(kind: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path_of(kind, "i0001").iterdir()}


@every_critic
def test_what_is_measured_is_what_the_stored_critic_says(project: Path, name: str) -> None:
    write_policy()
    critic = {"name": name, "learning_rate": 0.05}
    _iterate(1, _settings(critic))
    tables = tables_for(_digest("i0001"), ADVANTAGES, iteration="i0002")
    found = _measured(tables, critic, "i0001")
    stored = weights(path_of("values", "i0001"))
    model = load_model(path_of("policies", "i0001"), CPU)
    if name == "network":
        own = {
            tensor.removeprefix("weights.safetensors/backbone."): torch.from_numpy(value).float()
            for tensor, value in stored.items()
            if tensor.startswith("weights.safetensors/backbone.")
        }
        model.load_state_dict(own, strict=False)
    w = torch.from_numpy(stored["weights.safetensors/head.weight"]).float()[0]
    b = float(stored["weights.safetensors/head.bias"][0])
    prompts = {row["prompt_id"]: row["prompt_token_ids"] for row in tables["prompts"].to_pylist()}
    for row, values in zip(tables["rollouts"].to_pylist(), found, strict=True):
        prompt, completion = prompts[row["prompt_id"]], row["completion_token_ids"]
        with torch.no_grad():
            states = model.model(torch.tensor([prompt + completion])).last_hidden_state[0]
        said = (states @ w + b)[len(prompt) - 1 : -1]
        assert values == pytest.approx(said.tolist(), abs=1e-5)
    for memory in ({"micro_batch_tokens": 9}, {"share_prompts": False}):
        again = _measured(tables, critic, "i0001", **memory)
        for values, others in zip(found, again, strict=True):
            assert values == pytest.approx(others, abs=1e-5)


def test_without_a_critic_that_has_learned_something_all_values_are_zero(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    lengths = [len(ids) for ids in tables["rollouts"]["completion_token_ids"].to_pylist()]
    fresh = _measured(tables, "head", "i0000")
    assert fresh == [[0.0] * length for length in lengths]
    assert _measured(tables, None, "i0000") == [None] * len(lengths)
    _update(taught(tables), _settings("head"), context())
    tables = tables_for(_digest("i0001"), ADVANTAGES)
    assert _measured(tables, "network", "i0001") == fresh  # the stored one is a head
    assert _measured(tables, "head", "i0001") != fresh


def test_a_critic_that_is_not_carried_on_is_said_once(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy()
    tables = taught(tables_for(_digest("i0000"), ADVANTAGES))
    _update(tables, _settings("head"), context())
    assert "critic" not in capsys.readouterr().err
    for key, critic, said, state in (
        ("i0002", None, "the recipe has none", {"critic": None, "optimizer_step": 0}),
        ("i0003", "network", "a network begins", {"critic": "network", "optimizer_step": 1}),
    ):
        tables = taught(tables_for(_digest("i0001"), ADVANTAGES, iteration=key))
        _update(tables, _settings(critic), context(key), "i0001")
        assert capsys.readouterr().err.count(f"is not carried on: {said}") == 1
        assert _state(key) == state
    assert sorted(file.name for file in path_of("values", "i0002").iterdir()) == [
        "rollbook.json",
        "state.json",
    ]


@every_critic
def test_the_critic_of_a_policy_in_bf16_is_float32(project: Path, name: str) -> None:
    write_policy(dtype="bfloat16")
    _iterate(2, _settings({"name": name, "learning_rate": 1e-6}, learning_rate=1e-6))
    from safetensors.torch import load_file

    stored = load_file(path_of("values", "i0002") / "weights.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float32}
    # Two steps of Adam of 1e-6: bf16 would have lost them.
    assert stored["head.weight"].abs().max().item() == pytest.approx(2e-6, rel=0.2)


@every_critic
def test_a_critic_beside_an_adapter(project: Path, name: str) -> None:
    write_policy()
    before = weights(path_of("policies", "i0000"))
    lora = {"rank": 2, "alpha": 4}
    made = _iterate(2, _settings({"name": name}, lora=lora, optimizer_steps=2))
    assert all(outputs.metrics["critic_grad_norm"] > 0 for outputs in made)
    assert _state("i0002") == {"critic": name, "optimizer_step": 4}
    names = {tensor.partition("/")[2] for tensor in weights(path_of("values", "i0002"))}
    assert not any("lora" in each for each in names)
    own = {each for each in names if each.startswith("backbone.")}
    expected = {f"backbone.{tensor.partition('/')[2]}" for tensor in before}
    assert own == (expected if name == "network" else set())
    found = _measured(tables_for(_digest("i0002"), ADVANTAGES), {"name": name}, "i0002")
    assert any(value != 0 for row in found for value in row)


def test_what_an_update_says_of_its_critic(project: Path) -> None:
    write_policy()
    kept = [row != 7 for row in range(12)]
    tables = tables_for(_digest("i0000"), ADVANTAGES, kept=kept)
    lengths = [len(ids) for ids in tables["rollouts"]["completion_token_ids"].to_pylist()]
    values = [[0.1 * row] * length for row, length in enumerate(lengths)]
    given = taught(tables, values=values, unscored=(0, 5))
    outputs = _update(given, _settings("head", optimizer_steps=2), context())
    returns = given["advantages"]["token_returns"].to_pylist()
    rows = [row for row, each in enumerate(returns) if each is not None and kept[row]]
    r, v = (np.concatenate([each[row] for row in rows]) for each in (returns, values))
    assert len(rows) == 9
    metrics = outputs.metrics
    assert metrics["explained_variance"] == pytest.approx(1 - (r - v).var() / r.var(), rel=1e-5)
    assert metrics["returns/mean"] == pytest.approx(r.mean(), rel=1e-5)
    assert metrics["values/mean"] == pytest.approx(v.mean(), rel=1e-5)
    steps = outputs.tables["optimizer_steps"].to_pylist()
    assert all(row["value_loss"] > 0 and row["critic_grad_norm"] > 0 for row in steps)
    assert metrics["value_loss"] == pytest.approx(np.mean([row["value_loss"] for row in steps]))
    assert 0 < metrics["value_clip_ratio"] <= 1  # old values are not what the critic says
    plain = _update(tables, _settings(None), context("i0002"))
    assert plain.tables["optimizer_steps"]["value_loss"].null_count == 1
    assert not {"value_loss", "explained_variance"} & set(plain.metrics)


def test_returns_are_needed(project: Path) -> None:
    from rollbook.core.errors import ArtifactError, TrainingError

    write_policy()
    tables = tables_for(_digest("i0000"), ADVANTAGES)
    without = {**taught(tables), "advantages": tables["advantages"]}
    with pytest.raises(TrainingError, match="has a critic, and the advantages table no token_ret"):
        _update(without, _settings("head"), context())
    with pytest.raises(ArtifactError, match=r"logprobs \(0 rows\)"):
        _update({**taught(tables), "logprobs": tables["logprobs"]}, _settings("head"), context())
