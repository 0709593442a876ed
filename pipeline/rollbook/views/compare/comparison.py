"""Two policies side by side, of one project or of two revisions of it: settings, curves, a test on the same prompts.

Read from git, reports/curves.csv and the evaluation tables of the two; no policy is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.core.component import Model
from rollbook.core.field_docs import meaning_of
from rollbook.core.yaml import flow
from rollbook.rl.evaluation import RIGHT_FROM, Z95, interval, paired_difference, prompt_means
from rollbook.settings.recipe_words import SettingDifference, differences
from rollbook.tables.artifacts import finite
from rollbook.views.compare.sides import NUMBERS, Side

TEXTS = ("prompt", "reference_answer", "text")

Means = tuple[Mapping[str, float], Mapping[str, float]]
"""Mean sampled reward per prompt, for side A and side B."""


@dataclass(frozen=True)
class Stretch:
    """Steps of both chains that ran under the same two recipes.

    Attributes:
        first, last: the steps, counted from 1.
        names: of the recipes in either params.yaml.
        settings: what differs between them.
    """

    first: int
    last: int
    names: tuple[str, str]
    settings: Sequence[SettingDifference]


@dataclass(frozen=True)
class Test:
    """The final evaluation of a set, on the prompts that both have answered.

    Attributes:
        set: its name.
        prompts: of the first, of the second, and in common.
        means: of prompt means over the sampled answers, on the prompts in common.
        difference, low, high: second less first, and its 95 % interval; NaN with fewer than two prompts.
        better, worse: prompts with a higher and with a lower mean in the second.
    """

    set: str
    prompts: tuple[int, int, int]
    means: tuple[float, float]
    difference: float
    low: float
    high: float
    better: int
    worse: int

    @property
    def p_value(self) -> float:
        """Two-sided, normal: how often chance alone would differ at least as much; NaN where there is no interval."""
        deviation = (self.high - self.low) / (2 * Z95)
        if deviation == 0:
            return 0.0 if self.difference else 1.0
        return math.erfc(abs(self.difference) / deviation / math.sqrt(2))


@dataclass(frozen=True)
class ComparedAnswer:
    """What a policy said to a prompt: its mean reward, and the first sampled answer that stands on that side."""

    mean: float
    text: str
    reward: float | None


@dataclass(frozen=True)
class Changed:
    """A prompt that one of the two answers right and the other wrong."""

    set: str
    prompt_id: str
    prompt: str
    reference_answer: str | None
    answers: tuple[ComparedAnswer, ComparedAnswer]

    @property
    def became_right(self) -> bool:
        return self.answers[1].mean >= RIGHT_FROM


@dataclass(frozen=True)
class Comparison:
    """Everything that `rollbook compare` shows.

    Attributes:
        sides: the two.
        shared: leading iterations whose policies are the same, byte for byte, in both.
        settings: what differs outside of the recipes.
        stretches: recipes by step.
        last_recipes: what differs between the recipes that the two policies themselves were trained under; empty where
            their chains are equally long, since the last stretch says it.
        evaluated_alike: whether the settings of evaluate_policy are the same.
        tests: by set that both were evaluated on.
        became_right, became_wrong: how many prompts changed sides.
        changed: those of them that moved most.
    """

    sides: tuple[Side, Side]
    shared: Sequence[str]
    settings: Sequence[SettingDifference]
    stretches: Sequence[Stretch]
    last_recipes: Sequence[SettingDifference]
    evaluated_alike: bool
    tests: Sequence[Test]
    became_right: int
    became_wrong: int
    changed: Sequence[Changed]

    def as_json(self) -> dict[str, Any]:
        """As JSON values; numbers that are not finite are null."""
        found: dict[str, Any] = {
            "sides": [
                {
                    "name": side.revision.name,
                    "commit": side.revision.commit or None,
                    "policy": side.key,
                    "chain": side.chain,
                    "curves": list(side.rows),
                }
                for side in self.sides
            ],
            "same_policies": list(self.shared),
            "settings": [_setting(each) for each in self.settings],
            "recipes": [
                {
                    "steps": [each.first, each.last],
                    "names": each.names,
                    "settings": [_setting(setting) for setting in each.settings],
                }
                for each in self.stretches
            ],
            "last_recipes": [_setting(each) for each in self.last_recipes],
            "evaluated_alike": self.evaluated_alike,
            "evaluation": [
                {
                    "set": each.set,
                    "prompts": dict(zip(("a", "b", "common"), each.prompts, strict=True)),
                    "means": list(each.means),
                    "difference": each.difference,
                    "low": each.low,
                    "high": each.high,
                    "p_value": each.p_value,
                    "better": each.better,
                    "worse": each.worse,
                }
                for each in self.tests
            ],
            "became_right": self.became_right,
            "became_wrong": self.became_wrong,
            "changed": [
                {
                    "set": each.set,
                    "prompt_id": each.prompt_id,
                    "prompt": each.prompt,
                    "reference_answer": each.reference_answer,
                    "answers": [
                        {"mean": answer.mean, "text": answer.text, "reward": answer.reward}
                        for answer in each.answers
                    ],
                }
                for each in self.changed
            ],
        }
        return finite(found)


def _setting(each: SettingDifference) -> dict[str, Any]:
    return {"place": each.place, "values": list(each.values), "meaning": each.meaning}


def compare(first: Side, second: Side, examples: int) -> Comparison:
    """Compares two policies and how they came to be.

    Args:
        first, second: the two.
        examples: prompts that changed sides, at most.

    Raises:
        ArtifactError: if the final evaluation of one is not on this machine, or damaged.
        ConfigError: if today's Rollbook cannot read the params.yaml of one.
    """
    sides = (first, second)
    means = {name: _means(sides, name) for name in _sets_of_both(sides)}
    moved = sorted(
        (
            (name, prompt)
            for name, (before, after) in means.items()
            for prompt in before.keys() & after.keys()
            if (before[prompt] >= RIGHT_FROM) != (after[prompt] >= RIGHT_FROM)
        ),
        key=lambda each: (-abs(_gain(means, *each)), each),
    )
    became_right = sum(_gain(means, *each) > 0 for each in moved)
    evaluation = differences(
        first.params.evaluate_policy, second.params.evaluate_policy, "evaluate_policy"
    )
    return Comparison(
        sides,
        shared=_shared(sides),
        settings=[*_run_settings(sides), *evaluation],
        stretches=_stretches(sides),
        last_recipes=_last_recipes(sides),
        evaluated_alike=not evaluation,
        tests=[_test(sides, name, found) for name, found in means.items()],
        became_right=became_right,
        became_wrong=len(moved) - became_right,
        changed=_changed(sides, means, moved[:examples]),
    )


def _shared(sides: tuple[Side, Side]) -> list[str]:
    found: list[str] = []
    for one, other in zip(*(side.chain for side in sides), strict=False):
        digests = (sides[0].digest(one), sides[1].digest(other))
        if one != other or None in digests or digests[0] != digests[1]:
            break
        found.append(one)
    return found


def _run_settings(sides: tuple[Side, Side]) -> Iterator[SettingDifference]:
    """What all iterations of a run have in common: seed, data, base policy."""
    one, two = (side.params for side in sides)
    fields: list[tuple[Model, Model, str, str]] = [(one, two, "", "seed")]
    fields += [(one.data, two.data, "data.", name) for name in type(one.data).model_fields]
    for before, after, place, name in fields:
        values = (_written(before, name), _written(after, name))
        if values[0] != values[1]:
            yield SettingDifference(f"{place}{name}", values, meaning_of(type(before), name), False)
    yield from differences(one.policy, two.policy, "policy")


def _written(model: Model, field: str) -> str:
    dumped = model.model_dump(
        mode="json", include={field}, exclude_none=True, serialize_as_any=True
    )
    return flow(dumped[field])


def _stretches(sides: tuple[Side, Side]) -> list[Stretch]:
    """Neighbouring steps with the same two recipes are one stretch; steps that only one side has are left out."""
    one, two = (side.params for side in sides)
    found: list[Stretch] = []
    for step, keys in enumerate(zip(*(side.chain for side in sides), strict=False), start=1):
        names = (
            one.every_iteration[keys[0]].recipe,
            two.every_iteration[keys[1]].recipe,
        )
        settings = differences(one.recipe_of(keys[0]), two.recipe_of(keys[1]))
        if found and (found[-1].names, found[-1].settings) == (names, settings):
            found[-1] = Stretch(found[-1].first, step, names, settings)
        else:
            found.append(Stretch(step, step, names, settings))
    return found


def _last_recipes(sides: tuple[Side, Side]) -> list[SettingDifference]:
    lengths = [len(side.chain) for side in sides]
    if 0 in lengths or lengths[0] == lengths[1]:
        return []
    one, two = (side.params.recipe_of(side.key) for side in sides)
    return differences(one, two)


def _sets_of_both(sides: tuple[Side, Side]) -> list[str]:
    names = [set(pc.unique(side.evaluations["set"]).to_pylist()) for side in sides]
    return sorted(names[0] & names[1])


def _means(sides: tuple[Side, Side], name: str) -> Means:
    """Mean reward of the sampled answers to each prompt of a set, of either side."""
    one, two = (prompt_means(_sampled(side, name), "reward") for side in sides)
    return one, two


def _sampled(side: Side, name: str) -> pa.Table:
    table = side.evaluations
    return table.filter(pc.and_(pc.equal(table["set"], name), pc.invert(table["greedy"])))


def _gain(means: Mapping[str, Means], name: str, prompt: str) -> float:
    before, after = means[name]
    return after[prompt] - before[prompt]


def _test(sides: tuple[Side, Side], name: str, means: Means) -> Test:
    before, after = means
    common = sorted(before.keys() & after.keys())
    difference, low, high = paired_difference(sides[0].evaluations, sides[1].evaluations, name)
    return Test(
        name,
        (len(before), len(after), len(common)),
        (
            interval([before[prompt] for prompt in common]).mean,
            interval([after[prompt] for prompt in common]).mean,
        ),
        difference,
        low,
        high,
        better=sum(after[prompt] > before[prompt] for prompt in common),
        worse=sum(after[prompt] < before[prompt] for prompt in common),
    )


def _changed(
    sides: tuple[Side, Side],
    means: Mapping[str, Means],
    wanted: Sequence[tuple[str, str]],
) -> list[Changed]:
    """Prompts by set and id with an answer of each side; no other text is read."""
    if not wanted:
        return []
    chosen = pc.field("prompt_id").isin([prompt for _, prompt in wanted])
    rows: list[dict[tuple[str, str], list[dict[str, Any]]]] = []
    for side in sides:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        table = side.revision.table("evaluations", side.key).all((*NUMBERS, *TEXTS)).filter(chosen)
        for row in table.to_pylist():
            if not row["greedy"]:
                found.setdefault((row["set"], row["prompt_id"]), []).append(row)
        rows.append(found)
    made = []
    for name, prompt in wanted:
        answers = [
            _answer(each[name, prompt], means[name][place][prompt])
            for place, each in enumerate(rows)
        ]
        shown = rows[1][name, prompt][0]
        made.append(
            Changed(
                name, prompt, shown["prompt"], shown["reference_answer"], (answers[0], answers[1])
            )
        )
    return made


def _answer(rows: Sequence[Mapping[str, Any]], mean: float) -> ComparedAnswer:
    scored = [row for row in rows if row["reward"] is not None]
    of_that_side = [row for row in scored if (row["reward"] >= RIGHT_FROM) == (mean >= RIGHT_FROM)]
    row = (of_that_side or scored)[0]
    return ComparedAnswer(mean, row["text"], row["reward"])
