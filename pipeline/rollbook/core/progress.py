"""Progress of a stage: a bar with rate and time left on a terminal, one line at the end elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rollbook.core.process import seconds_since_start


@dataclass(frozen=True)
class ProgressRecord:
    """What a progress bar counted.

    Attributes:
        unit: of `done` and `reused`, such as `rollouts`.
        done: units made, those reused from a stopped run included.
        amount: counted beside it, in `rate_unit`, such as tokens.
        seconds: that the work took.
        per_second: `rate_unit` per second.
        first_at: seconds from the start of the process until the first work was done; None if none was.
    """

    unit: str = ""
    done: int = 0
    reused: int = 0
    amount: int = 0
    rate_unit: str = ""
    seconds: float = 0.0
    per_second: float = 0.0
    first_at: float | None = None


@dataclass
class Progress:
    """Counts work done. Use as a context manager.

    Attributes:
        label: what is being done, such as `generate_rollouts@i0003`.
        total: units of work in all.
        unit: name of a unit, such as `rollouts`.
        rate_unit: name of what the rate is counted in, such as `tokens`; default the unit.
        reused: units that were there before; they are done, and count in no rate.
        first_at: seconds from the start of the process until the first work was done.
    """

    label: str
    total: int
    unit: str
    rate_unit: str = ""
    done: int = 0
    amount: int = 0
    seconds: float = 0.0
    reused: int = 0
    first_at: float | None = None
    _started: float = field(default_factory=time.perf_counter)
    _bar: Any = None

    def __enter__(self) -> Progress:
        self._started = time.perf_counter()
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total,
                desc=self.label,
                unit=f" {self.unit}",
                leave=False,
                dynamic_ncols=True,
            )
        return self

    def update(self, done: int, amount: int = 0) -> None:
        """Adds finished units, and the amount (such as tokens) they came to."""
        if self.first_at is None and done + amount:
            self.first_at = round(seconds_since_start(), 3)
        self.done += done
        self.amount += amount
        if self._bar is not None:
            if self.rate_unit:
                elapsed = time.perf_counter() - self._started
                self._bar.set_postfix_str(
                    f"{self.amount / max(elapsed, 1e-9):,.0f} {self.rate_unit}/s", refresh=False
                )
            self._bar.update(done)

    def reuse(self, done: int) -> None:
        """Adds units that an earlier run had finished."""
        self.reused += done
        self.done += done
        if self._bar is not None:
            self._bar.initial += done
            self._bar.update(done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        if self._bar is not None:
            self._bar.close()

    @property
    def rate(self) -> float:
        """Amount (or units) per second."""
        made = self.amount if self.rate_unit else self.done - self.reused
        return made / max(self.seconds, 1e-9)

    def summary(self) -> str:
        amount = f", {self.amount:,} {self.rate_unit}" if self.rate_unit else ""
        speed = f"{self.rate:,.0f} {self.rate_unit or self.unit}/s"
        reused = (
            f", {self.reused:,} of them kept from a run that was stopped" if self.reused else ""
        )
        return f"{self.done:,} {self.unit}{reused}{amount} in {self.seconds:.1f} s ({speed})"

    def record(self) -> ProgressRecord:
        """What it counted, for run_info."""
        return ProgressRecord(
            unit=self.unit,
            done=self.done,
            reused=self.reused,
            amount=self.amount,
            rate_unit=self.rate_unit or self.unit,
            seconds=round(self.seconds, 3),
            per_second=round(self.rate, 1),
            first_at=self.first_at,
        )
