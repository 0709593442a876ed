"""Runs recorded cases of rollout correction, translating TRL's and verl's option names."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbook.core.ragged import Ragged
from rollbook.rl.training.mismatch import mismatch_metrics
from rollbook.rl.training.rollout_correction import Correction, correction
from rollbook.settings.recipe_correction import Rejection, RolloutCorrection
from tests.vectors.cases import Unsupported, differs, metrics_differ, numbers

CATEGORIES = ("is_correction_trl", "rollout_correction_verl")


def run_case(category: str, case: dict[str, Any]) -> str | None:
    """None if the correction gives the recorded numbers, else what differs.

    Raises:
        Unsupported: for a statistic that is not there.
    """
    if category == "is_correction_trl":
        return _run_trl(case)
    if category == "rollout_correction_verl":
        return _run_verl(case)
    raise Unsupported(f"category {category}")


def _run_trl(case: dict[str, Any]) -> str | None:
    """Weights by token or one per row; those of masked tokens must not matter and are not compared."""
    config, given, expected, tol = case["config"], case["inputs"], case["expected"], case["tol"]
    mask = numbers(given["completion_mask"]).astype(bool)
    if given.get("tool_mask") is not None:
        mask &= numbers(given["tool_mask"]).astype(bool)
    settings = RolloutCorrection(
        weights=config["mode"], max=config.get("clip_max"), min=config.get("clip_min")
    )
    found = correction(
        _rows(given["old_logps"]), _rows(given["sampling_logps"]), _rows(mask), settings
    )
    want = np.broadcast_to(numbers(expected["ratio"]), mask.shape)[mask].tolist()
    return differs(
        "weights", found.weights.values[mask.ravel()], want, tol["rtol"], tol["atol"]
    ) or metrics_differ(found.metrics, expected.get("metrics", {}), tol)


def _run_verl(case: dict[str, Any]) -> str | None:
    """Weights, 0 where masked, the mask after rejection, and every metric."""
    given, expected, tol = case["inputs"], case["expected"], case["tol"]
    mask = numbers(given["response_mask"]).astype(bool)
    found = verl_correction(
        case["config"], _rows(given["old_logps"]), _rows(given["sampling_logps"]), _rows(mask)
    )
    kept = found.kept.padded(False)
    problem = differs("mask", kept, expected["modified_mask"], tol["rtol"], tol["atol"])
    if expected.get("is_weights") is not None:
        weights = found.weights.padded(1.0) * mask
        problem = problem or differs(
            "weights", weights, expected["is_weights"], tol["rtol"], tol["atol"]
        )
    return problem or metrics_differ(found.metrics, expected.get("metrics", {}), tol)


def verl_correction(
    config: dict[str, Any], old: Ragged, sampling: Ragged, loss_mask: Ragged
) -> Correction:
    """Weights, mask after rejection and metrics under verl's options; arguments as for `correction`.

    Raises:
        Unsupported: for a statistic that is not there.
    """
    options, rejections = _weight_options(config), _rejections(config)
    if options or rejections:
        settings = RolloutCorrection(**{"weights": None, **options}, reject=rejections)
        return correction(old, sampling, loss_mask, settings)
    weights = Ragged(np.ones(len(old.values)), old.lengths)
    return Correction(weights, loss_mask, mismatch_metrics(old, sampling, loss_mask))


def _weight_options(config: dict[str, Any]) -> dict[str, Any]:
    """`rollout_is*`: one threshold truncates, two as in "0.5_2.0" mask."""
    if config.get("rollout_is") is None or config.get("rollout_is_threshold", 2.0) is None:
        return {}
    *low, high = map(float, str(config.get("rollout_is_threshold", 2.0)).split("_"))
    return {
        "weights": f"{config['rollout_is']}_{'mask' if low else 'truncate'}",
        "max": high,
        "min": low[0] if low else None,
        "normalize": config.get("rollout_is_batch_normalize", False),
    }


def _rejections(config: dict[str, Any]) -> list[Rejection]:
    """`rollout_rs*`: statistics with commas between them, one threshold for all or one each."""
    names = [name.strip() for name in (config.get("rollout_rs") or "").split(",") if name.strip()]
    names = list(dict.fromkeys(names))
    bounds = [part.strip() for part in str(config.get("rollout_rs_threshold", "")).split(",")]
    rejections = []
    for name, bound in zip(names, bounds * len(names) if len(bounds) == 1 else bounds, strict=True):
        if name == "binary_kl":
            raise Unsupported("rejection by binary_kl")
        *low, high = map(float, bound.split("_"))
        rejections.append(
            Rejection.model_validate(
                {
                    "statistic": name.replace("seq_", "sequence_"),
                    "low": low[0] if low else None,
                    "high": high,
                }
            )
        )
    return rejections


def _rows(grid: Any) -> Ragged:
    """[B, T] as lists of T items; truth values stay such."""
    array = grid if isinstance(grid, np.ndarray) else numbers(grid)
    return Ragged(array.ravel(), np.full(len(array), array.shape[1]))
