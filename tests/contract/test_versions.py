"""Files of every version that Rollbook has written are read as today's, whole and by column, and stay as they are."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollbook
from rollbook.core.errors import ArtifactError, ConfigError, VersionError
from rollbook.project.run.run import Run
from rollbook.settings.sealed import files_of, read_part
from rollbook.tables.artifacts import (
    METADATA_KEY,
    NAMED_TABLES,
    TABLES,
    Facts,
    path_of,
    read_columns,
    read_facts,
    read_table,
    schema_of,
)
from rollbook.tables.run_info import read_run_info
from rollbook.tables.schemas import versions
from rollbook.tables.schemas.versions import JSON_UPGRADES, UPGRADES, newest

STORED = Path(__file__).parent / "stored"
KINDS = (*TABLES, *NAMED_TABLES)
FILES = sorted(STORED.glob("*/*.parquet"))
NEW: Mapping[tuple[str, int], Mapping[str, Any]] = {
    ("rollouts", 1): {"greedy": False},
    ("advantages", 1): {"token_returns": None},
    ("updates", 1): {"rollout_weight": None},
    ("optimizer_steps", 1): dict.fromkeys(
        ("kl_coef", "entropy_coef", "value_loss", "value_clip", "critic_grad_norm")
    ),
    ("optimizer_steps", 2): dict.fromkeys(("value_loss", "value_clip", "critic_grad_norm")),
}
"""Columns of today's version that a file of an older one lacks, and what they hold in every row."""


def _version_of(file: Path) -> int:
    return int(file.stem.partition("-")[0])


def _put(file: Path) -> tuple[Path, Facts]:
    """Puts a stored table in its place in the project, and returns the place and what it says about itself."""
    facts = read_facts(file)
    path = path_of(facts.kind, facts.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, path)
    return path, facts


def _restamp(path: Path, version: int) -> None:
    """The same table, which says that it is of another version."""
    table = pq.read_table(path)
    facts = json.loads(table.schema.metadata[METADATA_KEY]) | {"version": version}
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(facts)}), path)


def _lacking(kind: str, version: int) -> list[str]:
    """What a kind of file of which `version` is the newest lacks: an upgrade, or a file of each version."""
    known = UPGRADES.get(kind) or JSON_UPGRADES.get(kind) or {}
    kept = {_version_of(file) for file in (STORED / kind).glob("*-*.*")}
    return [
        *(f"upgrade from {n}" for n in range(1, version) if n not in known),
        *(f"upgrade from {n}, a version to come" for n in known if n >= version),
        *(f"file of {n}" for n in range(1, version + 1) if n not in kept),
    ]


@pytest.mark.parametrize("kind", [*KINDS, *JSON_UPGRADES])
def test_each_version_has_an_upgrade_and_a_stored_file(kind: str) -> None:
    version = schema_of(kind).version if kind in KINDS else newest(kind)
    assert _lacking(kind, version) == []
    assert _lacking(kind, version + 1) == [f"upgrade from {version}", f"file of {version + 1}"]
    assert newest(kind) == version


def test_every_stored_file_is_of_a_kind_and_version_that_is_known() -> None:
    assert {file.parent.name for file in STORED.glob("*/*")} == {*KINDS, *JSON_UPGRADES}
    assert [file for file in FILES if _version_of(file) != read_facts(file).version] == []
    assert {(file.parent.name, _version_of(file)) for file in FILES} >= NEW.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_table_of_any_version_is_read_as_one_of_todays(file: Path, project: Path) -> None:
    path, facts = _put(file)
    as_stored, new = pq.read_table(file), NEW.get((file.parent.name, _version_of(file)), {})
    table, said = read_table(path, facts.kind)
    assert said == facts  # with the version and the hash of its bytes
    assert table.num_rows == as_stored.num_rows > 0
    assert sorted(table.column_names) == sorted([*as_stored.column_names, *new])
    for name in as_stored.column_names:
        assert table[name].equals(as_stored[name]), name
    for name, value in new.items():
        assert table[name].to_pylist() == [value] * table.num_rows, name
        assert table[name].type == schema_of(facts.kind).columns[name].dtype
    assert path.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_columns_of_any_version_are_read_as_todays(file: Path, project: Path) -> None:
    path, facts = _put(file)
    table, _ = read_table(path, facts.kind)
    look, key = Run().table(facts.kind, facts.key), schema_of(facts.kind).key
    frame = Run().scan(facts.kind, iterations=[facts.key])
    assert sorted(look.names) == sorted(table.column_names)
    assert read_columns(path, facts.kind).select(table.column_names).equals(table)
    first = table[key][0].as_py()
    is_first = pa.array([value == first for value in table[key].to_pylist()])
    for name in table.column_names:
        one = table.select([name])
        assert read_columns(path, facts.kind, [name]).equals(one)
        assert look.column(name).equals(one[name])
        assert look.is_nested(name) == pa.types.is_nested(one[name].type)
        found = look.at(look.places(key, str(first)), [name]) if isinstance(first, str) else None
        assert found is None or found.equals(one.filter(is_first))
        assert frame.select(name).collect().equals(pl.DataFrame(one))


def test_a_column_that_no_version_has(project: Path) -> None:
    path, facts = _put(STORED / "rollouts" / "1-6d334a2.parquet")
    with pytest.raises(ArtifactError, match="rollouts table of version 1 without a column 'x'"):
        read_columns(path, facts.kind, ["greedy", "x"])


def test_all_iterations_are_one_data_set_whatever_their_version(project: Path) -> None:
    old, _ = _put(STORED / "rollouts" / "1-6d334a2.parquet")
    table, _ = read_table(old, "rollouts")
    _put(STORED / "rollouts" / "2-3087714.parquet")
    shutil.copy(old, path_of("rollouts", "i0002"))
    new = pl.read_parquet(path_of("rollouts", "i0001"))
    shutil.copy(STORED / "rollouts" / "1-6d334a2.parquet", path_of("rollouts", "i0001"))
    assert new.height == rollbook.load("rollouts", iterations=["i0001"]).height == table.num_rows
    wanted = pl.col("rollout_id").str.ends_with("/01") & pl.col("greedy").not_()
    lazy = (
        Run().scan("rollouts", iterations=["i0001"]).filter(wanted).select("text").head(3).collect()
    )
    texts = [row["text"] for row in table.to_pylist() if row["rollout_id"].endswith("/01")]
    assert lazy["text"].to_list() == texts[:3]


@pytest.mark.parametrize(
    "read",
    [
        lambda path, facts: read_table(path, facts.kind),
        lambda path, facts: read_columns(path, facts.kind, [schema_of(facts.kind).key]),
        lambda _, facts: Run().table(facts.kind, facts.key),
        lambda _, facts: Run().scan(facts.kind, iterations=[facts.key]),
    ],
    ids=["read_table", "read_columns", "table", "scan"],
)
@pytest.mark.parametrize(
    ("version", "advice"), [(3, "upgrade Rollbook"), (0, "no Rollbook writes this version")]
)
def test_a_version_that_cannot_be_read(
    project: Path, read: Callable[[Path, Facts], object], version: int, advice: str
) -> None:
    path, facts = _put(STORED / "rollouts" / "2-3087714.parquet")
    _restamp(path, version)
    what = f"rollouts table of version {version}, this Rollbook reads versions up to 2"
    with pytest.raises(VersionError, match=what) as raised:
        read(path, facts)
    assert advice in raised.value.hint


def test_an_older_table_that_was_edited_is_not_read(project: Path) -> None:
    path, facts = _put(STORED / "updates" / "1-6d334a2.parquet")
    table = pq.read_table(path)
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), path)
    with pytest.raises(ArtifactError, match="content changed after it was written"):
        read_table(path, facts.kind)


def test_what_was_made_of_an_older_table_is_still_made_of_it(project: Path) -> None:
    rollouts, scores = (
        read_table(*_place(STORED / kind / "1-6d334a2.parquet"))[1]
        for kind in ("rollouts", "scores")
    )
    assert scores.inputs["rollouts"] == rollouts.content_hash and scores.is_made_of(rollouts)


def _place(file: Path) -> tuple[Path, str]:
    path, facts = _put(file)
    return path, facts.kind


def test_run_info_of_any_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = (STORED / "run_info").iterdir()
    content = json.loads(file.read_text())
    info = read_run_info(file)
    assert info.stage == "score_rollouts" and "version" not in content
    later = tmp_path / "i0001.json"
    later.write_text(json.dumps(content | {"version": 2}))
    with pytest.raises(VersionError, match="run_info of version 2") as raised:
        read_run_info(later)
    assert "upgrade Rollbook" in raised.value.hint
    monkeypatch.setattr(
        versions, "JSON_UPGRADES", {"run_info": {1: lambda content: {**content, "forked": True}}}
    )
    assert read_run_info(file) == replace(info, forked=True)
    assert not info.forked and read_run_info(later) == replace(info, version=2)


def test_sealed_iterations_of_any_version(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stored] = (STORED / "sealed").iterdir()
    file = files_of("part")[0]
    file.parent.mkdir()
    shutil.copy(stored, file)
    content = read_part("part")
    assert content == json.loads(stored.read_text()) and list(content["iterations"]) == [
        "i0001",
        "i0002",
    ]
    file.write_text(json.dumps(content | {"version": 2}))
    with pytest.raises(ConfigError, match=r"version 2, .* upgrade Rollbook"):
        read_part("part")
    monkeypatch.setattr(
        versions, "JSON_UPGRADES", {"sealed": {1: lambda content: {**content, "pruned": []}}}
    )
    shutil.copy(stored, file)
    assert content["pruned"] == ["i0001"] and read_part("part")["pruned"] == []
