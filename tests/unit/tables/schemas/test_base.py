"""Checks of single items say which rows are wrong."""

import pyarrow as pa
import pytest

from rollbook.tables.schemas.base import TOKEN_FLOATS, every_item, finite

NAN = float("nan")
RIGHT = [[1.0, 2.0], [], None, [3.0]]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (RIGHT, [True] * 4),
        ([[1.0, NAN], [], None, [3.0]], [False, True, True, True]),
        ([[1.0, 2.0], [], None, [None]], [True, True, True, False]),
        ([[NAN], [1.0], None, [2.0, NAN, NAN]], [False, True, True, False]),
        ([None, []], [True, True]),
    ],
)
def test_rows_with_a_wrong_item(lists: list[list[float] | None], expected: list[bool]) -> None:
    table = pa.table({"x": pa.array(lists, TOKEN_FLOATS)})
    for given in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)])):
        assert every_item("x", finite)(given).to_pylist() == expected
