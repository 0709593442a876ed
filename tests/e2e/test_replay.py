"""Steps replayed for real: the same bytes in a clone, and a flipped bit of a policy found by tensor."""

import json
from pathlib import Path

import pytest

from rollbook.project.plan_file import PLAN_FILE
from tests.e2e.projects import git, output_hashes, run

pytestmark = pytest.mark.e2e
FLIPPED = -4001
"""Place of a byte in the weights, from the end: the sign and the exponent of one."""


def test_an_update_is_identical_and_a_flipped_bit_is_found(copy: Path) -> None:
    weights = copy / "artifacts/policies/i0001/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[FLIPPED] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    result = run(copy, "rollbook", "replay", "update_policy@i0001", check=False)
    assert result.returncode == 1, result.stderr
    verdict = json.loads((copy / ".rollbook/replays/update_policy@i0001.json").read_text())
    [step] = verdict["steps"]
    assert {each["recorded"] == each["replayed"] for each in step["outputs"]} == {True}
    assert len(step["outputs"]) == 6
    found = [each["comparison"] for each in step["outputs"]]
    [difference] = [each for each in found if each["outcome"] != "identical"]
    assert "the workspace holds something else than was recorded" in difference["text"]
    assert "model.safetensors: first in tensor" in difference["text"]
    [(_, weights_found)] = difference["facts"]["altered"]["the workspace"].items()
    assert weights_found["weights"] == 1


def test_every_step_of_a_clone_is_identical(origin: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    clone = tmp_path / "clone"
    run(clone, "dvc", "pull")
    run(clone, "rollbook", "replay", "--all")
    verdict = json.loads((clone / ".rollbook/replays/all.json").read_text())
    assert verdict["verdict"] == "identical" and verdict["exit_code"] == 0
    replayed = [each["path"] for step in verdict["steps"] for each in step["outputs"]]
    made = {path for path in output_hashes(clone) if path.startswith("artifacts/")}
    assert sorted(replayed) == sorted(made - {PLAN_FILE.as_posix()})
    assert git(clone, "status", "--porcelain") == ""
