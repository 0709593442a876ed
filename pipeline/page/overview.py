"""The first thing on the page: how far the run came, what it was told to do, and what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.ancestry import short_commit, span
from pipeline.evaluation import paired_difference
from pipeline.hashing import short
from pipeline.ids import BASE_KEY
from pipeline.page.run import Row, Run
from pipeline.recipe_words import recipe_in_words, stretches
from pipeline.run.store import Store
from pipeline.showing.sections import NOTHING, Grid, Pairs, Part
from pipeline.showing.tables import stored
from pipeline.visible import listed

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


def tiles(run: Run) -> Iterator[Tile]:
    """The numbers of a run that has any."""
    done = len(run.finished)
    rest = len(run.chain) - done
    yield Tile("iterations", f"{done}", f"{rest} to go" if rest else "all finished")
    if rollouts := sum(table.rows for key in run.begun if (table := stored("rollouts", key))):
        yield Tile("rollouts on disk", f"{rollouts:,}")
    for name in run.sets:
        rows = [row for row in run.rows if row["set"] == name and row["mean"] is not None]
        if rows:
            first, last = rows[0], rows[-1]
            yield Tile(
                f"{name}, {at_samples('mean', run)}",
                f"{first['mean']:.3f} → {last['mean']:.3f}",
                _lift(first["iteration"], last["iteration"], name),
            )
    rewards = [row["reward"] for row in run.rows if row["reward"] is not None]
    if rewards:
        yield Tile("mean training reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f}")


def at_samples(what: str, run: Run) -> str:
    """What a number over the samples of an evaluation is called, such as `mean@4`."""
    return f"{what}@{' or '.join(map(str, run.samples))}"


def edited(run: Run) -> str:
    """One line where params.yaml says another thing now than what ran; empty where it does not."""
    parts = []
    if run.changed:
        parts.append(f"another recipe than {listed(run.changed)} ran with")
    if run.samples != [run.params.evaluate_policy.samples]:
        parts.append("another number of samples than the evaluations have")
    if not parts:
        return ""
    return (
        f"params.yaml has {' and '.join(parts)}; this page tells what ran, "
        "`rollbook check` what would run again"
    )


def _lift(first: str, last: str, name: str) -> str:
    """Paired difference of two policies on one set, if their evaluations are here."""
    before, after = (stored("evaluations", key) for key in (first, last))
    if first == last or before is None or after is None:
        return ""
    difference, low, high = paired_difference(before.all(JUDGED), after.all(JUDGED), name)
    if not math.isfinite(low):
        return ""
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}] on the same prompts"


def evaluation(run: Run) -> list[Part]:
    """Evaluation by iteration with its intervals."""
    if not run.rows:
        return []
    by_key: dict[str, list[Row]] = {}
    for row in run.rows:
        by_key.setdefault(row["iteration"], []).append(row)
    several = len(run.sets) > 1
    head = ["policy", "recipe"]
    for name in run.sets:
        of = f"{name} " if several else ""
        head += [
            f"{of}{at_samples('mean', run)}",
            f"{of}95 %",
            f"{of}greedy",
            f"{of}{at_samples('pass', run)}",
        ]
    head += ["training reward", "tokens"]
    return [Grid(head, [_cells(run, key, rows) for key, rows in by_key.items()], head[2:])]


def _cells(run: Run, key: str, rows: list[Row]) -> list[str]:
    by_set = {row["set"]: row for row in rows}
    cells = [key, run.recipe(key)]
    for name in run.sets:
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


def recipes(run: Run) -> Iterator[tuple[str, list[Part]]]:
    """Every stretch of iterations under one recipe: what it is called, and the recipe in words."""
    for keys in stretches(run.chain, run.recipe):
        references = [run.params.every_iteration[key].reference for key in keys]
        recipe = run.readings[keys[0]].recipe.model_dump(mode="json", serialize_as_any=True)
        words = recipe_in_words(recipe, run.params.data.train_labels, references, explained=True)
        yield f"{run.recipe(keys[0])}, {span(keys)}", [Pairs(words, told=True)]


def made_from(run: Run) -> list[Part]:
    """Base policy, seed and commit."""
    pairs = [("base policy", base_name(run))]
    if digest := run.stored.digest(BASE_KEY):
        pairs.append(("its digest", short(digest)))
    if run.finished and (digest := run.stored.digest(run.finished[-1])):
        pairs.append((f"policy {run.finished[-1]}", short(digest)))
    pairs.append(("seed", str(run.params.seed)))
    commits = []
    for key in run.finished:
        info = Store().info("update_policy", key)
        if info and (commit := info.environment.git.shown):
            commits.append(short_commit(commit))
    if commits:
        pairs.append(("commit", ", ".join(dict.fromkeys(commits))))
    return [Pairs(pairs)]


def base_name(run: Run) -> str:
    """What the base policy is called, with its revision if it is of a hub."""
    base = run.params.policy.base
    revision = getattr(base, "revision", None)
    name = str(getattr(base, "model", None) or base.path or base.name)
    return name if revision is None else f"{name}@{short(str(revision))}"
