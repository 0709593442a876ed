import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rollbook.core.errors import ArtifactError, TrainingError
from rollbook.rl.training.controllers import read_state
from rollbook.rl.training.optimizer import (
    OptimizerState,
    empty_optimizer_state,
    learning_rate_at,
    make_optimizer,
    moments_of,
    optimizer_state_writer,
    read_optimizer_state,
)
from tests.unit.rl.training.small import settings_of


def _parameters(seed: int = 0) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(seed)
    return {
        "matrix": torch.nn.Parameter(torch.randn(3, 2)),
        "norm": torch.nn.Parameter(torch.randn(3)),
    }


def _steps(parameters: Any, settings: Any, state: OptimizerState, count: int) -> OptimizerState:
    optimizer = make_optimizer(parameters, settings, state)
    for place in range(count):
        generator = torch.Generator().manual_seed(state.optimizer_step + place)
        for value in parameters.values():
            value.grad = torch.randn(value.shape, generator=generator)
        optimizer.step()
    return OptimizerState(state.optimizer_step + count, moments_of(optimizer, parameters))


def test_a_fresh_chain_needs_no_torch_and_has_taken_no_step(tmp_path: Path) -> None:
    empty_optimizer_state()(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
    content = json.loads((tmp_path / "state.json").read_text())
    assert content == {"optimizer_step": 0, "controllers": {}}
    assert read_optimizer_state(tmp_path) == OptimizerState(0, {}, {})


def test_controllers_can_be_read_alone(tmp_path: Path) -> None:
    state = OptimizerState(3, controllers={"kl_coef": 0.1 + 0.2})
    optimizer_state_writer(state)(tmp_path)
    assert read_state(tmp_path) == (3, {"kl_coef": 0.1 + 0.2})
    assert read_optimizer_state(tmp_path) == state
    for broken in ('{"optimizer_step": 3}', '{"controllers": [], "optimizer_step": 3}', "{"):
        (tmp_path / "state.json").write_text(broken)
        with pytest.raises(ArtifactError, match="is not an optimizer state"):
            read_state(tmp_path)


def test_resuming_from_disk_is_exact(tmp_path: Path) -> None:
    settings = settings_of(weight_decay=0.1)
    whole, halves = _parameters(), _parameters()
    _steps(whole, settings, OptimizerState(), 6)
    state = _steps(halves, settings, OptimizerState(), 3)
    optimizer_state_writer(state)(tmp_path)
    _steps(halves, settings, read_optimizer_state(tmp_path), 3)
    for name, value in whole.items():
        assert torch.equal(value, halves[name])


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        state = _steps(_parameters(), settings_of(), OptimizerState(), 2)
        optimizer_state_writer(state)(tmp_path / folder)
    for name in ("state.json", "exp_avg.safetensors", "exp_avg_sq.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_weight_decay_leaves_out_biases_and_norms() -> None:
    # With zero gradients AdamW only decays: w (1 - lr * wd) = w (1 - 0.01 * 0.5)
    parameters = _parameters()
    before = {name: value.detach().clone() for name, value in parameters.items()}
    optimizer = make_optimizer(parameters, settings_of(weight_decay=0.5), OptimizerState())
    for value in parameters.values():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    torch.testing.assert_close(parameters["matrix"].detach(), before["matrix"] * 0.995)
    assert torch.equal(parameters["norm"], before["norm"])


def test_first_step_is_the_learning_rate_in_the_direction_of_the_gradient() -> None:
    # Adam's first step: m / (sqrt(v) + eps) = sign(g), so every weight moves by lr
    parameters = _parameters()
    before = parameters["matrix"].detach().clone()
    optimizer = make_optimizer(parameters, settings_of(), OptimizerState())
    for value in parameters.values():
        value.grad = torch.full_like(value, -0.3)
    optimizer.step()
    torch.testing.assert_close(parameters["matrix"].detach(), before + 0.01)


def test_warm_up_is_linear_and_counted_along_the_chain() -> None:
    settings = settings_of(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate_at(settings, step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert learning_rate_at(settings_of(learning_rate=1.0), 1) == 1.0


def test_state_of_another_model_is_refused() -> None:
    state = _steps(_parameters(), settings_of(), OptimizerState(), 1)
    parameters = _parameters()
    parameters["matrix"] = torch.nn.Parameter(torch.zeros(4, 2))
    with pytest.raises(TrainingError, match=r"exp_avg/matrix is \(3, 2\), the policy has \(4, 2\)"):
        make_optimizer(parameters, settings_of(), state)
    del parameters["matrix"]
    with pytest.raises(TrainingError, match=r"exp_avg/matrix is \(3, 2\), the policy has none"):
        make_optimizer(parameters, settings_of(), state)


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_folder_that_is_no_state_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "state.json").write_text(content)
    with pytest.raises(ArtifactError, match="is not an optimizer state"):
        read_optimizer_state(tmp_path)


def test_damaged_moments_are_refused(tmp_path: Path) -> None:
    empty_optimizer_state()(tmp_path)
    (tmp_path / "exp_avg.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(ArtifactError, match="is not an optimizer state"):
        read_optimizer_state(tmp_path)


def test_a_resumed_optimizer_counts_on_the_device_of_its_weights() -> None:
    """Fused AdamW on CUDA reads the counter there. What nobody places lands, in this test, on `meta`."""
    parameters = _parameters()
    state = _steps(parameters, settings_of(), OptimizerState(), 2)
    with torch.device("meta"):
        resumed = make_optimizer(parameters, settings_of(), state)
    for parameter in parameters.values():
        counter = resumed.state[parameter]["step"]
        assert (counter.device, float(counter)) == (parameter.device, 2.0)
