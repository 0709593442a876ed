"""What a replay says: of every output, of a step, and of all of them as an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How what a replay made relates to what is stored; `str` of it is what is shown."""

    IDENTICAL = "identical"
    SAME_CONTENT = "same content"
    WITHIN_TOLERANCE = "within tolerance"
    NOT_REPLAYED = "not replayed"
    DIFFERENT = "different"


BADNESS = tuple(Outcome)
"""From the best outcome to the worst."""
EXIT_CODES = {Outcome.DIFFERENT: 1, Outcome.NOT_REPLAYED: 2}
"""Of the outcomes that are no success."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes; `identical` of none."""
    return max(outcomes, key=BADNESS.index, default=Outcome.IDENTICAL)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if all are as they were, 1 if one differs, else 2 if one could not be replayed or compared."""
    return EXIT_CODES.get(worst(outcomes), 0)


@dataclass(frozen=True)
class Difference:
    """Two versions of an artifact beside each other.

    Attributes:
        outcome: how they relate.
        text: why bytes differ, or the first difference and how many there are; empty where nothing differs.
        facts: the same as JSON values.
        apart: the largest distance of two numbers, as a tolerance counts it, if nothing but numbers differs: the
            smallest tolerance that would do. None: nothing differs, or something that no tolerance is for.
    """

    outcome: Outcome
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    apart: float | None = None


@dataclass(frozen=True)
class OutputVerdict:
    """One output of a step.

    Attributes:
        path: of the artifact, relative to the project.
        recorded: its md5 in the lock file.
        replayed: md5 of what the replay made.
        comparison: of the two; and of copies that are not what was recorded, which make it `different`.
    """

    path: str
    recorded: str
    replayed: str
    comparison: Difference


@dataclass(frozen=True)
class EnvironmentChange:
    """Something around a step that is not as it was: a package, the processor, a file of code."""

    what: str
    then: str
    now: str


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may be apart.

    Attributes:
        numbers: of tables and metrics, relative to the larger of both numbers and 1; 0 asks for the same bits.
        weights: of policies and optimizer states, relative to the largest of their tensor; likewise.
        reason: why they are not 0; empty where they are.
    """

    numbers: float = 0.0
    weights: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class StepVerdict:
    """One step.

    Attributes:
        step: its label, such as `update_policy@i0001`.
        outcome: the worst of its outputs.
        problem: why it could not be replayed; empty if it was.
        outputs: all it makes but run_info, which says what varies.
        tolerance: that numbers were judged by.
        environment: what is not as it was when it ran first.
        code_since: files of the project's code and settings that changed since, and how.
        code, settings: where the code and the params.yaml of the replay were taken from.
        notes: what else is worth knowing, such as stored copies that are not what the step read.
        seconds: the replay took.
        seconds_then: the step took when it ran first.
    """

    step: str
    outcome: Outcome
    problem: str = ""
    outputs: Sequence[OutputVerdict] = ()
    tolerance: Tolerance = Tolerance()
    environment: Sequence[EnvironmentChange] = ()
    code_since: Sequence[str] = ()
    code: str = ""
    settings: str = ""
    notes: Sequence[str] = ()
    seconds: float = 0.0
    seconds_then: float = 0.0

    @property
    def first_difference(self) -> str:
        """The text of the worst output, with its path; the problem of a step that could not be replayed."""
        if self.problem:
            return self.problem
        telling = [each for each in self.outputs if each.comparison.text]
        if not telling:
            return ""
        found = max(telling, key=lambda each: BADNESS.index(each.comparison.outcome))
        return f"{found.path}: {found.comparison.text}"

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)
