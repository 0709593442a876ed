"""Every error Rollbook raises on purpose.

RollbookError                 one message, one hint; printed without a traceback
├── ConfigError               params.yaml or a component's settings: all problems in one report
├── DataError                 a user's data set: file, line, column
├── ArtifactError             a table, folder or JSON file on disk is missing, foreign or damaged
│   └── SchemaError           a table's columns or values break its schema
├── RewardError               a reward function raised or returned something impossible
├── PolicyError               a model folder or hub id cannot be used
├── TrainingError             an update that must not go on (not finite, wrong policy)
└── TrackingError             the MLflow store cannot be reached or refuses; never stops training
    └── StoreError            the project's own store does not open: damaged, or of another MLflow
"""

from __future__ import annotations

import difflib
import errno
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of errors on a disk that is full, or as good as full for this user."""
FREE_SPACE = "free some space and run the same command again; nothing was lost"
"""The way out of them."""
NUMBERED = re.compile(r"(?P<before>.*[A-Za-z@_])(?P<number>[0-9]+)")
"""A name that counts, such as i0003 or update_policy@i0003."""
IN_FULL = 8
"""Names that count on from each other are listed one by one up to here."""


class RollbookError(Exception):
    """Base of all expected failures.

    Args:
        message: where it happened, what was got and what is allowed.
        hint: the nearest way to fix it, or empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    @property
    def line(self) -> str:
        """The same on one line, for what is no terminal."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong in the configuration.

    Attributes:
        where: dotted place in params.yaml, such as `recipes.grpo.update_policy.loss`.
        what: what was got and what is allowed, with the nearest valid name if there is one.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class ConfigError(RollbookError):
    """All problems found in one pass over the configuration."""

    def __init__(self, problems: Sequence[Problem], source: str = "params.yaml") -> None:
        self.problems = list(problems)
        count = len(self.problems)
        title = f"{source}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([title, *(f"  - {problem}" for problem in self.problems)]))


def damaged_text(file: Path, what: str) -> ConfigError:
    """What to raise where a file that git keeps cannot be read as what it should be.

    Args:
        file: that was read; one outside of the project's folder is a copy, and gets no advice.
        what: is wrong with it.
    """
    if not file.is_absolute():
        what += f"; `git diff {file}` shows what was changed, `git checkout {file}` brings the committed one back"
    return ConfigError([Problem("", what)], str(file))


class DataError(RollbookError):
    """A data set that cannot be used as it is."""


class ArtifactError(RollbookError):
    """A file of `artifacts/` that is missing, of another kind or version, or damaged."""


class VersionError(ArtifactError):
    """A whole table or run_info of a version that this Rollbook does not read, such as a newer one."""


class SchemaError(ArtifactError):
    """A table whose columns or values break its schema."""


class RewardError(RollbookError):
    """A reward that raised, or returned NaN, another type or the wrong number of values."""


class PolicyError(RollbookError):
    """A base policy or policy folder that cannot be loaded or used."""


class TrainingError(RollbookError):
    """An update that must stop: a loss that is not finite, rollouts of another policy."""


class TrackingError(RollbookError):
    """An MLflow store that cannot be reached, is busy, or refuses what it is sent."""


class StoreError(TrackingError):
    """The project's own MLflow store does not open: it is damaged, or of another version of MLflow."""


def nearest(name: object, allowed: Iterable[object]) -> str:
    """Says which names are allowed and, if one looks like `name`, asks whether it was meant."""
    names = sorted(str(option) for option in allowed)
    close = closest(str(name), names, 1) or difflib.get_close_matches(
        str(name), names, n=1, cutoff=0.5
    )
    meant = f"did you mean {close[0]!r}? " if close else ""
    shown = ", ".join(_in_short(names))
    return f"{meant}allowed: {shown}" if names else f"{meant}nothing is allowed here"


def closest(name: str, names: Iterable[str], count: int) -> list[str]:
    """Of names that count as `name` does, such as i0006 for i0099, those with the nearest numbers, at most `count`."""
    letters, wanted = _counted(name)
    if wanted is None:
        return []
    numbers = {
        each: number
        for each in names
        for before, number in [_counted(each)]
        if number is not None and before == letters
    }
    return sorted(numbers, key=lambda each: (abs(numbers[each] - wanted), each))[:count]


def _counted(name: str) -> tuple[str, int | None]:
    """What stands before the number that a name ends with, and the number; None if it has none."""
    found = NUMBERED.fullmatch(name)
    return (found["before"], int(found["number"])) if found else (name, None)


def _in_short(names: Sequence[str]) -> Iterator[str]:
    """The names, of many that count on from each other the first and the last."""
    places = enumerate(names)

    def run_of(item: tuple[int, str]) -> tuple[str, int | None]:
        before, number = _counted(item[1])
        return before, None if number is None else number - item[0]

    for (_, apart), items in itertools.groupby(places, key=run_of):
        found = [name for _, name in items]
        if apart is None or len(found) <= IN_FULL:
            yield from found
        else:
            yield f"{found[0]} to {found[-1]}"
