"""What `rollbook rescore` prints: few iterations in full, of many a line each and what moved most over all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from rollbook.core.errors import RewardError
from rollbook.core.ids import BASE_KEY
from rollbook.core.text import listed
from rollbook.project.run.store import Store
from rollbook.rl.rescoring import DIGITS, MOVED, Numbers, most_moved, summary
from rollbook.settings.config import Params

if TYPE_CHECKING:
    from rich.text import Text

IN_FULL = 3
"""Iterations that are shown with all their numbers; of more, each gets a line."""
SHOWN_TEXT = 48
SHOWN_ERRORS = 3
SHOWN_KEYS = 3
COUNTED_ERRORS = 1000
"""Different errors that are counted; texts that differ from row to row must not fill the memory."""
NOTHING = "–"
ON_POLICY = "on-policy"
WORTH = (
    f"worth {ON_POLICY}: the base policy sampled, so the numbers hold for training with these rewards. Later ones were "
    "sampled by policies that the old rewards have trained: the share is what they count as samples of the iteration's "
    "reference, unknown without its log-probs."
)


@dataclass
class Shown:
    """Prints what becomes of iterations. Use as a context manager: what there is is shown even if a later one fails.

    Attributes:
        run: that was asked about.
        count: iterations that there will be; up to IN_FULL, each is printed in full as soon as it is there.
        numbers: of `rollbook.rl.rescoring.summary`, by iteration.
    """

    run: Store
    count: int
    numbers: dict[str, Numbers] = field(default_factory=dict)
    _errors: Counter[str] = field(default_factory=Counter)
    _moved: pa.Table | None = None

    def __enter__(self) -> Shown:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.numbers and self.count > IN_FULL:
            self._show_lines()

    def add(self, key: str, table: pa.Table) -> None:
        """Takes the rescores table of an iteration; of its rows only those that moved most are kept."""
        numbers = summary(table, self.run.params.every_iteration[key].previous)
        self.numbers[key] = numbers
        counted = table["error"].drop_null().value_counts().to_pylist()
        errors = Counter({item["values"]: item["counts"] for item in counted})
        self._errors.update(errors)
        self._errors = Counter(dict(self._errors.most_common(COUNTED_ERRORS)))
        moved = most_moved(table.select(MOVED)) if scored(numbers) else None
        if self.count <= IN_FULL:
            self._show_block(key, errors, moved)
        elif moved is not None:
            before = [] if self._moved is None else [self._moved]
            self._moved = most_moved(pa.concat_tables([*before, moved]))

    @property
    def answered(self) -> dict[str, Numbers]:
        """The numbers of iterations in which some rollout has a reward."""
        return {key: numbers for key, numbers in self.numbers.items() if scored(numbers)}

    def warn(self) -> None:
        """Names iterations that the rewards say nothing about."""
        silent = [key for key in self._unanswered() if not self.numbers[key]["errors"]]
        if silent:
            click.echo(
                f"warning: no reward applies to any rollout of {listed(silent, SHOWN_KEYS)}; do the data have the "
                "columns and reference answers that the rewards read?",
                err=True,
            )

    def refuse_failed(self) -> None:
        """Raises RewardError if in some iteration rewards failed and no rollout has one."""
        failed = [key for key in self._unanswered() if self.numbers[key]["errors"]]
        if failed:
            count = sum(self.numbers[key]["errors"] for key in failed)
            lines = [
                f"no rollout of {listed(failed, SHOWN_KEYS)} could be scored: {count} errors, such as"
            ]
            lines += [f"  - {text}" for text in _frequent(self._errors)]
            raise RewardError("\n".join(lines), "mend what the errors name, then ask again")

    def _unanswered(self) -> list[str]:
        """Iterations with rollouts of which none has a reward."""
        return [
            key
            for key, numbers in self.numbers.items()
            if numbers["rollouts"] and not scored(numbers)
        ]

    # --- one iteration in full ----------------------------------------------------------------------

    def _show_block(self, key: str, errors: Counter[str], moved: pa.Table | None) -> None:
        numbers = self.numbers[key]
        click.echo(f"{key}: {numbers['rollouts']} rollouts in {numbers['groups']} groups")
        for name, text in self._lines(key).items():
            click.echo(f"  {name:<20}{text}")
        for text in _frequent(errors):
            click.echo(f"  error: {text}")
        if moved is None:
            click.echo()
        else:
            _show_moved(self.run, "  moved most:", "  no rollout moved\n", moved)

    def _lines(self, key: str) -> dict[str, str]:
        """Numbers in words, by label; without a reward there is nothing to compare."""
        numbers = self.numbers[key]
        not_scored = {
            "not scored": f"{numbers['null']} that no reward applies to, {numbers['errors']} errors"
        }
        if not scored(numbers):
            return not_scored
        before, after = (
            numbers["groups_kept"] + numbers[f"groups_{name}"] for name in ("lost", "gained")
        )
        return {
            "mean reward": f"{_means(numbers)}, "
            f"rank correlation {number(numbers['rank_correlation'])}",
            "advantages": f"{numbers['sign_flips']} change sign ({numbers['sign_flips_share']:.1%}), "
            f"mean |change| {number(numbers['advantage_change'])}",
            "groups with signal": f"{before} → {after}: {numbers['groups_gained']} gained, "
            f"{numbers['groups_lost']} lost",
            **not_scored,
            "valid for": validity(self.run.params, key, float(numbers["effective_share"])),
        }

    # --- many iterations ----------------------------------------------------------------------------

    def _show_lines(self) -> None:
        """A line per iteration, then errors and what moved most over all of them."""
        from rollbook.cli.console import console, show, table

        shown = table(
            "iteration",
            "rollouts",
            "mean reward",
            "rank corr.",
            "sign flips",
            "gained",
            "lost",
            "null",
            "errors",
            "worth",
        )
        for key in self.numbers:
            shown.add_row(*self._row(key))
        show("Groups gained or lost: they have a signal only now, or only before.", shown)
        console().print(WORTH, markup=False)
        for text in _frequent(self._errors):
            click.echo(f"error: {text}")
        if self._moved is not None:
            click.echo()
            _show_moved(self.run, "Moved most:", "no rollout moved", self._moved)

    def _row(self, key: str) -> Iterator[str]:
        numbers = self.numbers[key]
        yield from (key, str(numbers["rollouts"]), _means(numbers))
        yield number(numbers["rank_correlation"])
        for name in ("sign_flips", "groups_gained", "groups_lost"):
            yield str(numbers[name]) if scored(numbers) else NOTHING
        yield from (str(numbers["null"]), str(numbers["errors"]))
        share = float(numbers["effective_share"])
        if numbers["on_policy"]:
            yield ON_POLICY
        else:
            yield "unknown" if math.isnan(share) else f"{share:.1%}"


def scored(numbers: Numbers) -> bool:
    """Whether any rollout has a reward."""
    return numbers["rollouts"] > numbers["null"] + numbers["errors"]


def validity(params: Params, key: str, effective: float) -> str:
    """For which policy the numbers of a re-score hold.

    Args:
        params: of the project.
        key: the iteration.
        effective: of `rollbook.rl.rescoring.effective_share`; NaN: unknown.
    """
    item = params.every_iteration[key]
    if item.previous == BASE_KEY:
        return "training with these rewards: the base policy sampled, exactly on-policy"
    holds = f"the policy {item.previous}, which the old rewards have trained"
    if math.isnan(effective):
        return f"{holds}; how far it had moved is unknown: no log-probs of a reference are stored"
    return f"{holds}; as samples of {item.reference} they are worth {effective:.1%} of their number"


def number(value: float | None, digits: int = DIGITS) -> str:
    """With so many significant digits; a dash for None and NaN."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _means(numbers: Numbers) -> str:
    return f"{number(numbers['old_reward'], 4)} → {number(numbers['reward'], 4)}"


def _frequent(errors: Counter[str]) -> list[str]:
    """The most frequent errors, with their counts."""
    ranked = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    return [f"{text} ({count} rollouts)" for text, count in ranked[:SHOWN_ERRORS]]


def _show_moved(run: Store, title: str, nothing: str, moved: pa.Table) -> None:
    """Rows of `most_moved` as a table, with the ends of their answers."""
    from rollbook.cli.console import show, table

    if not moved.num_rows:
        click.echo(nothing)
        return
    shown = table("rollout", "reward", "advantage", "answer")
    for row in moved.to_pylist():
        shown.add_row(
            row["rollout_id"],
            f"{number(row['old_reward'])} → {number(row['reward'])}",
            f"{number(row['old_advantage'])} → {number(row['advantage'])}",
            _shortened(_text_of(run, row["iteration"], row["rollout_id"])),
        )
    show(title, shown)


def _text_of(run: Store, key: str, rollout: str) -> str:
    """Clean text of a rollout; no other row or column is held in memory."""
    found = run.table("rollouts", key).where("rollout_id", rollout, ["text"])
    return str(found["text"][0])


def _shortened(text: str) -> Text:
    """The end of a text, where answers stand, on one line; never read as markup."""
    from rich.text import Text

    line = " ".join(text.split())
    return Text(line if len(line) <= SHOWN_TEXT else f"…{line[1 - SHOWN_TEXT :]}")
