"""Rows are found wherever they stand: in any row group, at the ends of what is decoded at a time, or nowhere."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.core.errors import ArtifactError
from rollbook.project.run.run import Run
from rollbook.project.run.stored import BATCH_ROWS, StoredTable
from rollbook.tables.artifacts import ROW_GROUP_ROWS, schema_of, write_table
from tests.unit.views.mlflow.project import Project

ROWS = 2 * ROW_GROUP_ROWS + 100
PLACES = [0, BATCH_ROWS - 1, BATCH_ROWS, 5000, ROW_GROUP_ROWS - 1, ROW_GROUP_ROWS, ROWS - 1]
WANTED, OTHER = f"{7:016x}", f"{8:016x}"


@pytest.fixture
def table(project: Path) -> StoredTable:
    """A table in three row groups; the rows at PLACES are those of one prompt, the first and the last are not."""
    ids = [f"{number + 100:016x}" for number in range(ROWS)]
    for place in PLACES:
        ids[place] = WANTED
    columns = {
        "prompt_id": ids,
        "messages": [[{"role": "user", "content": "?"}]] * ROWS,
        "reference_answer": [str(place) for place in range(ROWS)],
        "source": ["file"] * ROWS,
        "set": ["train"] * ROWS,
    }
    write_table(schema_of("data").build(columns), "data", "train")
    return Run().table("data", "train")


def test_all_rows_are_found_in_order(table: StoredTable) -> None:
    found = table.where("prompt_id", WANTED, ["reference_answer", "no such column"])
    assert found.column_names == ["reference_answer"]
    assert found["reference_answer"].to_pylist() == [str(place) for place in PLACES]
    assert table.where("prompt_id", f"{ROWS:016x}")["reference_answer"].to_pylist() == [
        str(ROWS - 100)
    ]
    nothing = table.where("prompt_id", OTHER)
    assert nothing.num_rows == 0 and nothing.column_names == table.names


def test_places_of_another_table_only_say_where_to_begin(table: StoredTable) -> None:
    own = table.places("prompt_id", WANTED)
    assert own.count == len(PLACES) and list(own.masks) == [0, 1, 2]
    last = table.places("prompt_id", f"{ROWS + 50:016x}")
    assert list(last.masks) == [2]
    first = table.places("prompt_id", WANTED, beside=last)
    assert list(first.masks) == [2]  # as many as there: no other row group was looked at
    assert table.at(table.places("prompt_id", WANTED, beside=own)).num_rows == len(PLACES)


def test_what_is_missing_is_said(table: StoredTable) -> None:
    assert Run().find_table("data", "evaluation") is None
    with pytest.raises(ArtifactError, match=r"evaluation\.parquet: does not exist"):
        Run().table("data", "evaluation")
    with pytest.raises(ArtifactError, match="without a column 'policy_digest'"):
        table.column("policy_digest")


def test_a_checked_table_is_what_was_written(table: StoredTable) -> None:
    assert table.checked().num_rows == ROWS
    changed = table.all().set_column(2, "reference_answer", pa.array(["0"] * ROWS))
    pq.write_table(changed.cast(pq.read_schema(table.path)), table.path)
    other = Run().table("data", "train")
    assert other.rows == ROWS
    with pytest.raises(ArtifactError, match="content changed after it was written"):
        other.checked()


def test_a_run_of_many_tables_keeps_few_of_them_open(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a file descriptor: 200 iterations have some 2,600 tables, and a process may open 1,024 files."""
    monkeypatch.setattr("rollbook.project.run.store.OPEN_TABLES", 3)
    keys = ("i0001", "i0002", "i0003")
    Project(3).finish(*keys)
    run, before = Run(), len(list(Path("/dev/fd").iterdir()))
    kinds = ("prompts", "rollouts", "scores", "advantages", "updates")
    rows = [run.table(kind, key).rows for key in keys for kind in kinds]
    assert rows == [3, 6, 6, 6, 6] * 3
    assert len(list(Path("/dev/fd").iterdir())) <= before + 3
