"""The interface of a check: a run's stored numbers in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rollbook.core.component import Component, Model
from rollbook.core.yaml import flow
from rollbook.views.doctor.finding import Change, Finding, Grade

if TYPE_CHECKING:
    from rollbook.views.doctor.chain import ChainReading
    from rollbook.views.doctor.iteration import Reading


class Check(Component):
    """Looks at one chain of iterations and says what is wrong with it.

    Its thresholds are its fields; each says where its value comes from, and `rollbook doctor --list` prints that.
    A number that is not stored is not judged: a check says nothing where its tables are not on disk.

    Attributes:
        off: leave this check out.
    """

    kind: ClassVar[str] = "doctor.checks"
    off: bool = False

    def __call__(self, run: ChainReading) -> Iterator[Finding]:
        raise NotImplementedError

    def finding(
        self,
        grade: Grade,
        where: Sequence[Reading | str],
        title: str,
        evidence: Sequence[str],
        cause: str,
        change: Change,
    ) -> Finding:
        """A finding of this check; `where` are readings of iterations, or their keys."""
        keys = [[each] if isinstance(each, str) else each.keys for each in where]
        return Finding(
            self.name,
            grade,
            tuple(key for each in keys for key in each),
            title,
            tuple(evidence),
            cause,
            change,
        )


def change_of(reading: Reading, place: str, suggested: Any) -> Change:
    """A change of the recipe of an iteration.

    Args:
        reading: of the iteration; what its recipe says now is read from it.
        place: within the recipe, such as `update_policy.learning_rate` or `score_rollouts.rewards[0].weight`.
        suggested: a value, or a sentence.
    """
    now: Any = reading.recipe
    for part in re.findall(r"\w+", place):
        now = now[int(part)] if part.isdecimal() else getattr(now, part, None)
    shown = suggested if isinstance(suggested, str) else written(suggested)
    return Change(f"recipes.{reading.recipe_name}.{place}", written(now), shown)


def reward_change(reading: Reading, place: int, field: str, suggested: Any) -> Change:
    """A change of a field of a reward function, given by its place among those of the recipe."""
    return change_of(reading, f"score_rollouts.rewards[{place}].{field}", suggested)


def slower(reading: Reading, factor: float) -> Change:
    """A learning rate so many times lower than that of an iteration."""
    place = "update_policy.learning_rate"
    return change_of(reading, place, rounded(reading.recipe.update_policy.learning_rate / factor))


def rounded(value: float) -> float:
    """To two digits, as a person would write a setting."""
    return float(f"{value:.2g}")


def written(value: Any) -> str:
    """A setting as params.yaml would have it: what is at its default is left out."""
    if isinstance(value, Model):
        dumped = value.model_dump(mode="json", exclude_defaults=True, serialize_as_any=True)
        return flow({"name": value.name, **dumped} if isinstance(value, Component) else dumped)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    return flow(value)
