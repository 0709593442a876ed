"""Iterations that train an adapter, through the stages' own functions, beside some that train all weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollbook.components.engines.base import GenerationRequest
from rollbook.components.policies.loading import load_model
from rollbook.core.errors import PolicyError, TrainingError
from rollbook.core.ids import BASE_KEY
from rollbook.rl.context import Outputs
from rollbook.rl.training.checkpoint import load_for_training
from rollbook.rl.training.measure import measure
from rollbook.rl.training.rows import rows_of
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from rollbook.stages.update_policy import update_policy
from rollbook.tables.artifacts import path_of, read_facts, read_table, write_folder
from tests.in_process import chain_of, make_base, train
from tests.unit.rl.training.small import (
    context,
    inputs_for,
    settings_of,
    tables_for,
    weights,
    write_policy,
)
from tests.unit.settings.test_params import shipped
from tests.unit.stages.updates import settings_for

LORA = {"rank": 4, "alpha": 8}
UPDATE = {
    "optimizer_steps": 2,
    "learning_rate": 5e-3,
    "old_logprobs": "measured",
    "loss": {"name": "dapo", "kl_coef": 0.05},
}
ADVANTAGES = [[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.3, -1.0, -0.7]]
CPU = torch.device("cpu")


def branch(recipe: str, count: int) -> list[str]:
    return [f"{recipe}{number:04}" for number in range(1, count + 1)]


def settings(iterations: int) -> Params:
    raw = shipped(
        data__train=[{"name": "arithmetic", "below": 6}],
        data__evaluation={},
        policy__base={"name": "tiny", "warm_start_steps": 30, "warm_start_batch": 64},
        recipes__grpo__prepare_prompts={"prompts_per_iteration": 4},
        recipes__grpo__generate_rollouts__group_size=4,
        recipes__grpo__score_rollouts__rewards=[
            {"name": "format", "pattern": "regex", "regex": ".*[02468]"}
        ],
        recipes__grpo__update_policy=UPDATE,
    )
    raw["iterations"] = {}
    raw["recipes"]["lora"] = {"extends": "grpo", "update_policy": {"lora": LORA}}
    for recipe in ("grpo", "lora"):
        raw["iterations"] |= chain_of(recipe, branch(recipe, iterations))
    return parse_params(raw)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one iteration of each recipe."""
    return _project(tmp_path_factory.mktemp("short"), 1)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with five."""
    return _project(tmp_path_factory.mktemp("long"), 5)


def _project(folder: Path, iterations: int) -> Path:
    params = settings(iterations)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_base(params)
        for recipe in ("grpo", "lora"):
            train(branch(recipe, iterations), params)
    return folder


@pytest.mark.parametrize("recipe", ["grpo", "lora"])
def test_one_iteration_and_five_have_their_prefix_in_common(
    short: Path, long: Path, recipe: str
) -> None:
    [key] = branch(recipe, 1)
    files = [path.relative_to(short) for path in short.glob(f"artifacts/*/{key}*")]
    files += [path.relative_to(short) for path in short.glob(f"artifacts/*/{key}/*")]
    compared = [file for file in files if (short / file).is_file()]
    assert len(compared) > 10
    for file in compared:
        assert (short / file).read_bytes() == (long / file).read_bytes(), file


@pytest.mark.parametrize("recipe", ["grpo", "lora"])
def test_every_iteration_changes_the_policy(long: Path, recipe: str) -> None:
    digests = {
        read_facts(long / path_of("policies", key)).content_hash
        for key in (BASE_KEY, *branch(recipe, 5))
    }
    assert len(digests) == 6


def test_an_adapter_and_its_optimizer_state_are_small(long: Path) -> None:
    full, adapter = (
        long / path_of("policies", key) for key in (branch("grpo", 5)[-1], branch("lora", 5)[-1])
    )
    sizes = [
        sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        for folder in (full, adapter)
    ]
    assert sizes[1] < sizes[0] / 4
    moments = weights(long / path_of("optimizers", branch("lora", 5)[-1]))
    assert moments
    assert all(".lora_A." in name or ".lora_B." in name for name in moments)
    assert all(np.isfinite(value).all() for value in moments.values())


def test_what_a_step_has_read_is_written_down(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is an input where the policy is an adapter, and only there."""
    monkeypatch.chdir(long)
    base = read_facts(path_of("policies", BASE_KEY)).content_hash
    first, second = branch("lora", 2)
    for kind in ("rollouts", "logprobs", "policies"):
        assert "base" not in read_facts(path_of(kind, first)).inputs
        assert read_facts(path_of(kind, second)).inputs["base"] == base
        for key in branch("grpo", 2):
            assert "base" not in read_facts(path_of(kind, key)).inputs
    digest = read_facts(path_of("policies", first)).content_hash
    assert set(stored("rollouts", second)["policy_digest"].to_pylist()) == {digest}


def test_the_reference_is_the_base_with_the_adapter_off(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(long)
    key, previous = branch("lora", 3)[2], branch("lora", 3)[1]
    rollouts, logprobs = stored("rollouts", key), stored("logprobs", key)
    rows = rows_of(
        stored("prompts", key), rollouts, read_facts(path_of("policies", previous)).content_hash
    )
    update = settings(5).recipes["lora"].update_policy
    base = measure(
        load_model(path_of("policies", BASE_KEY), CPU),
        rows,
        1.0,
        update.precision,
        update.micro_batch_tokens,
        update.share_prompts,
        lambda *_: None,
    )
    measured = np.concatenate(logprobs["ref_logprobs"].to_pylist()).astype(np.float32)
    assert np.array_equal(measured, base.logprobs.values)
    old = np.concatenate(logprobs["old_logprobs"].to_pylist())
    assert np.abs(old - measured).max() > 1e-3


def test_the_engine_and_the_trainer_see_one_policy(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged for generation, not merged for training: log-probs differ by rounding only."""
    monkeypatch.chdir(long)
    for key in branch("lora", 5)[1:]:
        sampling, old = (
            np.concatenate(stored(kind, key)[column].to_pylist())
            for kind, column in (("rollouts", "sampling_logprobs"), ("logprobs", "old_logprobs"))
        )
        assert np.abs(sampling - old).max() < 2e-5
        first = stored("optimizer_steps", key).to_pylist()[0]
        assert abs(first["ratio_max"] - 1) < 2e-5
        assert abs(first["ratio_min"] - 1) < 2e-5


def test_prompts_are_rendered_as_for_the_base(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(long)
    from rollbook.components.engines.base import Sampling
    from rollbook.components.engines.transformers import Transformers
    from rollbook.components.prompt_format import PromptFormat
    from rollbook.components.prompting import PromptRenderer
    from rollbook.core.runtime import Runtime

    adapter = path_of("policies", branch("lora", 5)[-1])
    whole, adapted = (
        PromptRenderer(folder, PromptFormat())
        for folder in (path_of("policies", BASE_KEY), adapter)
    )
    for name in ("context_length", "stop_token_ids", "pad_token_id"):
        assert getattr(whole, name) == getattr(adapted, name)
    request = GenerationRequest(list(range(60, 60 + whole.context_length)), 0)
    with pytest.raises(PolicyError, match="can read"):
        Transformers(name="transformers").generate(
            adapter, [request], Sampling(), Runtime(device="cpu"), lambda *_: None
        )


def stored(kind: str, key: str) -> pa.Table:
    return read_table(path_of(kind, key), kind)[0]


# --- one update of a small model --------------------------------------------------------------------


def _run(digest: str, **options: Any) -> Outputs:
    update = settings_of(**{"old_logprobs": "sampling", "lora": LORA, **options})
    return update_policy(
        settings_for(update), inputs_for(tables_for(digest, ADVANTAGES)), context()
    )


def _write(outputs: Outputs, key: str) -> str:
    for kind in ("optimizers", "values"):
        write_folder(outputs.folders[kind], kind, key)
    return write_folder(outputs.folders["policies"], "policies", key).content_hash


def test_the_first_step_moves_b_alone(project: Path) -> None:
    """B is zero, so the gradient of A is; Adam's first step moves every weight of B by the learning rate."""
    _write(_run(write_policy().content_hash), "i0001")
    stored_weights = weights(path_of("policies", "i0001"))
    b = np.concatenate(
        [value.ravel() for name, value in stored_weights.items() if ".lora_B." in name]
    )
    assert np.abs(b).max() == pytest.approx(0.01, rel=1e-3)
    fresh = load_for_training(
        path_of("policies", BASE_KEY), {}, settings_of(lora=LORA), CPU
    ).named_parameters()
    for name, value in fresh:
        if ".lora_A." in name:
            file = f"adapter_model.safetensors/base_model.model.{name.replace('.default', '')}"
            assert np.array_equal(value.detach().double().numpy(), stored_weights[file])


def test_the_same_inputs_give_the_same_bytes(project: Path) -> None:
    digest = write_policy().content_hash
    assert _write(_run(digest), "i0001") == _write(_run(digest), "i0009")


def test_gradient_checkpointing_changes_nothing(project: Path) -> None:
    digest = write_policy().content_hash
    plain, saving = _run(digest), _run(digest, gradient_checkpointing=True)
    assert _write(plain, "i0001") == _write(saving, "i0009")
    assert plain.metrics == saving.metrics


def test_a_base_in_bf16_needs_no_masters(project: Path) -> None:
    """Steps far below what bf16 resolves add up in the adapter, which is float32."""
    digest = write_policy(dtype="bfloat16").content_hash
    _write(_run(digest, learning_rate=1e-6), "i0001")
    assert not (path_of("optimizers", "i0001") / "masters.safetensors").exists()
    moved = weights(path_of("policies", "i0001"))
    b = np.concatenate([value.ravel() for name, value in moved.items() if ".lora_B." in name])
    assert np.abs(b).max() == pytest.approx(1e-6, rel=0.1)


def test_an_adapter_is_not_trained_whole(project: Path) -> None:
    _write(_run(write_policy().content_hash), "i0001")
    adapter = path_of("policies", "i0001")
    with pytest.raises(TrainingError, match=r"is an adapter, and update_policy\.lora is not set"):
        load_for_training(adapter, {}, settings_of(), CPU)
    with pytest.raises(PolicyError, match="rank 4 and alpha 8"):
        load_for_training(adapter, {}, settings_of(lora={"rank": 2}), CPU)


def test_the_adapter_is_as_said(project: Path) -> None:
    _write(_run(write_policy().content_hash), "i0001")
    config = json.loads((path_of("policies", "i0001") / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8.0)
    assert config["target_modules"] == [
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    ]
