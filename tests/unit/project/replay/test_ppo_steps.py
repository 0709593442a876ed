"""The steps of a recipe with a critic, replayed for real: its values, its returns, the update of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from rollbook.dvc.lock import output_md5s
from rollbook.project.run.run import Run
from rollbook.project.verify.verification import verify
from rollbook.rl.training.critic_state import WEIGHTS_FILE
from rollbook.tables.artifacts import path_of, read_table
from tests.finished_run import copy, lock_says, make
from tests.finished_run import settings as finished_settings
from tests.in_process import chain_of
from tests.processes import PYTHONPATH
from tests.unit.project.replay.finished_steps import replay, verdict

KEYS = ["i0001", "i0002"]
REPLAYED = ("measure_logprobs", "compute_advantages", "update_policy")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of PPO, one answer to a prompt; look, do not touch."""
    raw = finished_settings()
    raw["recipes"]["ppo"] = {
        "extends": "grpo",
        "generate_rollouts": {"group_size": 1},
        "compute_advantages": {"estimator": {"name": "gae", "lam": 0.95}, "kl_coef": 0.05},
        "update_policy": {"critic": {"name": "head", "learning_rate": 0.01}},
    }
    raw["iterations"], raw["rescores"] = chain_of("ppo", KEYS), {}
    return make(tmp_path_factory.mktemp("ppo"), raw)


def _numbers(kind: str, key: str, column: str) -> list[float]:
    lists = read_table(path_of(kind, key), kind)[0][column].to_pylist()
    return [value for each in lists for value in each]


def test_all_that_a_critic_has_to_do_with_is_identical(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.chdir(finished)
    assert not any(_numbers("logprobs", "i0001", "values"))  # there was no critic yet
    assert all(_numbers("logprobs", "i0002", "values"))
    assert any(_numbers("advantages", "i0002", "token_returns"))
    for stage in REPLAYED:
        result = replay(f"{stage}@i0002")
        assert result.exit_code == 0, result.output
        found = verdict(f"{stage}@i0002")
        assert found["outcome"] == "identical"
    assert path_of("values", "i0002").as_posix() in [each["path"] for each in found["outputs"]]


@pytest.fixture
def own(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to change at will, as the current folder; the path of the last critic in it."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.chdir(copy(finished, tmp_path / "run"))
    return path_of("values", "i0002")


def test_a_flipped_weight_of_the_critic_is_found_and_named(own: Path) -> None:
    file = own / WEIGHTS_FILE
    before = _head(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80  # the sign of the last weight
    file.chmod(0o644)
    with file.open("r+b") as stream:  # DVC's cache, which is the same file, is changed with it
        stream.write(content)
    after = _head(file)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
    result = replay("update_policy@i0002")
    assert result.exit_code == 1, result.output
    assert verdict("update_policy@i0002")["outcome"] == "different"
    assert "first in tensor head.weight" in result.output
    assert [each.path for each in verify(Run()).findings] == [file.as_posix()]


def _head(file: Path) -> list[float]:
    with safe_open(file, "np") as tensors:
        return [float(each) for each in tensors.get_tensor("head.weight").ravel()]


@pytest.mark.parametrize("with_its_md5", [False, True])
def test_the_critic_of_another_iteration_is_found(own: Path, with_its_md5: bool) -> None:
    assert verify(Run()).findings == []
    earlier = path_of("values", "i0001")
    if with_its_md5:
        md5s = output_md5s()
        lock_says(md5s[own.as_posix()], md5s[earlier.as_posix()])
    shutil.rmtree(own)
    shutil.copytree(earlier, own)
    named = {finding.path for finding in verify(Run()).findings}
    assert any(Path(path) == own or own in Path(path).parents for path in named), named
    assert not any("i0001" in path for path in named)
