"""Leaving packages out must not leave checks out."""

import subprocess
import sys

import pytest

from rollbook.core.lean_imports import without

CODE = """
import sys
from rollbook.core.lean_imports import import_pandera, settle_without_pandas
import_pandera()
{settle}
import pandera.errors
import pandera.pyarrow as pandera
import pyarrow as pa
before = [name for name in ("pandas", "polars", "hypothesis") if name in sys.modules]
schema = pandera.DataFrameSchema({{
    "x": pandera.Column(checks=[pandera.Check.ge(0), pandera.Check.in_range(0, 5)], unique=True),
    "y": pandera.Column(checks=[pandera.Check.isin(["a"])]),
}})
schema.validate(pa.table({{"x": [1, 2], "y": ["a", "a"]}}))
failures = []
for table in (pa.table({{"x": [-1, 2], "y": ["a", "a"]}}), pa.table({{"x": [1, 1], "y": ["a", "a"]}}),
              pa.table({{"x": [1, 2], "y": ["a", "b"]}}), pa.table({{"x": [1, None], "y": ["a", "a"]}})):
    try:
        schema.validate(table, lazy=True)
    except pandera.errors.SchemaErrors:
        failures.append(True)
import pandas
print(before, len(failures), pandas.Series([1]).sum(){tail})
"""


def _run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_all_checks_work_without_pandas() -> None:
    assert _run(CODE.format(settle="settle_without_pandas()", tail="")) == "[] 4 1"


def test_pandas_objects_can_be_converted_where_it_was_asked_for() -> None:
    tail = ', pa.table({"a": [1, 2]}).to_pandas()["a"].tolist(), pa.array(pandas.Series([3])).to_pylist()'
    assert _run(CODE.format(settle="", tail=tail)) == "[] 4 1 [1, 2] [3]"


def test_an_import_of_another_thread_skips_no_finder() -> None:
    before = list(sys.meta_path)
    with without("no_such_package"):
        during = iter(sys.meta_path)  # as an import that has begun
        finders = [next(during)]
        with pytest.raises(ModuleNotFoundError):
            __import__("no_such_package")
    assert [*finders, *during][1:] == before == sys.meta_path
