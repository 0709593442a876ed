import csv
import json
from pathlib import Path

from rollbook.stages.report import report
from tests.unit.views.mlflow.project import Project


def test_summary_and_curves_are_written_the_same_every_time(project: Path) -> None:
    Project(2).finish("i0001", "i0002")
    report()
    written = [Path(f"reports/{name}").read_bytes() for name in ("summary.json", "curves.csv")]
    report()
    assert [
        Path(f"reports/{name}").read_bytes() for name in ("summary.json", "curves.csv")
    ] == written
    summary = json.loads(written[0])
    assert summary["last_iteration"] == "i0002"
    rows = list(csv.DictReader(written[1].decode().splitlines()))
    assert [(row["iteration"], row["mean"]) for row in rows] == [
        ("i0000", "0.3"),
        ("i0001", "0.4"),
        ("i0002", "0.5"),
    ]
    assert rows[0]["reward"] == ""
