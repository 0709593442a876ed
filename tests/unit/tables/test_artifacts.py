import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rollbook
from rollbook.core import atomic
from rollbook.core.errors import ArtifactError, SchemaError
from rollbook.tables.artifacts import (
    METADATA_KEY,
    path_of,
    read_facts,
    read_folder,
    read_json,
    read_metrics,
    read_table,
    write_folder,
    write_json,
    write_table,
)
from rollbook.tables.run_info import read_run_info
from tests.builders import prompt_rows, rollout_rows, table

PROMPTS = prompt_rows(2)
ROLLOUTS = table("rollouts", rollout_rows(PROMPTS, [["3", "4"], ["5", "6"]]))


def test_round_trip_keeps_content_and_facts(project: Path) -> None:
    written = write_table(ROLLOUTS, "rollouts", "i0001", {"prompts": "abc"}, "settings")
    read, facts = read_table(path_of("rollouts", "i0001"), "rollouts")
    assert read.equals(ROLLOUTS)
    assert facts == written
    assert facts.inputs == {"prompts": "abc"} and facts.key == "i0001"


def test_same_content_same_bytes(project: Path) -> None:
    path = path_of("rollouts", "i0001")
    write_table(ROLLOUTS, "rollouts", "i0001")
    first = path.read_bytes()
    write_table(ROLLOUTS.slice(0, 4), "rollouts", "i0001")
    assert path.read_bytes() == first


def test_another_kind_is_refused_by_name(project: Path) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    with pytest.raises(ArtifactError, match="holds rollouts i0001, another kind than scores"):
        read_table(path_of("rollouts", "i0001"), "scores")


def test_an_artifact_of_another_iteration_is_refused(project: Path) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    path_of("rollouts", "i0001").rename(path_of("rollouts", "i0002"))
    with pytest.raises(ArtifactError, match="holds rollouts i0001, another key than i0002"):
        read_table(path_of("rollouts", "i0002"), "rollouts")
    write_folder(lambda folder: (folder / "a").write_text("1") and None, "policies", "i0001")
    path_of("policies", "i0001").rename(path_of("policies", "i0002"))
    with pytest.raises(ArtifactError, match="holds policies i0001, another key than i0002"):
        read_folder(path_of("policies", "i0002"), "policies")


def test_a_folder_that_cannot_be_written_is_one_error(project: Path) -> None:
    (project / "artifacts").write_text("a file where a folder should be")
    with pytest.raises(ArtifactError, match=r"rollouts/i0001\.parquet: cannot be written"):
        write_table(ROLLOUTS, "rollouts", "i0001")


def test_missing_file(project: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        read_table(path_of("rollouts", "i0009"), "rollouts")


@pytest.mark.parametrize("keep", [0, 3, 200, -5])
def test_truncated_file(project: Path, keep: int) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    path = path_of("rollouts", "i0001")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"i0001\.parquet: truncated or damaged"):
        read_table(path, "rollouts")


def test_table_edited_by_hand(project: Path) -> None:
    """Someone changes a value and keeps the metadata: the content hash gives it away."""
    write_table(ROLLOUTS, "rollouts", "i0001")
    path = path_of("rollouts", "i0001")
    stored = pq.read_table(path)
    place = stored.column_names.index("text")
    pq.write_table(stored.set_column(place, "text", [["9", "4", "5", "6"]]), path)
    with pytest.raises(ArtifactError, match="content changed after it was written"):
        read_table(path, "rollouts")


def test_table_written_over_by_another_program(project: Path) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    path = path_of("rollouts", "i0001")
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    with pytest.raises(ArtifactError, match="Rollbook did not write"):
        read_table(path, "rollouts")


def test_other_schema_version(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    path = path_of("rollouts", "i0001")
    stored = pq.read_table(path)
    facts = json.loads(stored.schema.metadata[b"rollbook"]) | {"version": 99}
    pq.write_table(stored.replace_schema_metadata({b"rollbook": json.dumps(facts)}), path)
    with pytest.raises(ArtifactError, match="version 99, this Rollbook reads versions up to 2"):
        read_table(path, "rollouts")


def test_invalid_table_is_not_written(project: Path) -> None:
    with pytest.raises(SchemaError, match="'seed' is missing"):
        write_table(ROLLOUTS.drop_columns(["seed"]), "rollouts", "i0001")
    assert not path_of("rollouts", "i0001").exists()


def test_full_disk_leaves_the_old_table_and_no_remains(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    before = path_of("rollouts", "i0001").read_bytes()

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(ArtifactError, match="no space left on the disk"):
        write_table(ROLLOUTS.slice(0, 2), "rollouts", "i0001")
    assert path_of("rollouts", "i0001").read_bytes() == before
    assert [file.name for file in path_of("rollouts", "i0001").parent.iterdir()] == [
        "i0001.parquet"
    ]


def test_folder_appears_whole_or_not_at_all(project: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("power cut")

    with pytest.raises(
        ArtifactError, match=r"policies/i0001: cannot be written: RuntimeError: power cut"
    ):
        write_folder(broken, "policies", "i0001")
    assert list((project / "artifacts" / "policies").iterdir()) == []


def test_a_disk_that_is_full_for_safetensors(project: Path) -> None:
    """Its library has an error class of its own. The limit on file sizes stands for the full disk."""
    code = (
        "import resource, signal, numpy\n"
        "from safetensors.numpy import save_file\n"
        "from rollbook.tables.artifacts import write_folder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "weights = {'w': numpy.zeros(10_000)}\n"
        "write_folder(lambda f: save_file(weights, f / 'model.safetensors'), 'policies', 'i0001')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (
        "rollbook.core.errors.ArtifactError: artifacts/policies/i0001: cannot be written"
        in result.stderr
    )
    assert list((project / "artifacts" / "policies").iterdir()) == []


def test_a_full_disk_is_named_whatever_library_met_it(project: Path) -> None:
    """The words are those of safetensors 0.6 on a disk that was full."""

    def full(folder: Path) -> None:
        raise RuntimeError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    with pytest.raises(ArtifactError, match="no space left on the disk") as caught:
        write_folder(full, "policies", "i0001")
    assert caught.value.hint == "free some space and run the same command again; nothing was lost"


def test_folder_replaces_the_old_one_and_notices_changes(project: Path) -> None:
    write_folder(lambda folder: (folder / "a").write_text("1") and None, "policies", "i0001")
    facts = write_folder(
        lambda folder: (folder / "b").write_text("2") and None, "policies", "i0001"
    )
    path = path_of("policies", "i0001")
    assert sorted(file.name for file in path.iterdir()) == ["b", "rollbook.json"]
    assert read_folder(path, "policies") == facts
    with pytest.raises(ArtifactError, match="holds policies i0001, another kind than optimizers"):
        read_folder(path, "optimizers")
    (path / "b").write_text("3")
    with pytest.raises(ArtifactError, match="files changed after it was written"):
        read_folder(path, "policies")


def test_json_has_no_nan_and_is_sorted(project: Path) -> None:
    path = Path("artifacts/metrics/x/i0001.json")
    write_json({"b": float("nan"), "a": {"c": [1.0, float("inf")]}}, path)
    assert read_json(path) == {"a": {"c": [1.0, None]}, "b": None}
    path.write_text("[1")
    with pytest.raises(ArtifactError, match="truncated or damaged"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(ArtifactError, match="expected an object"):
        read_json(path)


def test_of_two_that_write_at_once_the_last_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from rollbook.core.atomic import replacing\n"
        "for _ in range(150):\n"
        "    with replacing(Path(sys.argv[1])) as temporary:\n"
        "        temporary.write_text(sys.argv[2] * 1000)\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(path), text]) for text in "ab"]
    assert [each.wait() for each in both] == [0, 0]
    assert set(path.read_text()) in ({"a"}, {"b"}) and len(path.read_text()) == 1000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    dead = subprocess.Popen([sys.executable, "-c", ""])  # nobody has waited for it yet
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    gone = tmp_path / f"{atomic.TEMPORARY_PREFIX}{dead.pid}-page.html"
    others = [
        tmp_path / f"{atomic.TEMPORARY_PREFIX}{os.getppid()}-page.html",
        tmp_path / f"{atomic.TEMPORARY_PREFIX}{dead.pid}-other.html",
    ]
    for file in (gone, *others):
        file.write_text("half")
    with atomic.replacing(path) as temporary:
        temporary.write_text("whole")
    dead.wait()
    assert set(tmp_path.iterdir()) == {path, *others} and path.read_text() == "whole"


def test_temporary_names_are_ignored_by_git_and_dvc() -> None:
    root = Path(__file__).parents[3]
    assert f"{atomic.TEMPORARY_PREFIX}*" in (root / ".dvcignore").read_text().splitlines()


def test_load_joins_all_iterations(project: Path) -> None:
    for key in ("i0001", "i0002"):
        prompts = prompt_rows(2, key)
        rows = rollout_rows(prompts, [["3", "4"], ["5", "6"]])
        write_table(table("prompts", prompts), "prompts", key)
        write_table(table("rollouts", rows), "rollouts", key)
        ids = ("rollout_id", "group_id", "prompt_id", "iteration")
        scores = [
            {**{name: row[name] for name in ids}, "reward": float(place), f"reward_{key}": 1.0}
            for place, row in enumerate(rows)
        ]
        scores = [{**row, "error": None, "step_rewards": None} for row in scores]
        write_table(table("scores", scores), "scores", key)
    frame = rollbook.load("rollouts", join=("prompts", "scores"))
    assert frame.height == 8
    assert frame["reward"].to_list() == [0.0, 1.0, 2.0, 3.0] * 2
    assert frame["messages"].null_count() == 0
    assert frame["reward_i0001"].null_count() == 4  # a reward that only one iteration had
    assert rollbook.load("rollouts", iterations=["i0002"])["iteration"].unique().to_list() == [
        "i0002"
    ]
    with pytest.raises(ArtifactError, match="did you mean 'rollouts'"):
        rollbook.load("rolouts")
    with pytest.raises(ArtifactError, match="'rescores'; did you mean 'rescores/<name>'"):
        rollbook.load("rescores")
    Path("artifacts/rescores/strict").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="'rescores'; did you mean 'rescores/strict'"):
        rollbook.load("rescores")
    with pytest.raises(ArtifactError, match=r"under `rescores:` .* rescore --stage strct`"):
        rollbook.load("rescores/strct")
    with pytest.raises(ArtifactError, match=r"i0007\.parquet: not on disk"):
        rollbook.load("rollouts", iterations=["i0007"])


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_are_not_finite_are_damage(tmp_path: Path, number: str) -> None:
    """`write_json` writes none."""
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": [{number}]}}')
    with pytest.raises(ArtifactError, match="truncated or damaged"):
        read_json(path)


@pytest.mark.parametrize("value", ['"abc"', "true", "{}"])
def test_metrics_are_numbers(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"loss": null, "steps": 3, "entropy": {value}}}')
    with pytest.raises(ArtifactError, match=r"a\.json: truncated or damaged \(entropy: "):
        read_metrics(path)


def test_sections_of_run_info_are_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"settings": 3}')
    with pytest.raises(ArtifactError, match=r"a\.json: truncated or damaged \(settings: 3"):
        read_run_info(path)


@pytest.mark.parametrize("said", [b"{", b"\xff", b"[]", b'{"kind": "rollouts"}', b'{"more": 1}'])
def test_facts_that_are_damaged_are_named(project: Path, said: bytes) -> None:
    write_table(ROLLOUTS, "rollouts", "i0001")
    path = path_of("rollouts", "i0001")
    pq.write_table(ROLLOUTS.replace_schema_metadata({METADATA_KEY: said}), path)
    with pytest.raises(ArtifactError, match=r"i0001\.parquet: truncated or damaged"):
        read_facts(path)
