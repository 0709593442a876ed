"""Two versions of a policy, of an optimizer state and of numbers: tensors are read without torch, bfloat16 too."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.project.replay import weights
from rollbook.project.replay.differing import difference
from rollbook.project.replay.verdict import Difference, Outcome
from rollbook.tables.artifacts import write_folder, write_json

NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "uint16": "BF16", "int64": "I64"}


def _save(folder: Path, **tensors: NDArray[Any]) -> None:
    """A safetensors file by its format; uint16 stands for bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        end = len(data) + tensor.nbytes
        header[name] = {
            "dtype": NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), end],
        }
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def _policy(at: str, settings: str = "", config: str = "{}", **tensors: NDArray[Any]) -> Path:
    def write(folder: Path) -> None:
        _save(folder, **tensors)
        (folder / "config.json").write_text(config)

    write_folder(write, "policies", "i0001", settings=settings, at=Path(at))
    return Path(at)


def _compared(old: NDArray[Any], new: NDArray[Any], tolerance: float = 0.0) -> Difference:
    same = np.ones(3, dtype=np.float32)
    return difference(
        _policy("old", first=same, second=old),
        _policy("new", first=same, second=new),
        "policies",
        tolerance,
    )


def test_largest_difference_ulp_and_share(project: Path) -> None:
    old = np.linspace(-1, 1, 997, dtype=np.float32)
    new = old.copy()
    new[10] = np.nextafter(old[10], np.float32(2))
    new[500] += np.float32(0.25)
    found = _compared(old, new)
    assert found.outcome is Outcome.DIFFERENT
    facts = found.facts["model.safetensors"]
    assert facts["first_tensor"] == "second"
    assert (facts["tensors"], facts["weights"]) == (1, 2)
    assert facts["share"] == pytest.approx(2 / 1000)
    assert facts["largest"]["index"] == 500
    assert facts["largest"]["difference"] == pytest.approx(0.25)
    assert "model.safetensors: first in tensor second; largest difference 0.25" in found.text
    assert "2 of 1000 weights (0.20%), 1 of 2 tensors" in found.text


@pytest.mark.parametrize(
    ("dtype", "one"), [("float32", 1.0), ("float16", 1.0), ("float64", 1.0), ("uint16", 0x3F80)]
)
def test_one_ulp_in_every_type(project: Path, dtype: str, one: float) -> None:
    old = np.full(5, one, dtype=dtype)
    bits = old.view(f"u{old.itemsize}").copy()
    bits[3] += 1
    largest = _compared(old, bits.view(old.dtype)).facts["model.safetensors"]["largest"]
    assert (largest["ulp"], largest["index"], largest["then"]) == (1, 3, 1.0)
    epsilon = 2.0**-7 if dtype == "uint16" else np.finfo(dtype).eps
    assert largest["now"] == 1 + epsilon


def test_ulp_across_zero(project: Path) -> None:
    tiny = np.float32(1e-45)
    largest = _compared(np.array([tiny]), np.array([-tiny])).facts["model.safetensors"]["largest"]
    assert largest["ulp"] == 2


def test_pieces_are_counted_as_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE", 7)
    old = np.arange(50, dtype=np.float32)
    new = old.copy()
    new[[6, 7, 49]] += np.array([1, 2, 3], dtype=np.float32)
    facts = _compared(old, new).facts["model.safetensors"]
    assert facts["weights"] == 3
    assert (facts["largest"]["index"], facts["largest"]["difference"]) == (49, 3.0)


def test_tolerance_is_relative_to_the_largest_weight(project: Path) -> None:
    old = np.array([0.0, 10.0], dtype=np.float32)
    new = np.array([0.005, 10.0], dtype=np.float32)
    assert _compared(old, new, 1e-3).outcome is Outcome.WITHIN_TOLERANCE
    assert _compared(old, new, 1e-4).outcome is Outcome.DIFFERENT
    nan = np.array([math.nan, 10.0], dtype=np.float32)
    assert _compared(old, nan, 1e-3).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([math.inf, 1.0, 2.0], [math.inf, 100.0, -2.0]),
        ([math.inf, 1.0], [-math.inf, 1.0]),
        ([1.0, 1.0], [math.inf, 1.0]),
        ([math.nan, math.nan], [math.nan, 1.0]),
    ],
)
def test_infinite_weights_have_no_tolerance(
    project: Path, old: list[float], new: list[float]
) -> None:
    one, other = (np.array(each, dtype=np.float32) for each in (old, new))
    assert _compared(one, other, 1e-3).outcome is Outcome.DIFFERENT
    near = one * np.float32(1 + 1e-5)
    assert _compared(one, near, 1e-3).outcome is not Outcome.DIFFERENT


def test_how_far_weights_are_apart_is_the_tolerance_that_would_do(project: Path) -> None:
    old = np.array([0.0, 10.0], dtype=np.float32)
    new = np.array([0.005, 10.0], dtype=np.float32)
    apart = _compared(old, new).apart
    assert apart == pytest.approx(5e-4)
    assert apart is not None
    assert _compared(old, new, apart).outcome is Outcome.WITHIN_TOLERANCE
    assert _compared(old, new, 0.99 * apart).outcome is Outcome.DIFFERENT
    assert _compared(old, np.array([math.nan, 10.0], dtype=np.float32)).apart is None
    zeros = np.zeros(2, dtype=np.float32)
    assert _compared(zeros, -zeros).apart == 0
    assert _compared(zeros, old).apart is None  # no scale


def test_a_folder_is_as_far_apart_as_its_files(project: Path) -> None:
    one, other = np.array([1.0, 2.0], dtype=np.float32), np.array([1.0, 2.5], dtype=np.float32)
    old = _policy("old", "x", config='{"theta": 100.0}', a=one)
    near = _policy("near", "y", config='{"theta": 101.0}', a=other)
    assert difference(old, near, "policies", 0.0).apart == pytest.approx(0.25)
    assert difference(old, _policy("same", "y", a=one), "policies", 0.0).apart is None
    (near / "added.txt").write_bytes(b"")
    assert difference(old, near, "policies", 0.0).apart is None


def test_other_tensors(project: Path) -> None:
    one = np.ones(2, dtype=np.float32)
    old, new = _policy("old", a=one, b=one), _policy("new", a=np.ones(3, dtype=np.float32), c=one)
    text = difference(old, new, "policies", 0.0).text
    assert "tensor b is missing; tensor c is new" in text
    assert "tensor a is F32 [3] instead of F32 [2]" in text


def test_what_a_policy_says_about_itself_is_no_content(project: Path) -> None:
    one = np.ones(2, dtype=np.float32)
    found = difference(_policy("old", "x", a=one), _policy("new", "y", a=one), "policies", 0.0)
    assert found.outcome is Outcome.SAME_CONTENT
    assert "rollbook.json: its metadata has another digest of settings and code" in found.text


def test_other_files_of_a_folder(project: Path) -> None:
    one = np.ones(2, dtype=np.float32)
    old, new = _policy("old", a=one), _policy("new", config='{"layers": 3}', a=one)
    (old / "merges.txt").write_bytes(b"abc")
    (new / "merges.txt").write_bytes(b"abd")
    (new / "added.txt").write_bytes(b"")
    found = difference(old, new, "policies", 0.0)
    assert found.outcome is Outcome.DIFFERENT
    assert "config.json: layers 3 instead of nothing" in found.text
    assert "merges.txt: from byte 2 on" in found.text
    assert "added.txt: is new" in found.text


def test_a_damaged_file_is_different(project: Path) -> None:
    one = np.ones(2, dtype=np.float32)
    old, new = _policy("old", a=one), _policy("new", a=one)
    file = old / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    found = difference(old, new, "policies", 0.0)
    assert found.outcome is Outcome.DIFFERENT
    assert "truncated or damaged" in found.text


def test_numbers(project: Path) -> None:
    write_json({"reward": 0.5, "kl": None, "steps": 3}, Path("old.json"))
    write_json({"reward": 0.5 + 1e-9, "kl": 0.1, "tokens": 3}, Path("new.json"))

    def compared(tolerance: float) -> Difference:
        return difference(Path("old.json"), Path("new.json"), "numbers", tolerance)

    assert compared(0.0).text.startswith(
        "kl 0.1 instead of None; reward 0.500000001 instead of 0.5;"
    )
    assert compared(0.0).text.endswith("4 of 4 values differ")
    assert compared(1e-3).outcome is Outcome.DIFFERENT
    assert "reward" not in compared(1e-3).text
    assert compared(1e-3).apart is None  # a number instead of none
    write_json({"reward": 0.5 + 1e-9, "kl": None, "steps": 3}, Path("new.json"))
    assert compared(1e-3).outcome is Outcome.WITHIN_TOLERANCE
    assert compared(0.0).apart == pytest.approx(1e-9)
    for was, is_now in (("Infinity", "1.0"), ("Infinity", "-Infinity"), ("NaN", "1.0")):
        Path("old.json").write_text(f'{{"reward": {was}}}')
        Path("new.json").write_text(f'{{"reward": {is_now}}}')
        assert compared(1e-3).outcome is Outcome.DIFFERENT
    write_json({"reward": 0.5, "kl": None, "steps": 3}, Path("old.json"))
    Path("new.json").write_text('{"kl": null, "reward": 0.5,\n"steps": 3}')
    assert compared(0.0).outcome is Outcome.SAME_CONTENT


def test_a_flipped_weight_of_a_critic_is_named(project: Path) -> None:
    from rollbook.tables.artifacts import FOLDERS

    assert "values" in FOLDERS
    old = np.linspace(-1, 1, 32, dtype=np.float32)
    new = old.copy()
    new[7] = -new[7]
    folders = []
    for at, head in (("old", old), ("new", new)):
        _policy(at, **{"backbone.norm.weight": old, "head.weight": head})
        folders.append(Path(at))
    found = difference(*folders, "values", 0.0)
    assert found.outcome is Outcome.DIFFERENT
    assert "first in tensor head.weight" in found.text
    assert "1 of 64 weights" in found.text
