"""Two versions of a safetensors file, read in pieces with numpy: no torch, and no more memory than a piece needs.

8 bytes length n, little-endian; n bytes JSON {name: {dtype, shape, data_offsets}}; then the data, offsets from there
(https://github.com/huggingface/safetensors#format). bfloat16, which numpy lacks, is the upper half of a float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.project.replay.distances import distances, finite_or_none, largest_finite
from rollbook.project.replay.verdict import Difference, Outcome
from rollbook.tables.artifacts import damaged

LENGTH_BYTES = 8
PIECE = 1 << 22
"""Numbers read at once."""
FLOATS = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2"}
WHOLE = {"I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4", "U16": "u2"}
NUMBERS = {**FLOATS, **WHOLE, "U8": "u1", "BOOL": "u1"}
"""How numpy reads each type; others are compared byte by byte."""


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    shape: Sequence[int]
    start: int
    end: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<{NUMBERS.get(self.dtype, 'u1')}")

    @property
    def numbers(self) -> int:
        return (self.end - self.start) // self.numpy_dtype.itemsize


@dataclass
class _Largest:
    """The largest absolute difference so far, and where it is; NaN beats everything."""

    value: float = -1.0
    tensor: str = ""
    index: int = 0
    then: float = 0.0
    now: float = 0.0
    ulp: int | None = None


@dataclass
class _Found:
    first: str = ""
    tensors: int = 0
    weights: int = 0
    total: int = 0
    apart: float = 0.0
    largest: _Largest = field(default_factory=_Largest)


def weight_difference(then: Path, now: Path, tolerance: float) -> Difference:
    """Compares two safetensors files whose bytes differ.

    Args:
        then, now: the files.
        tolerance: of weights, relative to the largest finite one of their tensor.

    Raises:
        ArtifactError: if one cannot be read.
    """
    old, new = _tensors(then), _tensors(now)
    if other := _other_tensors(old, new):
        return Difference(Outcome.DIFFERENT, other, {"tensors": other})
    found = _Found()
    for name, tensor in old.items():
        _compare(name, (then, tensor), (now, new[name]), found)
    if not found.tensors:
        text = "the same tensors, laid out otherwise"
        return Difference(Outcome.SAME_CONTENT, text, {"reasons": [text]})
    return _said(found, len(old), tolerance)


def _tensors(file: Path) -> dict[str, _Tensor]:
    """Tensors by name, in the order of their data."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            header: Mapping[str, Any] = json.loads(stream.read(length))
        begin = LENGTH_BYTES + length
        found = {
            name: _Tensor(
                said["dtype"],
                said["shape"],
                begin + said["data_offsets"][0],
                begin + said["data_offsets"][1],
            )
            for name, said in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        raise damaged(file, error) from None
    if any(tensor.end > file.stat().st_size for tensor in found.values()):
        raise damaged(file, ValueError("its header names more data than there is"))
    return dict(sorted(found.items(), key=lambda entry: entry[1].start))


def _other_tensors(old: Mapping[str, _Tensor], new: Mapping[str, _Tensor]) -> str:
    """Tensors that only one file has, or of other types and shapes, in words; empty if there are none."""
    said = [f"tensor {name} is missing" for name in old if name not in new]
    said += [f"tensor {name} is new" for name in new if name not in old]
    for name in old.keys() & new.keys():
        was, is_now = (f"{each[name].dtype} {list(each[name].shape)}" for each in (old, new))
        said += [f"tensor {name} is {is_now} instead of {was}"] if was != is_now else []
    return "; ".join(said)


def _compare(
    name: str,
    old: tuple[Path, _Tensor],
    new: tuple[Path, _Tensor],
    found: _Found,
) -> None:
    """Adds what differs in one tensor to what was found."""
    found.total += old[1].numbers
    apart, largest = 0.0, 0.0
    differing = 0
    for begin, was, is_now in _pieces(old, new):
        unlike = np.flatnonzero(was != is_now)
        if old[1].dtype in NUMBERS:
            largest = max(largest, largest_finite(_values(was, old[1].dtype)))
        if not len(unlike):
            continue
        differing += len(unlike)
        if old[1].dtype not in NUMBERS:
            apart = math.inf
            continue
        a, b = (_values(each[unlike], old[1].dtype) for each in (was, is_now))
        distance = distances(a, b)
        place = int(distance.argmax())
        apart = max(apart, float(distance[place]))
        if float(distance[place]) > found.largest.value:
            at = int(unlike[place])
            found.largest = _Largest(
                float(distance[place]),
                name,
                begin + at,
                float(a[place]),
                float(b[place]),
                _ulp(int(was[at]), int(is_now[at]), old[1]),
            )
    if differing:
        found.first = found.first or name
        found.tensors += 1
        found.weights += differing
        found.apart = max(found.apart, float(distances(apart, 0.0, largest)))


def _pieces(
    old: tuple[Path, _Tensor], new: tuple[Path, _Tensor]
) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """Bits of both as whole numbers, piece by piece, with the place where each begins."""
    width = old[1].numpy_dtype.itemsize
    for begin in range(0, old[1].numbers, PIECE):
        count = min(PIECE, old[1].numbers - begin)
        was, is_now = (
            np.fromfile(file, dtype=f"<u{width}", count=count, offset=tensor.start + begin * width)
            for file, tensor in (old, new)
        )
        yield begin, was, is_now


def _values(bits: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(f"<{NUMBERS[dtype]}").astype(np.float64)


def _ulp(old: int, new: int, tensor: _Tensor) -> int | None:
    """Floating-point numbers from one to the other; None for whole numbers."""
    if tensor.dtype not in FLOATS:
        return None
    sign = 1 << (8 * tensor.numpy_dtype.itemsize - 1)
    one, other = (sign - bits if bits & sign else bits for bits in (old, new))
    return abs(one - other)


def _said(found: _Found, tensors: int, tolerance: float) -> Difference:
    near = tolerance and found.apart <= tolerance
    outcome = Outcome.WITHIN_TOLERANCE if near else Outcome.DIFFERENT
    share = found.weights / found.total
    most = found.largest
    text = f"first in tensor {found.first}"
    if most.tensor:
        ulp = "" if most.ulp is None else f" ({most.ulp} ulp)"
        text += (
            f"; largest difference {most.value:.3g}{ulp} at {most.tensor}[{most.index}]: "
            f"{most.now:.9g} instead of {most.then:.9g}"
        )
    text += f"; {found.weights} of {found.total} weights ({share:.2%}), {found.tensors} of {tensors} tensors"
    facts = {
        "first_tensor": found.first,
        "tensors": found.tensors,
        "weights": found.weights,
        "share": share,
        "largest": {
            "difference": most.value,
            "tensor": most.tensor,
            "index": most.index,
            "then": most.then,
            "now": most.now,
            "ulp": most.ulp,
        },
    }
    return Difference(outcome, text, facts, finite_or_none(found.apart))
