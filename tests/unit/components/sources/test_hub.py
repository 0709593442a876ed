"""Hub data sets, from a folder laid out like one, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.core.errors import DataError
from rollbook.core.registry import build


@pytest.fixture
def dataset(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with two splits, and a cache of its own for the library."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", project / "cache")
    folder = project / "sums" / "data"
    folder.mkdir(parents=True)
    train = {
        "question": ["1+1=", "2+2=", "3+3="],
        "answer": [2.0, 4.0, 6.0],
        "level": ["a", None, "b"],
    }
    pq.write_table(pa.table(train), folder / "train-00000-of-00001.parquet")
    pq.write_table(
        pa.table({"question": ["4+4="], "answer": [8.0]}), folder / "test-00000-of-00001.parquet"
    )
    (project / "sums" / ".git").mkdir()
    (project / "sums" / ".git" / "HEAD").write_text("x")
    return "sums"


def source(**options: Any) -> Any:
    return build("sources", {"name": "hub", **options})


def records(**options: Any) -> list[dict[str, Any]]:
    return list(source(**options).records("train", 0))


def test_splits_and_columns(dataset: str) -> None:
    first, second, third = records(dataset=dataset, columns=["level"])
    assert first == {
        "messages": [{"role": "user", "content": "1+1="}],
        "reference_answer": "2",
        "level": "a",
    }
    assert (second["level"], third["level"]) == (None, "b")
    (only,) = records(dataset=dataset, split="test", columns=[])
    assert only["reference_answer"] == "8"


def test_slices_and_numbers_of_prompts(dataset: str) -> None:
    assert len(records(dataset=dataset, split="train[1:]", columns=[])) == 2
    assert len(records(dataset=dataset, prompts=2, columns=[])) == 2


def test_files_of_a_folder_count_for_running_again(dataset: str) -> None:
    assert source(dataset=dataset).data_files() == [
        "sums/data/test-00000-of-00001.parquet",
        "sums/data/train-00000-of-00001.parquet",
    ]


def test_unknown_split_and_missing_column(dataset: str) -> None:
    with pytest.raises(DataError, match=r"split tst.*Unknown split"):
        records(dataset=dataset, split="tst")
    with pytest.raises(
        DataError, match=r"sums\[train\], row 0: has no column 'anser'; did you mean 'answer'\?"
    ):
        records(dataset=dataset, reference_answer="anser")


@pytest.mark.parametrize("revision", [None, "main", "e53f048", "v1.0"])
def test_hub_ids_need_a_pinned_revision(project: Path, revision: str | None) -> None:
    with pytest.raises(ValueError, match=r"'openai/gsm8k' is no folder here.*needs `revision`"):
        source(dataset="openai/gsm8k", revision=revision)


def test_hub_ids_with_a_revision_have_no_files(project: Path) -> None:
    assert source(dataset="openai/gsm8k", revision="e" * 40).data_files() == []


def test_a_hub_that_cannot_be_reached_is_an_error_of_the_data(project: Path) -> None:
    with pytest.raises(DataError, match=r"openai/gsm8k .*cannot be loaded"):
        records(dataset="openai/gsm8k", revision="e" * 40)
