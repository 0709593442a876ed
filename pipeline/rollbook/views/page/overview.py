"""The first thing on the page: how far the run came, what it was told to do, and what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.core.text import listed
from rollbook.project.ancestry import short_commit, span
from rollbook.rl.evaluation import paired_difference
from rollbook.settings.recipe_words import recipe_in_words, stretches
from rollbook.views.page.shown import Row, ShownChain
from rollbook.views.show.sections import NOTHING, Grid, KeyValues, Part

JUDGED = ("prompt_id", "set", "greedy", "reward")
"""Columns of an evaluation that a difference is computed from."""


@dataclass(frozen=True)
class Tile:
    """A number that is seen first.

    Attributes:
        label: what it is.
        value: the number.
        note: what stands below it.
    """

    label: str
    value: str
    note: str = ""


def tiles(shown: ShownChain) -> Iterator[Tile]:
    """The numbers of a run that has any."""
    done = len(shown.finished)
    rest = len(shown.keys) - done
    yield Tile("iterations", f"{done}", f"{rest} to go" if rest else "all finished")
    if rollouts := sum(
        table.rows for item in shown.begun if (table := item.find_table("rollouts"))
    ):
        yield Tile("rollouts on disk", f"{rollouts:,}")
    for name in shown.sets:
        rows = [row for row in shown.rows if row["set"] == name and row["mean"] is not None]
        if rows:
            first, last = rows[0], rows[-1]
            yield Tile(
                f"{name}, {at_samples('mean', shown)}",
                f"{first['mean']:.3f} → {last['mean']:.3f}",
                _lift(shown, first["iteration"], last["iteration"], name),
            )
    rewards = [row["reward"] for row in shown.rows if row["reward"] is not None]
    if rewards:
        yield Tile("mean training reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f}")


def at_samples(what: str, shown: ShownChain) -> str:
    """What a number over the samples of an evaluation is called, such as `mean@4`."""
    return f"{what}@{' or '.join(map(str, shown.samples))}"


def edited(shown: ShownChain) -> str:
    """One line where params.yaml says another thing now than what ran; empty where it does not."""
    parts = []
    if shown.changed:
        parts.append(f"another recipe than {listed(shown.changed)} ran with")
    if shown.samples != [shown.run.params.evaluate_policy.samples]:
        parts.append("another number of samples than the evaluations have")
    if not parts:
        return ""
    return (
        f"params.yaml has {' and '.join(parts)}; this page tells what ran, "
        "`rollbook check` what would run again"
    )


def _lift(shown: ShownChain, first: str, last: str, name: str) -> str:
    """Paired difference of two policies on one set, if their evaluations are here."""
    before, after = (shown.run.find_table("evaluations", key) for key in (first, last))
    if first == last or before is None or after is None:
        return ""
    difference, low, high = paired_difference(before.all(JUDGED), after.all(JUDGED), name)
    if not math.isfinite(low):
        return ""
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}] on the same prompts"


def evaluation(shown: ShownChain) -> list[Part]:
    """Evaluation by iteration with its intervals."""
    if not shown.rows:
        return []
    by_key: dict[str, list[Row]] = {}
    for row in shown.rows:
        by_key.setdefault(row["iteration"], []).append(row)
    several = len(shown.sets) > 1
    head = ["policy", "recipe"]
    for name in shown.sets:
        of = f"{name} " if several else ""
        head += [
            f"{of}{at_samples('mean', shown)}",
            f"{of}95 %",
            f"{of}greedy",
            f"{of}{at_samples('pass', shown)}",
        ]
    head += ["training reward", "tokens"]
    return [Grid(head, [_cells(shown, key, rows) for key, rows in by_key.items()], head[2:])]


def _cells(shown: ShownChain, key: str, rows: list[Row]) -> list[str]:
    by_set = {row["set"]: row for row in rows}
    cells = [key, shown.recipe(key)]
    for name in shown.sets:
        row = by_set.get(name, {})
        low, high = row.get("mean_low"), row.get("mean_high")
        cells += [
            figure(row.get("mean")),
            "" if low is None or high is None else f"{low:.3f} – {high:.3f}",
            figure(row.get("greedy")),
            figure(row.get("pass")),
        ]
    return [*cells, figure(rows[0]["reward"]), figure(rows[0]["completion_length"], 1)]


def figure(value: float | None, digits: int = 3) -> str:
    """A number of a table."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def recipes(shown: ShownChain) -> Iterator[tuple[str, list[Part]]]:
    """Every stretch of iterations under one recipe: what it is called, and the recipe in words."""
    for keys in stretches(shown.keys, shown.recipe):
        references = [shown.every[key].reference for key in keys]
        recipe = shown.every[keys[0]].recipe.model_dump(mode="json", serialize_as_any=True)
        words = recipe_in_words(
            recipe, shown.run.params.data.train_labels, references, explained=True
        )
        yield f"{shown.recipe(keys[0])}, {span(keys)}", [KeyValues(words, told=True)]


def made_from(shown: ShownChain) -> list[Part]:
    """Base policy, seed and commit."""
    pairs = [("base policy", base_name(shown))]
    if digest := shown.run.policy_digest(BASE_KEY):
        pairs.append(("its digest", short(digest)))
    if shown.finished and (digest := shown.run.policy_digest(shown.finished[-1])):
        pairs.append((f"policy {shown.finished[-1]}", short(digest)))
    pairs.append(("seed", str(shown.run.params.seed)))
    infos = (shown.every[key].info("update_policy") for key in shown.finished)
    commits = dict.fromkeys(info.environment.git.shown for info in infos if info is not None)
    if found := [short_commit(commit) for commit in commits if commit]:
        pairs.append(("commit", ", ".join(found)))
    return [KeyValues(pairs)]


def base_name(shown: ShownChain) -> str:
    """What the base policy is called, with its revision if it is of a hub."""
    base = shown.run.params.policy.base
    revision = getattr(base, "revision", None)
    name = str(getattr(base, "model", None) or base.path or base.name)
    return name if revision is None else f"{name}@{short(str(revision))}"
