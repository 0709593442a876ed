"""Upgrades in steps: columns renamed, computed, dropped; whole tables and a few columns give the same."""

import itertools
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rollbook.tables.schemas import versions
from rollbook.tables.schemas.versions import (
    Derived,
    Upgrade,
    column_names,
    constant,
    newest,
    refusal,
    stored_columns,
    unknown,
    upgrade,
)

STEPS = {
    1: Upgrade({"seconds": Derived(lambda t: pc.divide(t["ms"], 1000.0), ("ms",))}, ("ms",)),
    2: Upgrade({"label": constant("none"), "left": unknown(pa.string())}),
    3: Upgrade(
        {
            "rate": Derived(lambda t: pc.divide(t["tokens"], t["seconds"]), ("tokens", "seconds")),
            "tokens": Derived(lambda t: pc.negate(t["tokens"]), ("tokens",)),
        },
        ("label",),
    ),
}
FIRST = pa.table({"id": ["a", "b"], "ms": [500.0, 2000.0], "tokens": [1.0, 4.0]})
LAST = {
    "id": ["a", "b"],
    "tokens": [-1.0, -4.0],
    "seconds": [0.5, 2.0],
    "left": [None, None],
    "rate": [2.0, 2.0],
}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "UPGRADES", {"times": STEPS})


def test_a_whole_table_takes_every_step() -> None:
    table = upgrade(FIRST, "times/mine", 1)
    assert table.to_pydict() == LAST
    assert table.column_names == column_names("times", 1, FIRST.column_names)
    assert upgrade(table, "times", 4) is table
    assert upgrade(upgrade(FIRST, "other", 1), "times", 1).equals(table)


@pytest.mark.parametrize("count", range(4))
def test_a_few_columns_are_made_of_those_they_need(count: int) -> None:
    for wanted in itertools.permutations(LAST, count):
        stored = FIRST.select(stored_columns("times", 1, wanted))
        found = upgrade(stored, "times", 1, wanted)
        assert found.column_names == list(wanted) and found.num_rows == 2
        assert found.to_pydict() == {name: LAST[name] for name in wanted}


def test_what_is_needed_is_known_by_column() -> None:
    assert stored_columns("times", 1, ["rate"]) == ["tokens", "ms"]
    assert stored_columns("times", 1, ["left"]) == []
    assert stored_columns("times", 4, ["left", "rate"]) == ["left", "rate"]
    assert stored_columns("times", 3, ["left", "rate"]) == ["left", "tokens", "seconds"]


def test_versions_that_can_be_read() -> None:
    assert newest("times/mine") == 4 and newest("other") == 1
    assert [version for version in range(-1, 7) if refusal("times", version) is None] == [
        1,
        2,
        3,
        4,
    ]
    assert refusal("times", "2") is not None and refusal("times", None) is not None


def test_a_look_at_columns_needs_no_schema() -> None:
    code = "import sys, rollbook.project.run.stored; print('pandera' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
