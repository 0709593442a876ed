import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollbook.components.policies.loading import (
    check_policy_folder,
    load_model,
    prepare_torch,
    stored_dtype,
)
from rollbook.core.errors import PolicyError
from rollbook.core.runtime import Runtime
from tests.unit.rl.training.small import write_model

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path)
    return tmp_path


def test_models_come_in_evaluation_mode_with_gradients_only_for_training(folder: Path) -> None:
    frozen, trained = load_model(folder, CPU), load_model(folder, CPU, for_training=True)
    assert not frozen.training
    assert not trained.training
    assert not any(value.requires_grad for value in frozen.parameters())
    assert all(value.requires_grad for value in trained.parameters())
    assert trained.lm_head.weight is trained.model.embed_tokens.weight


def test_type_of_weights(tmp_path: Path) -> None:
    write_model(tmp_path, dtype="bfloat16")
    assert stored_dtype(tmp_path) == "bfloat16"
    assert load_model(tmp_path, CPU).dtype == torch.float32
    assert load_model(tmp_path, CPU, "stored").dtype == torch.bfloat16
    assert load_model(tmp_path, CPU, "bfloat16").dtype == torch.bfloat16


def test_a_folder_that_is_no_policy_is_refused_by_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"config\.json and weights \(\*\.safetensors\) missing"):
        load_model(tmp_path, CPU)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"is not a policy: weights \(\*\.safetensors\) missing"):
        check_policy_folder(tmp_path)
    with pytest.raises(PolicyError, match="is not a folder"):
        check_policy_folder(tmp_path / "nothing")


def test_missing_weights_are_refused_and_not_made_up(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=r"missing weights: model\.norm\.weight \(1 in all\)"):
        load_model(folder, CPU)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(PolicyError, match=r"mismatched weights: model\.layers\.0\.mlp"):
        load_model(folder, CPU)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(PolicyError, match="cannot be loaded as a causal language model"):
        load_model(folder, CPU)
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(PolicyError, match="not a safetensors file, or damaged"):
        stored_dtype(folder)


def test_an_unknown_architecture_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(PolicyError, match="no_such_model"):
        load_model(folder, CPU)


def test_torch_is_deterministic_with_the_threads_of_the_runtime() -> None:
    assert prepare_torch(Runtime(device="cpu", threads=1)) == CPU
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("abacus", "cuda:99"):
        with pytest.raises(PolicyError, match=f"runtime.device: {device!r} cannot be used"):
            prepare_torch(Runtime(device=device, threads=1))


def test_start_up_leaves_out_what_is_not_needed_and_hides_it_no_longer(folder: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rollbook.core.runtime import Runtime\n"
        "from rollbook.components.policies.loading import load_model, prepare_torch\n"
        f"load_model(Path({str(folder)!r}), prepare_torch(Runtime(device='cpu', threads=1)))\n"
        "print(*(name for name in ('sklearn', 'scipy', 'pandas') if name in sys.modules))\n"
        "import scipy.optimize\n"
    )
    root = Path(__file__).parents[4]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == ""
    assert importlib.util.find_spec("scipy") is not None
