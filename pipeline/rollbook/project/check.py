"""What `check` reports before anything runs: is the configuration sound, what runs again, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbook.components.prompt_format import PromptFormat
from rollbook.core.errors import ConfigError, Problem, RollbookError
from rollbook.project.dependencies import models_in
from rollbook.project.run.currency import Rerun, flat, reasons_of
from rollbook.project.run.run import Run
from rollbook.settings.config import Params, run_settings

LARGE_POLICY_PARAMETERS = 10_000_000
HIGH_LEARNING_RATE = 1e-5
SHOWN_CHANGES = 6
KEPT = "until `dvc repro`, what they made stays: show, page, doctor, compare, verify and ui go on telling of it"
"""Said beside finished steps that would run again."""


def examine(run: Run) -> list[str]:
    """Refuses what cannot run, and returns warnings; what runs again is `run.currency`.

    Raises:
        ConfigError: for files that settings name and that are not there.
    """
    refuse_missing_files(run.params)
    return list(warnings_for(run.params))


def warnings_for(params: Params) -> Iterator[str]:
    """Settings that are allowed and rarely meant."""
    yield from _other_run(params)
    yield from (f"policy.base: {caution}" for caution in params.policy.base.cautions())
    parameters = params.policy.base.parameter_count()
    size = (
        "a policy whose size is not known yet"
        if parameters is None
        else f"{parameters / 1e6:,.0f}M parameters"
    )
    large = parameters is None or parameters > LARGE_POLICY_PARAMETERS
    for name in dict.fromkeys(item.recipe for item in params.iterations.values()):
        recipe = params.recipes[name]
        rate = recipe.update_policy.learning_rate
        if large and rate > HIGH_LEARNING_RATE and recipe.update_policy.lora is None:
            yield (
                f"recipes.{name}.update_policy.learning_rate: {rate:g} is high for full fine-tuning of {size}; "
                f"usual is 1e-6, rarely above {HIGH_LEARNING_RATE:g}"
            )
        for model in models_in(recipe):
            yield from (f"recipes.{name}: {caution}" for caution in model.cautions())
        for field in PromptFormat.model_fields:
            asked, judged = (
                getattr(recipe.prepare_prompts, field),
                getattr(params.evaluate_policy, field),
            )
            if asked != judged:
                yield f"recipes.{name}.prepare_prompts.{field} differs from evaluate_policy.{field}"


def _other_run(params: Params) -> Iterator[str]:
    """Says what of the run as a whole is not as it was when iterations were sealed: they stay as they are."""
    now = flat(run_settings(params))
    for part in dict.fromkeys(item.part for item in params.sealed.values()):
        then = flat(next(item.run for item in params.sealed.values() if item.part == part))
        for place in then:
            if now.get(place, then[place]) != then[place]:
                yield (
                    f"{place}: is {now[place]}, and was {then[place]} when {part} was trained, which is sealed and "
                    "does not change; what follows goes on from there"
                )


def refuse_missing_files(params: Params) -> None:
    """Raises ConfigError for files that settings name and that are not there."""
    missing = sorted(
        {
            file
            for model in models_in(params)
            for file in model.data_files()
            if not Path(file).exists()
        }
    )
    if missing:
        raise ConfigError([Problem(file, "there is no such file") for file in missing])


def guard(found: Sequence[Rerun], limit_hours: float, cause: str = "") -> None:
    """Stops before more finished work than allowed is thrown away.

    Raises:
        RollbookError: naming the work, what changed, and the ways to go on.
    """
    hours = sum(step.seconds for step in found) / 3600
    if hours > limit_hours:
        raise RollbookError(
            f"{describe(found, cause)}\nThat is more than runtime.max_rerun_hours: {limit_hours:g} allows.",
            "undo the change; or put it into a new recipe that `extends` the old one and point only new iterations "
            f"at it; or allow it with runtime.max_rerun_hours: {hours * 1.1:.1f}",
        )


def describe(found: Sequence[Rerun], cause: str = "") -> str:
    """What would run again and why, in a few lines.

    Args:
        found: finished steps that run again.
        cause: in one line, for where no single change of theirs is known.
    """
    if not found:
        return "nothing that is finished runs again"
    seconds = sum(step.seconds for step in found)
    took = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
    lines = [
        f"{len(found)} finished steps run again, from {found[0].stage}@{found[0].key} on; they took {took}, because"
    ]
    reasons = reasons_of(found)
    lines += [f"  - {reason}" for reason in reasons[:SHOWN_CHANGES]]
    if len(reasons) > SHOWN_CHANGES:
        lines.append(f"  - and {len(reasons) - SHOWN_CHANGES} more changes")
    if not reasons:
        lines.append(f"  - {cause}")
    lines.append(
        "  (results that DVC still has in its run cache, as after undoing a change, are restored)"
    )
    return "\n".join(lines)
