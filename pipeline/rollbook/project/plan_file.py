"""plan.json: one digest per stage and iteration, of settings and code; and the names of all stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError
from rollbook.tables.artifacts import ROOT, read_json

PLAN_FILE = ROOT / "plan.json"
ONCE_STAGES = ("prepare_data", "init_policy")
ITERATION_STAGES = (
    "prepare_prompts",
    "generate_rollouts",
    "score_rollouts",
    "measure_logprobs",
    "compute_advantages",
    "update_policy",
    "evaluate_policy",
)
RESCORE_STAGE = "rescore_rollouts"
REPORT = "report"
"""The program that sums a run up. It declares no settings; plan.json holds a digest of its code alone."""
DECLARED_STAGES = (*ONCE_STAGES, *ITERATION_STAGES, RESCORE_STAGE)
"""Programs whose inputs and outputs are declared, as they follow; other steps make no artifact of their own."""
RESCORES = "rescores"
"""Where plan.json holds the digests of re-scores, by name and iteration."""


def same_training_plan(one: Path, other: Path) -> bool:
    """Whether two plan.json say the same of the training chain.

    Digests of re-scores do not count: `rollbook rescore --stage` writes those anew into the file that `check` made.
    """
    try:
        plans = [{**read_json(file), RESCORES: None} for file in (one, other)]
    except ArtifactError:
        return False
    return plans[0] == plans[1]


def planned_digest(plan: Mapping[str, Any], name: str, key: str, rescore: str = "") -> str | None:
    """The digest that `plan.json` holds for a stage, or None."""
    path = (name,) if name in (*ONCE_STAGES, REPORT) else (key, name)
    entry: Any = plan
    for part in (RESCORES, rescore, key) if rescore else path:
        entry = entry.get(part) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, str) else None
