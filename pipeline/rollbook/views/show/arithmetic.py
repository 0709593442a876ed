"""How an advantage came to be: computed again from stored rewards with recorded settings, and written out in numbers.

The number comes from the path that trains (`rollbook.rl.estimation`). The group alone is tried first; an estimator that
looks at the whole iteration then gives another number, and gets the whole iteration. What is written out is evaluated
on the side, and left away unless it comes to the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from rollbook.components.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutputs,
)
from rollbook.components.advantages.kl_reward import penalized, token_penalties
from rollbook.components.advantages.writing import number
from rollbook.components.coefficients import start_of
from rollbook.core.component import problems_of
from rollbook.core.errors import RollbookError
from rollbook.core.field_docs import formula_of, headline_of
from rollbook.rl.estimation import (
    aligned_logprobs,
    estimation_of,
    old_and_reference,
    sampled_rows,
)
from rollbook.rl.scoring.totals import weighted_total
from rollbook.settings.recipe_sections import ComputeAdvantages
from rollbook.tables.columns import aligned
from rollbook.views.show.facts import AdvantageArithmetic

COLUMNS: Mapping[str, Sequence[str] | None] = {
    "rollouts": ("rollout_id", "group_id", "greedy", "loss_mask", "seed", "text"),
    "scores": None,
    "logprobs": ("rollout_id", "old_logprobs", "ref_logprobs", "values"),
    "advantages": ("rollout_id", "advantage", "token_advantages"),
}
"""Columns that are read, by table; None: all, since rewards are named in settings."""
SAME = 1e-9
"""Advantages this close are equal: NumPy may sum in another order on another processor."""
SAME_TOKEN = 1e-6
"""The same for advantages of tokens, which are stored as float32."""

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True)
class _Settings:
    """What `compute_advantages` ran with."""

    compute: ComputeAdvantages
    weights: Mapping[str, float]
    group_size: int
    kl_coef: float

    @classmethod
    def of(cls, settings: Mapping[str, Any], used: float | None) -> _Settings:
        compute = ComputeAdvantages.model_validate(settings["compute_advantages"])
        weights = {each["column"]: each["weight"] for each in settings["rewards"]}
        kl_coef = start_of(compute.kl_coef) if used is None else used
        return cls(compute, weights, settings["group_size"], kl_coef)


def arithmetic_of(
    rollout_id: str,
    settings: Mapping[str, Any],
    kl_coef: float | None,
    group: Tables,
    whole: Callable[[], Tables],
) -> AdvantageArithmetic | None:
    """How the advantage of a rollout came to be; None for a greedy one, which is a baseline itself.

    Args:
        rollout_id: of it.
        settings: recorded, of `compute_advantages`.
        kl_coef: the coefficient of a KL in the reward as the iteration used it; None: there was none.
        group: rows of its group in the tables of COLUMNS.
        whole: reads these tables as a whole.
    """
    place = group["rollouts"]["rollout_id"].to_pylist().index(rollout_id)
    if group["rollouts"]["greedy"][place].as_py():
        return None
    row = group["advantages"]["rollout_id"].to_pylist().index(rollout_id)
    stored = float(group["advantages"]["advantage"][row].as_py())
    tokens = group["advantages"]["token_advantages"][row].as_py()
    name = str(settings.get("compute_advantages", {}).get("estimator", {}).get("name", ""))
    try:
        known = _Settings.of(settings, kl_coef)
    except ValidationError as error:
        reason = "; ".join(map(str, problems_of(error)))
        return _not_computed(name, stored, f"this Rollbook cannot read its settings: {reason}")
    except KeyError as error:
        return _not_computed(name, stored, f"no setting {error}")
    found, agrees, reason = None, False, ""
    for read in (lambda: group, whole):
        try:
            found = _estimated(known, read(), rollout_id)
            agrees = found.is_equal(stored, tokens)
        except Exception as error:  # an estimator of the user's own may raise anything
            found, reason = None, _said_by(error)
        if agrees:
            break
    if found is None:
        return _not_computed(name, stored, reason)
    estimator = known.compute.estimator
    problem = "" if agrees else f"the stored advantage is {number(stored)}, not {found.value:+.6g}"
    if not agrees and math.isclose(found.value, stored, rel_tol=SAME, abs_tol=SAME):
        problem = "the stored advantages of its tokens are others"
    return AdvantageArithmetic(
        estimator=estimator.name,
        words=headline_of(type(estimator)),
        formula=formula_of(type(estimator)),
        steps=[
            *found.reward_steps(known),
            *written_out(estimator, found.seen, found.row, found.value),
        ],
        from_rollouts=found.rows,
        computed=found.value,
        stored=stored,
        agrees=agrees and not found.wrong_total(known),
        problem=problem or found.wrong_total(known),
    )


def written_out(
    estimator: AdvantageEstimator, seen: AdvantageInputs, row: int, advantage: float
) -> list[str]:
    """An advantage in numbers, as the estimator writes it; empty where it does not, or comes to another number.

    Args:
        estimator: with its settings.
        seen: its inputs.
        row: of the rollout.
        advantage: that it gave the rollout.
    """
    if math.isnan(seen.rewards[row]):
        return ["it has no reward, so it is left out of its group and its advantage is 0"]
    try:
        lines, value = estimator.arithmetic(seen, row)
    except Exception as error:  # as above
        return [_said_by(error)]
    return lines if math.isclose(value, advantage, rel_tol=SAME, abs_tol=SAME) else []


def _said_by(error: Exception) -> str:
    if isinstance(error, RollbookError):
        return error.message
    return f"the estimator failed: {type(error).__name__}: {error}"


def _not_computed(estimator: str, stored: float, problem: str) -> AdvantageArithmetic:
    return AdvantageArithmetic(estimator, "", [], [], 0, None, stored, None, problem)


@dataclass(frozen=True)
class _Estimated:
    """What the estimator made of some rollouts, one of them looked at.

    Attributes:
        given: what was stored of the sampled rollouts.
        seen: what the estimator saw: rewards clipped and less their KL.
        total: the stored reward of the rollout, neither clipped nor less its KL.
        row: its place among the sampled ones.
        outputs: of the estimator.
        rows: rollouts it was computed from.
    """

    given: AdvantageInputs
    seen: AdvantageInputs
    total: float
    row: int
    outputs: AdvantageOutputs
    rows: int

    @property
    def value(self) -> float:
        """Advantage of the rollout."""
        return float(self.outputs.advantages[self.row])

    def is_equal(self, stored: float, tokens: Sequence[float] | None) -> bool:
        """Whether the tables hold the same."""
        if not math.isclose(self.value, stored, rel_tol=SAME, abs_tol=SAME):
            return False
        made = self.outputs.token_advantages
        if made is None or tokens is None:
            return (made is None) == (tokens is None)
        own = made.rows(np.array([self.row])).values
        return len(own) == len(tokens) and np.allclose(own, tokens, SAME_TOKEN, SAME_TOKEN)

    def wrong_total(self, settings: _Settings) -> str:
        """What is wrong with the stored reward, if it is not the weighted sum of its parts; else empty."""
        made = float(self._weighted(settings))
        if made == self.total or (math.isnan(made) and math.isnan(self.total)):
            return ""
        return f"the stored reward is {number(self.total)}, its parts make {number(made)}"

    def reward_steps(self, settings: _Settings) -> list[str]:
        """From the parts of the reward to what the estimator saw."""
        parts = self.given.components[self.row]
        terms = [
            f"{weight:g} · {number(value)} ({column.removeprefix('reward_')})"
            for (column, weight), value in zip(settings.weights.items(), parts, strict=True)
            if not math.isnan(value)
        ]
        made = float(self._weighted(settings))
        steps = [f"reward = {' + '.join(terms) or 'none of its parts applies'} = {number(made)}"]
        clip, clipped = settings.compute.reward_clip, float(self.given.rewards[self.row])
        if clip is not None and not math.isnan(clipped):
            steps.append(f"held to [{clip[0]:g}, {clip[1]:g}]: {number(clipped)}")
        penalties = self.seen.token_penalties
        if penalties is not None:
            taken = float(penalties.sums()[self.row])
            steps.append(
                f"less its KL to the reference, {settings.kl_coef:g} · Σ {settings.compute.kl_estimator} over its "
                f"tokens = {number(taken)}: {number(float(self.seen.rewards[self.row]))}"
            )
        return steps

    def _weighted(self, settings: _Settings) -> float:
        parts = self.given.components[self.row : self.row + 1]
        return float(weighted_total(parts, list(settings.weights.values()))[0])


def _estimated(settings: _Settings, tables: Tables, rollout_id: str) -> _Estimated:
    rollouts, compute = tables["rollouts"], settings.compute
    scores = aligned(tables["scores"], rollouts, "scores")
    logprobs = aligned_logprobs(tables["logprobs"], rollouts)
    found = estimation_of(
        rollouts,
        scores,
        logprobs,
        compute,
        settings.weights,
        settings.group_size,
        settings.kl_coef,
    )
    seen = found.given
    if compute.needs_reference:
        old, ref = old_and_reference(logprobs, rollouts)
        penalties = token_penalties(
            old, ref, seen.loss_mask, settings.kl_coef, compute.kl_estimator
        )
        seen = replace(seen, rewards=penalized(seen.rewards, penalties), token_penalties=penalties)
    place = rollouts["rollout_id"].to_pylist().index(rollout_id)
    total = scores["reward"][place].as_py()
    return _Estimated(
        given=found.given,
        seen=seen,
        total=float("nan") if total is None else float(total),
        row=int(sampled_rows(rollouts)[:place].sum()),
        outputs=found.outputs,
        rows=rollouts.num_rows,
    )
