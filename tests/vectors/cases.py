"""The recorded cases of `../shared/vectors`, and how numbers are compared with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "vectors"
FORMAT = "grpo-vectors/1"
SPECIAL = {
    None: float("nan"),
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
"""How numbers that JSON lacks are written; null is a reward that does not apply."""


class Unsupported(Exception):  # noqa: N818
    """The case is about something Rollbook does not do."""


class KnownDifference(Unsupported):
    """Rollbook does what the case is about, and means another number; the message says why. A test shows ours."""


def load_cases(category: str) -> list[dict[str, Any]]:
    """All cases of a category.

    Raises:
        FileNotFoundError: saying where the recorded numbers are expected.
    """
    file = FOLDER / f"{category}.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"no recorded numbers at {file}: this test needs the folder shared/vectors beside the repository"
        )
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["format"] != FORMAT or content["count"] != len(content["cases"]):
        raise ValueError(f"{file}: not a whole file of format {FORMAT}")
    cases: list[dict[str, Any]] = content["cases"]
    return cases


def numbers(nested: Any) -> NDArray[np.float64]:
    """Nested lists of numbers, with `"NaN"`, `"Infinity"` and null as in the files, as an array."""
    return np.array(_plain(nested), dtype=np.float64)


def differs(
    name: str, got: Any, expected: Any, rtol: float, atol: float, limit: int = 3
) -> str | None:
    """None if |got − expected| ≤ atol + rtol·|expected| everywhere, else what differs; NaN equals NaN."""
    have, want = np.asarray(got, dtype=np.float64), numbers(expected)
    if have.shape != want.shape:
        return f"{name}: shape {have.shape}, expected {want.shape}"
    wrong = np.argwhere(~np.isclose(have, want, rtol=rtol, atol=atol, equal_nan=True))
    if not len(wrong):
        return None
    shown = ", ".join(
        f"{list(map(int, place))}: {have[tuple(place)]!r} instead of {want[tuple(place)]!r}"
        for place in wrong[:limit]
    )
    largest = _largest_error(have, want)
    return f"{name}: {len(wrong)} of {want.size} numbers differ, {largest}, at {shown}"


def metrics_differ(
    got: Mapping[str, float], expected: Mapping[str, Any], tol: Mapping[str, Any]
) -> str | None:
    """Compares every expected metric that the case does not tell to skip."""
    skipped = tol.get("skip_metrics") or ()
    if skipped is True:
        return None
    for name, value in expected.items():
        if name in skipped:
            continue
        if name not in got:
            return f"metric {name} is missing; there are {', '.join(sorted(got))}"
        text = differs(name, got[name], value, tol["metrics_rtol"], tol["metrics_atol"])
        if text is not None:
            return text
    return None


def _largest_error(have: NDArray[np.float64], want: NDArray[np.float64]) -> str:
    """The largest |got − want| and how large that is in relation to the number wanted; NaN counts as infinite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        both_alike = (have == want) | (np.isnan(have) & np.isnan(want))
        error = np.where(both_alike, 0.0, np.nan_to_num(np.abs(have - want), nan=np.inf))
        place = np.unravel_index(np.argmax(error), error.shape)
        relative = float(error[place] / np.abs(want[place]))
    return f"largest error {float(error[place]):.3g} (relative {relative:.3g})"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return SPECIAL[value] if value is None or isinstance(value, str) else float(value)
