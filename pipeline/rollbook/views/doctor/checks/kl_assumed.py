"""kl_assumed: settings of a KL term that is not there.

A KL term is there if its coefficient is above 0. Every iteration names a `reference`, so that alone says nothing; an
estimator that is chosen, a reference that was moved, or a target, does. A coefficient that is written as 0 is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import PositiveFloat, PositiveInt

from rollbook.components.coefficients import AdaptiveKl
from rollbook.core.component import Model
from rollbook.core.ids import BASE_KEY
from rollbook.settings.recipe import Recipe
from rollbook.views.doctor.chain import ChainReading
from rollbook.views.doctor.checks.base import Check, change_of, rounded
from rollbook.views.doctor.finding import Change, Finding
from rollbook.views.doctor.iteration import Reading
from rollbook.views.doctor.kl_coefficient import kl_coefficient_of

OPTIONS = ("kl_estimator", "kl_bias_correction")


class KlAssumed(Check):
    """A KL to the reference that someone counts on, and that is 0.

    Attributes:
        suggested: coefficient to suggest, that of DeepSeekMath (arXiv 2402.03300 §4.2).
        zero: KL per token, nats, below which it is none; stored log-probs are float32 and differ by 1e-7.
        faded: share of its start to which a coefficient that follows a target may shrink.
        iterations: that must show it, for a KL that is measured: a chain's first iteration starts at its reference, so
            one may.
    """

    suggested: PositiveFloat = 0.04
    zero: PositiveFloat = 1e-9
    faded: PositiveFloat = 1e-3
    iterations: PositiveInt = 2

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        yield from self._options(run)
        yield from self._moved([each for each in run.iterations if not each.recipe.needs_reference])
        measured = [each for each in run.having("kl") if each.recipe.needs_reference]
        yield from self._nothing([each for each in measured if abs(each.metrics["kl"]) < self.zero])
        yield from self._faded(measured)

    def _options(self, run: ChainReading) -> Iterator[Finding]:
        """Recipes that choose how the KL is estimated, and leave its coefficient at the default of 0."""
        by_recipe: dict[str, list[Reading]] = {}
        for reading in run.iterations:
            if reading.key in run.params.iterations:  # of sealed ones nobody knows what was written
                by_recipe.setdefault(reading.recipe_name, []).append(reading)
        for name, readings in by_recipe.items():
            for place, option in _chosen(run.params.recipes[name]):
                yield self.finding(
                    "warning",
                    readings,
                    f"recipe {name} sets {option}, and has no KL term",
                    [
                        f"{readings[-1].key}: {place}.{option} is set, {place}.kl_coef is not and so 0"
                    ],
                    "the coefficient defaults to 0, as in TRL; the paper's GRPO has 0.04",
                    change_of(readings[-1], f"{place}.kl_coef", self.suggested),
                )

    def _moved(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        found = [each for each in readings if each.reference != BASE_KEY]
        if found:
            last = found[-1]
            yield self.finding(
                "warning",
                found,
                f"the reference was moved to {last.reference}, and there is no KL term",
                [f"{each.key}: reference {each.reference}, kl_coef 0" for each in found[-3:]],
                "a reference only serves the KL term, and its coefficient is 0",
                change_of(last, "update_policy.loss.kl_coef", self.suggested),
            )

    def _nothing(self, found: Sequence[Reading]) -> Iterator[Finding]:
        if len(found) < self.iterations:
            return
        last = found[-1]
        cause, change = _why_nothing(last)
        yield self.finding(
            "warning",
            found,
            "there is a KL term, and its KL is 0",
            [
                f"{each.key}: kl {each.metrics['kl']:.1e}, reference {each.reference}"
                for each in found[-3:]
            ],
            cause,
            change,
        )

    def _faded(self, readings: Sequence[Reading]) -> Iterator[Finding]:
        for reading in readings[-1:]:
            coefficient, kl = kl_coefficient_of(reading), reading.metrics["kl"]
            setting, used = coefficient.setting, coefficient.used
            if not isinstance(setting, AdaptiveKl) or used is None:
                continue
            if used < self.faded * setting.start and self.zero < kl < setting.target:
                yield self.finding(
                    "note",
                    [reading],
                    f"the KL coefficient has faded from {setting.start:g} to {used:.1e}",
                    [f"{reading.key}: kl {kl:.2g}, target {setting.target:g}"],
                    "the KL has stayed below its target, so the coefficient shrank every iteration",
                    change_of(reading, f"{coefficient.place}.target", rounded(kl / 2)),
                )


def _why_nothing(reading: Reading) -> tuple[str, Change]:
    """Why the KL of an iteration is 0, and what to change."""
    recipe, update = reading.recipe, reading.recipe.update_policy
    one_step = update.optimizer_steps * update.epochs == 1
    starts_there = reading.reference == reading.previous != BASE_KEY
    if starts_there and (one_step or recipe.compute_advantages.needs_reference):
        return (
            "the reference is the policy that is trained, and its KL is measured before it has taken a step",
            Change(f"iterations.{reading.key}.reference", reading.reference, BASE_KEY),
        )
    if reading.metrics.get("grad_norm") == 0:
        return (
            "the policy does not move: its gradient is 0, for no group has rewards that differ",
            change_of(reading, "score_rollouts.rewards", "one that tells answers apart"),
        )
    return (
        "the policy does not move: steps are too small to change its weights",
        change_of(reading, "update_policy.learning_rate", rounded(10 * update.learning_rate)),
    )


def _chosen(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Places in the recipe, and options there, that were written beside a coefficient that was not."""
    if recipe.needs_reference:
        return
    places: dict[str, Model] = {
        "update_policy.loss": recipe.update_policy.loss,
        "compute_advantages": recipe.compute_advantages,
    }
    for place, section in places.items():
        written = section.model_fields_set
        if "kl_coef" not in written:
            yield from ((place, option) for option in OPTIONS if option in written)
