"""What each step of a run depends on, made into the plan.

`artifacts/plan.json` holds one digest per stage and iteration over exactly the settings that the stage reads and the
code that it runs; DVC compares the digests key by key.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.project.code import code_hashes, file_of_module
from rollbook.project.dependencies import CodeHashes, Dependencies, dependencies_of
from rollbook.project.plan_file import (
    ITERATION_STAGES,
    ONCE_STAGES,
    REPORT,
    RESCORE_STAGE,
    RESCORES,
)
from rollbook.project.stage import Stage
from rollbook.settings.config import Params


def load_stage(name: str) -> Stage[Any]:
    """The `STAGE` declared in `stages/<name>.py`. Declarations are loaded here only, by name: they import this
    module."""
    stage: Stage[Any] = importlib.import_module(f"rollbook.stages.{name}").STAGE
    return stage


def _report_dependencies(code: CodeHashes) -> Dependencies:
    file = file_of_module(f"rollbook.stages.{REPORT}")
    return Dependencies({}, code(frozenset() if file is None else frozenset({file})), {})


def make_plan(params: Params) -> dict[str, Any]:
    """Digests of all stages: `{"prepare_data": …, "report": …, "i0001": {"update_policy": …}, "rescores": …}`.

    Those of sealed iterations are what they were: nothing changes them any more.
    """
    code = cache(code_hashes)  # most steps run the code of another one
    plan: dict[str, Any] = {
        name: planned(params, name, BASE_KEY, code=code).digest for name in ONCE_STAGES
    }
    plan[REPORT] = _report_dependencies(code).digest
    evaluated = planned(params, "evaluate_policy", BASE_KEY, code=code)
    plan[BASE_KEY] = {"evaluate_policy": evaluated.digest}
    plan |= {key: dict(item.digests) for key, item in params.sealed.items()}
    for key in params.iterations:
        plan[key] = {
            name: planned(params, name, key, code=code).digest for name in ITERATION_STAGES
        }
    plan[RESCORES] = rescore_plan(params)
    return plan


def rescore_plan(params: Params) -> dict[str, dict[str, str]]:
    """Digests of all re-scores by name and iteration: `{"strict": {"i0001": …}}`."""
    code = cache(code_hashes)
    return {
        name: {
            key: planned(params, RESCORE_STAGE, key, name, code).digest for key in params.iterations
        }
        for name in params.rescores
    }


def planned(
    params: Params, name: str, key: str, rescore: str = "", code: CodeHashes = code_hashes
) -> Dependencies:
    """Dependencies of stage `name` at iteration `key`; of the re-score of that name if it is part of one."""
    stage = load_stage(name)
    return dependencies_of(stage, stage.settings.of(params, key, rescore), code)
