"""`rollbook verify`: what was changed is named, with what was expected, and nothing else is."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.hashing import md5_of
from rollbook.core.process import exclusive
from rollbook.dvc import running_steps
from rollbook.dvc.cache import cached_path, members
from rollbook.dvc.lock import LOCK_FILE, RESCORES_LOCK_FILE, output_md5s
from rollbook.dvc.running_steps import lock_file_of
from rollbook.project import sealing
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.run.run import Run
from rollbook.project.verify.places import find
from rollbook.project.verify.recorded import read_recorded
from rollbook.project.verify.stored_bytes import HashedFiles, byte_findings
from rollbook.project.verify.verification import Verification, verify
from rollbook.settings.sealed import files_of, read_part
from rollbook.tables.artifacts import (
    path_of,
    read_facts,
    read_json,
    read_table,
    write_json,
    write_table,
)
from rollbook.tables.schemas import versions
from tests.finished_run import in_cache, lock_says

KINDS = (
    "prompts",
    "rollouts",
    "scores",
    "logprobs",
    "advantages",
    "pairs",
    "updates",
    "optimizer_steps",
    "evaluations",
    "history",
)
STAGES = ("generate_rollouts", "compute_advantages", "update_policy")
FILES = [
    "artifacts/plan.json",
    "artifacts/data/train.parquet",
    *(f"artifacts/{kind}/i0002.parquet" for kind in KINDS),
    *(
        f"artifacts/{kind}/{stage}/i0002.json"
        for kind in ("metrics", "run_info")
        for stage in STAGES
    ),
    "artifacts/policies/i0002/model.safetensors",
    "artifacts/policies/i0002/rollbook.json",
    "artifacts/optimizers/i0002/rollbook.json",
    "artifacts/values/i0002/rollbook.json",
]
"""One of every kind of stored file, none of them shared with another output."""


def verified(**options: Any) -> Verification:
    return verify(Run(), **options)


def named(found: Verification) -> list[str]:
    return sorted(finding.path for finding in found.findings)


def object_of(path: str) -> Path:
    """The file of DVC's cache that keeps a stored file."""
    md5s = output_md5s()
    if path in md5s:
        return cached_path(md5s[path])
    folder, _, name = path.rpartition("/")
    return cached_path(members(md5s[folder])[name])


def flip(file: Path) -> None:
    """One bit, somewhere, in place; time and mode stay, as when a disk fails."""
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[random.Random(str(file)).randrange(len(content))] ^= 1
    file.chmod(0o644)
    with file.open("r+b") as stream:
        stream.write(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    file.chmod(stat.st_mode)


def part(file: Path) -> None:
    """Makes a file one of its own, that others are not hard links to."""
    content, mode = file.read_bytes(), file.stat().st_mode
    file.unlink()
    file.write_bytes(content)
    file.chmod(mode)


def replace_output(path: str, by: str) -> None:
    """Puts a copy of one output in the place of another."""
    target = Path(path)
    if target.is_dir():
        shutil.rmtree(target)
        shutil.copytree(by, target)
    else:
        target.unlink()
        shutil.copy(by, target)


def paths(key: str) -> list[str]:
    """All outputs of an iteration."""
    return [path for path in output_md5s() if Path(path).stem == key]


def test_a_finished_run_is_as_recorded(run: Path) -> None:
    found = verified()
    assert (found.findings, found.notes, found.absent) == ([], [], [])
    assert found.steps == 3 + 3 * 8 + 2 + 3  # once, each iteration, check and report, re-scores
    assert found.outputs == len(output_md5s()) + 3 * 3
    assert found.size > 500_000
    assert Path(FILES[1]).samefile(in_cache(FILES[1]))
    assert found.files < len(list(Path("artifacts").rglob("*.*"))) + len(output_md5s())


@pytest.mark.parametrize("where", ["in the workspace", "in DVC's cache", "which are one file"])
def test_a_flipped_bit_of_any_kind_is_found(run: Path, where: str) -> None:
    for path in FILES:
        if where != "which are one file":
            part(object_of(path))
        flip(object_of(path) if where == "in DVC's cache" else Path(path))
    found = verified()
    assert named(found) == sorted(FILES)
    for finding in found.findings:
        assert where in finding.what
        kept = object_of(finding.path)
        assert finding.expected == f"{kept.parent.name}{kept.name}"
        damaged = object_of(finding.path) if where == "in DVC's cache" else Path(finding.path)
        assert finding.found == md5_of(damaged)
    mends = {"in the workspace": "dvc checkout artifacts", "in DVC's cache": "dvc commit --force"}
    assert all(mends.get(where, "dvc fetch") in finding.mend for finding in found.findings)


def test_a_flipped_bit_in_the_listing_of_a_folder(run: Path) -> None:
    listing = cached_path(output_md5s()["artifacts/policies/i0002"])
    flip(listing)
    [finding] = verified().findings
    assert finding.path == "artifacts/policies/i0002"
    assert "listing" in finding.what
    flip(Path("artifacts/policies/i0002/model.safetensors"))
    assert "which one differs is not known" in verified().findings[1].what


def test_files_that_a_folder_lacks_or_should_not_have(run: Path) -> None:
    Path("artifacts/policies/i0002/config.json").unlink()
    Path("artifacts/policies/i0001/extra.txt").write_text("hello")
    found = verified()
    assert named(found) == [
        "artifacts/policies/i0001/extra.txt",
        "artifacts/policies/i0002/config.json",
    ]
    assert found.findings[0].mend.startswith("rm -rf artifacts/policies/")


def test_an_artifact_of_another_iteration(run: Path) -> None:
    swapped = [
        path for path in paths("i0002") if md5_of_output(path) != md5_of_output(_other(path))
    ]
    for path in swapped:
        replace_output(path, _other(path))
    found = verified()
    wrong = {_output_of(path) for path in named(found)}
    assert wrong == set(swapped)
    whole = {finding.path: finding.what for finding in found.findings}
    assert (
        "the bytes of artifacts/rollouts/i0001.parquet" in whole["artifacts/rollouts/i0002.parquet"]
    )


@pytest.mark.parametrize("kind", ["run_info", ""])
def test_an_artifact_of_another_iteration_with_its_md5(run: Path, kind: str) -> None:
    swapped = [
        path
        for path in paths("i0002")
        if md5_of_output(path) != md5_of_output(_other(path)) and ("run_info" in path) == bool(kind)
    ]
    assert len(swapped) > 6
    for path in swapped:
        lock_says(md5_of_output(path), md5_of_output(_other(path)))
        replace_output(path, _other(path))
    found = verified(fast=kind == "run_info")
    assert {path for path in named(found) if "i0002" in path} >= set(swapped)


def _other(path: str) -> str:
    return path.replace("i0002", "i0001")


def md5_of_output(path: str) -> str:
    return output_md5s()[path]


def _output_of(path: str) -> str:
    return next(
        output for output in output_md5s() if path == output or path.startswith(f"{output}/")
    )


def rewritten(path: str, table: pa.Table) -> None:
    """Writes a table anew with all that names it: its facts, its md5 in dvc.lock, its hash in run_info."""
    old, before = read_facts(Path(path)), md5_of_output(path)
    Path(path).unlink()
    new = write_table(table, old.kind, old.key, old.inputs, old.settings)
    lock_says(before, md5_of(Path(path)))
    for info in Path("artifacts/run_info").rglob(f"{old.key}.json"):
        content = read_json(info)
        if content["outputs"].get(old.kind) == old.content_hash:
            content["outputs"][old.kind] = new.content_hash
            lock_says(md5_of(info), replaced_json(info, content))


def replaced_json(path: Path, content: dict[str, Any]) -> str:
    path.unlink()
    write_json(content, path)
    return md5_of(path)


def edited(table: pa.Table, column: str, values: Iterable[Any]) -> pa.Table:
    place = table.column_names.index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))


def test_a_table_rewritten_with_all_that_names_it_is_not_what_was_read(run: Path) -> None:
    path = "artifacts/scores/i0002.parquet"
    table, _ = read_table(Path(path), "scores")
    rewritten(path, edited(table, "reward", [1.0] * table.num_rows))
    found = verified(fast=True)
    assert named(found) == [path]
    assert "is not what compute_advantages@i0002 read" in found.findings[0].what


def test_a_table_of_a_newer_version_is_not_in_the_cache_either(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADES", {**versions.UPGRADES, "advantages": {}})
    found = [each for each in verified().findings if each.path.startswith("artifacts/advantages/")]
    assert len(found) == 3 and all("reads versions up to 1" in each.what for each in found)
    assert all("upgrade Rollbook" in each.mend for each in found)
    assert not any("dvc checkout" in each.mend for each in found)


def test_ids_and_policies_that_do_not_agree(run: Path) -> None:
    path = "artifacts/updates/i0002.parquet"
    table, _ = read_table(Path(path), "updates")
    rewritten(path, table.slice(1))
    rollouts = "artifacts/evaluations/i0002.parquet"
    table, _ = read_table(Path(rollouts), "evaluations")
    other = read_facts(path_of("policies", "i0001")).content_hash
    rewritten(rollouts, edited(table, "policy_digest", [other] * table.num_rows))
    found = {finding.path: finding.what for finding in verified(fast=True).findings}
    assert found.keys() == {"artifacts/rollouts/i0002.parquet", rollouts}
    assert (
        "1 of 16 rollout_ids that artifacts/updates/i0002.parquet lacks"
        in found["artifacts/rollouts/i0002.parquet"]
    )
    assert f"holds rows of policy {other[:12]}" in found[rollouts]


def test_fast_believes_bytes(run: Path) -> None:
    flip(Path("artifacts/policies/i0002/model.safetensors"))
    found = verified(fast=True)
    assert (found.findings, found.files) == ([], 0)


def test_what_is_not_here_is_no_fault(run: Path) -> None:
    shutil.rmtree("artifacts/policies/i0001")
    shutil.rmtree("artifacts/policies/i0002")
    for name in ("model.safetensors", "rollbook.json"):
        object_of(f"artifacts/policies/i0002/{name}").unlink()
    Path("artifacts/scores/i0001.parquet").unlink()
    in_cache("artifacts/rollouts/i0001.parquet").unlink()
    found = verified()
    assert found.findings == []
    assert found.absent == ["artifacts/policies/i0002"]
    assert "artifacts/policies/i0002; `rollbook pull`" in found.notes[0]
    assert "only in DVC's cache: artifacts/" in found.notes[1]
    assert "only in the workspace: artifacts/rollouts/i0001.parquet" in found.notes[2]
    alone = CliRunner().invoke(cli, ["verify", "--fast"])
    assert alone.exit_code == 0
    assert alone.output.strip().endswith(": 105 as recorded, 1 not on this machine")
    complete = CliRunner().invoke(cli, ["verify", "--fast", "--complete"])
    assert complete.exit_code == 1
    assert complete.output.strip().endswith(": 1 finding")
    [lacking] = verified(fast=True, complete=True).findings
    assert (lacking.path, lacking.mend) == (found.absent[0], f"dvc pull {found.absent[0]}")
    flip(in_cache("artifacts/scores/i0001.parquet"))
    [finding] = verified().findings
    assert finding.mend.startswith("rm -f ") and "dvc fetch artifacts/scores/i0001" in finding.mend


def test_steps_that_would_run_again_are_no_fault(run: Path) -> None:
    """As when `dvc repro` was stopped between an update made again and what reads its policy."""
    path = "artifacts/scores/i0002.parquet"
    table, _ = read_table(Path(path), "scores")
    lock = Path("dvc.lock").read_text()
    read_by = lock[lock.index("compute_advantages@i0002") :]
    rewritten(path, edited(table, "reward", [1.0] * table.num_rows))
    text = Path("dvc.lock").read_text()
    at = text.index("compute_advantages@i0002")
    old = read_by[read_by.index(path) :].split("md5: ")[1][:32]
    now = text[at:].replace(md5_of(Path(path)), old, 1)
    Path("dvc.lock").write_text(text[:at] + now)
    found = verified(fast=True)
    assert found.findings == []
    assert found.notes[-1].startswith(
        "compute_advantages@i0002, rescore_rollouts@other-i0002: what they read"
    )


def test_what_is_running_is_left_out(run: Path) -> None:
    path = "artifacts/updates/i0002.parquet"
    replace_output(path, _other(path))
    with exclusive(lock_file_of("update_policy", "i0002"), "test"):
        found = verified(fast=True)
    assert found.findings == []
    assert found.notes == [
        "update_policy@i0002: running now, or not recorded yet, so what it makes is left out"
    ]
    assert named(verified(fast=True)) == [path]


def test_what_dvc_has_not_recorded_yet_is_left_out(run: Path) -> None:
    """Between the end of a program and dvc.lock: DVC hashes what was made, then writes the file."""
    another_run("update_policy", "i0002")
    update = path_of("updates", "i0002")
    replace_output(update.as_posix(), _other(update.as_posix()))
    wrong = [path_of("run_info/update_policy", "i0002").as_posix(), update.as_posix()]
    assert named(verified()) == wrong
    with exclusive(running_steps.DVC_LOCK, "test"):
        found = verified()
    assert found.findings == []
    assert found.notes[0].startswith("update_policy@i0002: running now, or not recorded yet")
    makers = {str(update.absolute()): {"pid": os.getpid(), "cmd": "dvc repro"}}
    running_steps.DVC_WRITES.write_text(json.dumps({"write": makers, "read": {}}))
    assert running_steps.paths_in_the_making() == {update.as_posix()}
    assert verified().findings == []
    gone = subprocess.Popen(["true"])
    gone.wait()
    makers[str(update.absolute())]["pid"] = gone.pid
    running_steps.DVC_WRITES.write_text(json.dumps({"write": makers, "read": {}}))
    assert named(verified()) == wrong


def test_a_step_that_dvc_ran_while_files_were_read_is_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = path_of("updates", "i0002").as_posix()
    old, read = output_md5s()[update], HashedFiles.read

    def made_meanwhile(self: HashedFiles, *arguments: Any) -> None:
        monkeypatch.setattr(HashedFiles, "read", read)
        replace_output(update, _other(update))
        read(self, *arguments)
        lock_says(old, md5_of(Path(update)))

    monkeypatch.setattr(HashedFiles, "read", made_meanwhile)
    found = verified()
    assert found.findings == []
    assert found.notes[0].startswith("update_policy@i0002: ")


@pytest.mark.parametrize("fast", [False, True])
def test_another_run_in_the_workspace_is_a_finding_and_no_commit(run: Path, fast: bool) -> None:
    another_run("update_policy", "i0002")
    found = verified(fast=fast)
    assert named(found) == ["artifacts/run_info/update_policy/i0002.json"]
    assert found.notes == []
    assert found.findings[0].mend.endswith(
        "dvc checkout artifacts/run_info/update_policy/i0002.json"
    )


def another_run(stage: str, key: str) -> None:
    """Puts the run_info of a run with other settings in the place of the recorded one."""
    info = path_of(f"run_info/{stage}", key)
    replaced_json(info, {**read_json(info), "digest": "0" * 64})


@pytest.mark.parametrize("text", [None, ""])
def test_nothing_recorded_is_a_finding(run: Path, text: str | None) -> None:
    for lock in (LOCK_FILE, RESCORES_LOCK_FILE):
        lock.unlink()
    if text is not None:
        LOCK_FILE.write_text(text)
    [finding] = verified().findings
    assert (finding.path, finding.found) == ("dvc.lock", "nothing")
    assert finding.mend.startswith("git checkout dvc.lock; ")
    shutil.rmtree("artifacts")
    result = CliRunner().invoke(cli, ["verify"])
    assert result.exit_code == 0
    assert result.output.strip().endswith(": nothing is recorded")


def test_a_lock_file_that_names_less_than_git_has_is_a_finding(run: Path) -> None:
    for command in (["init", "-q"], ["add", "dvc.lock", "rescores/dvc.lock"]):
        subprocess.run(["git", *command], check=True)
    author = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *author, "commit", "-qm", "Ran"], check=True)
    assert verified(fast=True).findings == []
    text = LOCK_FILE.read_text()
    LOCK_FILE.write_text(text[: text.index("  update_policy@i0001:")])
    [finding] = verified(fast=True).findings
    assert (finding.path, finding.mend) == ("dvc.lock", "git checkout dvc.lock")
    whole, cut = int(finding.expected.split()[0]), int(finding.found.split()[0])
    assert whole - cut == len([path for path in read_lock(text) if path not in output_md5s()])
    RESCORES_LOCK_FILE.unlink()
    LOCK_FILE.write_text(text)
    assert named(verified(fast=True)) == ["rescores/dvc.lock"]


def test_artifacts_that_no_lock_file_names_are_noted(run: Path) -> None:
    path = path_of("scores", "i0002")
    shutil.copy(path, path.with_stem("i0009"))
    found = verified(fast=True)
    assert (found.findings, len(found.notes)) == ([], 1)
    assert found.notes[0].startswith("artifacts/scores/i0009.parquet: in no lock file")


def read_lock(text: str) -> dict[str, str]:
    """What a lock file of this text names."""
    Path("lock").write_text(text)
    return output_md5s(Path("lock"))


def test_sealed_and_pruned(run: Path) -> None:
    """Of this run no policy may be pruned; one is, by hand, as sealing does it."""
    sealed = CliRunner().invoke(cli, ["seal", "i0001-i0002", "--keep", "none"])
    assert sealed.exit_code == 0, sealed.output
    definitions, locked, listed = files_of("i0001-i0002")
    content = read_part("i0001-i0002")
    write_json({**content, "pruned": ["i0002"]}, definitions)
    listed.write_text(sealing._outputs_text("i0001-i0002", locked.read_text(), ["i0002"]))
    sealing.finish("i0001-i0002")
    assert not Path("artifacts/policies/i0002").exists()
    found = verified()
    assert (found.findings, found.absent) == ([], [])
    assert found.notes[0].startswith("3 outputs are pruned by sealing: artifacts/")
    shown = CliRunner().invoke(cli, ["status"]).output
    assert "sealed: i0001-i0002, 2 iterations; policies kept: i0001" in shown
    assert "nothing is left to do" in shown

    flip(Path("artifacts/rollouts/i0002.parquet"))
    entry = output_md5s(locked)["artifacts/prompts/i0002.parquet"]
    listed.write_text(listed.read_text().replace(entry, "0" * 32))
    found = verified()
    assert named(found) == ["artifacts/prompts/i0002.parquet", "artifacts/rollouts/i0002.parquet"]
    assert "git checkout sealed/i0001-i0002.dvc" in found.findings[0].mend


def test_the_command_names_file_fault_and_mend(run: Path) -> None:
    done = CliRunner().invoke(cli, ["verify", "--fast"])
    assert done.exit_code == 0
    assert "contents not hashed" in done.output
    assert done.output.strip().endswith(": all as recorded")
    path = "artifacts/rollouts/i0002.parquet"
    replace_output(path, _other(path))
    result = CliRunner().invoke(cli, ["verify", "--fast"])
    assert result.exit_code == 1
    assert result.output.startswith(f"{path}: holds rollouts i0001, another key than i0002\n")
    assert f"\n  mend: rm -rf {path} && dvc checkout {path}\n" in result.output
    assert result.output.strip().endswith(": 1 finding")
    facts = json.loads(CliRunner().invoke(cli, ["verify", "--fast", "--json"]).output)
    assert facts["clean"] is False
    assert [finding["path"] for finding in facts["findings"]] == [path]


def test_a_plan_with_new_rescores_is_as_recorded(run: Path) -> None:
    """`rollbook rescore --stage` writes it, and `check` is the step that has it in dvc.lock."""
    plan = read_json(PLAN_FILE)
    write_json({**plan, "rescores": {"new": {"i0001": "0" * 32}}}, PLAN_FILE)
    assert verified().findings == []
    write_json({**plan, "prepare_data": "0" * 32}, PLAN_FILE)
    assert named(verified()) == [PLAN_FILE.as_posix()]
    write_json({**plan, "rescores": {}}, PLAN_FILE)
    flip(in_cache(PLAN_FILE.as_posix()))
    assert named(verified()) == [PLAN_FILE.as_posix()]


@pytest.mark.parametrize("fast", [False, True])
def test_files_and_folders_in_each_others_place(run: Path, fast: bool) -> None:
    policy, table = Path("artifacts/policies/i0002"), path_of("scores", "i0002")
    shutil.rmtree(policy)
    policy.write_text("no folder")
    table.unlink()
    table.mkdir()
    found = {finding.path: finding for finding in verified(fast=fast).findings}
    assert found.keys() == {policy.as_posix(), table.as_posix()}
    assert found[policy.as_posix()].what.startswith("the workspace holds a file here; dvc.lock")
    assert found[table.as_posix()].mend == f"rm -rf {table} && dvc checkout {table}"


def test_fast_names_tables_that_it_cannot_look_into(run: Path) -> None:
    lacking, cut = path_of("scores", "i0002"), path_of("updates", "own0002")
    schema = pq.read_schema(lacking)
    without = pq.read_table(lacking).drop_columns(["rollout_id"])
    lacking.unlink()
    pq.write_table(without.replace_schema_metadata(schema.metadata), lacking)
    content = bytearray(cut.read_bytes())
    content[4:400] = bytes(396)
    cut.unlink()
    cut.write_bytes(content)
    found = {finding.path: finding.what for finding in verified(fast=True).findings}
    assert found.keys() == {lacking.as_posix(), cut.as_posix()}
    assert "lacks the column 'rollout_id'" in found[lacking.as_posix()]
    assert "cannot be read" in found[cut.as_posix()]


def test_a_file_that_vanishes_while_it_is_looked_at(run: Path) -> None:
    path = path_of("scores", "i0002")
    output = read_recorded(Run()).outputs[path.as_posix()]
    stored = find(output)
    path.unlink()
    hashed = HashedFiles([stored])
    hashed.read(lambda *_: None)
    [finding] = byte_findings(stored, hashed, {})
    assert finding.found == "unreadable (No such file or directory)"
