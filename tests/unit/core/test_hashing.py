from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.core.hashing import content_hash, folder_digest, remembered_sha256_of, sha256_of

TABLE = pa.table(
    {
        "text": pa.array(["a", None, "", "bcd"]),
        "ids": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())),
        "flag": pa.array([True, False, None, True]),
        "x": pa.array([1.5, None, -0.5, 2.0]),
        "steps": pa.array([[{"end": 1, "value": 0.5}], None, [], [{"end": 2, "value": None}]]),
    }
)


def test_hash_ignores_chunks_and_the_parquet_writer(tmp_path: Path) -> None:
    expected = content_hash(TABLE)
    chunked = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 2), TABLE.slice(3)])
    assert content_hash(chunked) == expected
    assert content_hash(TABLE.slice(1)) == content_hash(chunked.slice(1))
    pq.write_table(
        TABLE, tmp_path / "t.parquet", compression="snappy", row_group_size=1, use_dictionary=False
    )
    assert content_hash(pq.read_table(tmp_path / "t.parquet")) == expected


def test_hash_sees_every_change() -> None:
    seen = {content_hash(TABLE)}
    changed = [
        TABLE.set_column(0, "text", pa.array(["a", "", "", "bcd"])),
        TABLE.set_column(0, "text", pa.array(["ab", None, "", "cd"])),
        TABLE.set_column(0, "words", TABLE["text"]),
        TABLE.set_column(1, "ids", pa.array([[1], [2], None, [3]], pa.list_(pa.int32()))),
        TABLE.set_column(1, "ids", pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32()))),
        TABLE.set_column(1, "ids", pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64()))),
        TABLE.set_column(2, "flag", pa.array([True, None, False, True])),
        TABLE.set_column(3, "x", pa.array([1.5, 0.0, -0.5, 2.0])),
        TABLE.take([1, 0, 2, 3]),
        TABLE.slice(0, 3),
    ]
    for table in changed:
        seen.add(content_hash(table))
    assert len(seen) == len(changed) + 1


def test_folder_digest_sees_names_and_bytes_but_not_its_own_facts(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_text("2")
    digest = folder_digest(tmp_path)
    (tmp_path / "rollbook.json").write_text("{}")
    assert folder_digest(tmp_path) == digest
    (tmp_path / "sub" / "b").write_text("3")
    assert folder_digest(tmp_path) != digest
    (tmp_path / "sub" / "b").write_text("2")
    (tmp_path / "sub" / "b").rename(tmp_path / "sub" / "c")
    assert folder_digest(tmp_path) != digest


def test_a_large_file_is_read_once_until_it_changes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.core.hashing.LARGE", 4)
    file = project / "weights"
    file.write_bytes(b"12345678")
    first = remembered_sha256_of(file)
    assert first == sha256_of(file)
    with monkeypatch.context() as unreadable:
        unreadable.setattr(
            "rollbook.core.hashing.sha256_of", lambda _: pytest.fail("was read again")
        )
        assert remembered_sha256_of(file) == first
    file.write_bytes(b"12345679")
    assert remembered_sha256_of(file) == sha256_of(file) != first
