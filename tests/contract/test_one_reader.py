"""A run is read in one place, `rollbook.project.run`. What was read in many ways, and where it is read now:

is this step current?            checking.reruns_among, run_status._states, Entry.is_current
                                 -> `Run.currency` (`Currency`, by plan and lock files)
did an input change?             verifying.links, Entry.is_current -> `currency.input_changed`
do stored results belong         tracking's Disk.holds, two is_made_of, ChainReading.outdated, provenance.disagreements,
together?                        ancestry.replaced -> `currency.Stored`, `made_from_other`, `Facts.is_made_of`
a stored table                   read_table, rows_in, showing's Stored, report._columns, Revision.table, dataset.scan,
                                 pyarrow -> `Run.table` (`StoredTable`), `Run.scan`
run_info                         a dict with some 110 string keys, six readers -> `Run.info` (`RunInfo`)
dvc.lock                         output_md5s, lock_text, lock_entries, lock_guard -> `Run.entries`, `Run.md5s`
params.yaml, for a look          a regular expression in showing/chain -> `Run.configured`
a chain of iterations            showing's Chain, tracking's Chain, ChainReading, page's Run, chain_tips
                                 -> `Run.chain`, `Run.chains`, `Run.iteration`
another revision                 stored_revisions.Revision -> `revision_of`, a `Run` too
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "pipeline" / "rollbook"
READERS = {
    "pyarrow.parquet": {"*"},
    "rollbook.tables.artifacts": {
        "keys_of",
        "read_columns",
        "read_facts",
        "read_folder",
        "read_metrics",
        "read_table",
        "rows_in",
    },
    "rollbook.tables.run_info": {"read_run_info"},
    "rollbook.dvc.lock": {"output_md5s", "parse_stages", "read_entries", "read_stages", "texts_of"},
    "rollbook.dvc.guard": {"current_entries"},
    "rollbook.settings.sealed": {"read_sealed"},
}
"""Functions that open files of a run, by module; `*`: the module itself."""
MAY = {
    "project/run": "the read model",
    "project/stage.py": "a stage reads its inputs, hashed",
    "project/sealing.py": "moves the text of lock entries into sealed/",
    "project/verify/contents.py": "reads run_info from DVC's cache too, file by file",
}
"""Places above `tables` and `dvc` that open files of a run, with the reason."""
FOLDERS = ("project", "views", "cli")


def opened(file: Path) -> Iterator[str]:
    """Readers that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in READERS)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.name for alias in node.names}
            forbidden = READERS.get(node.module, set())
            yield from (f"{node.module}.{name}" for name in names & forbidden)
            yield from (
                f"{node.module}.{name}"
                for name in names
                if "*" in READERS.get(f"{node.module}.{name}", ())
            )
        elif isinstance(node, ast.Attribute) and node.attr in {"read_parquet", "scan_parquet"}:
            yield node.attr


FILES = sorted(
    file
    for file in [*(LIBRARY / folder for folder in FOLDERS), ROOT / "stages"]
    for file in file.rglob("*.py")
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_only_the_read_model_opens_files_of_a_run(file: Path) -> None:
    place = file.relative_to(LIBRARY).as_posix() if file.is_relative_to(LIBRARY) else file.name
    if not any(place == each or place.startswith(f"{each}/") for each in MAY):
        assert sorted(opened(file)) == []


def test_a_reader_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "import pyarrow.parquet as pq\nfrom rollbook.tables.artifacts import path_of, read_table\n"
        "def f(pl):\n    from rollbook.dvc.lock import read_entries\n    pl.scan_parquet('x')\n"
    )
    assert sorted(opened(file)) == [
        "pyarrow.parquet",
        "rollbook.dvc.lock.read_entries",
        "rollbook.tables.artifacts.read_table",
        "scan_parquet",
    ]
