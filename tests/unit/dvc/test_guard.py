"""What a killed DVC leaves: dvc.lock empty, cut off anywhere, or whole, and its rwlock. All is readable again."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollbook.dvc import guard as lock_guard
from tests.processes import PYTHONPATH

ENTRY = """  {name}:
    cmd: python -m stages.x --iteration i0001
    deps:
    - path: artifacts/prompts/i0001.parquet
      hash: md5
      md5: 0123456789abcdef0123456789abcdef
      size: 10
    outs:
    - path: artifacts/{name}/i0001.parquet
      hash: md5
      md5: fedcba9876543210fedcba9876543210
      size: 10
    - path: artifacts/metrics/{name}/i0001.json
      hash: md5
      md5: fedcba9876543210fedcba9876543211
      size: 10
"""
HEAD = "schema: '2.0'\nstages:\n"
WHOLE = HEAD + ENTRY.format(name="rollouts") + ENTRY.format(name="scores")


DECLARED = """stages:
  rollouts: {foreach: x, do: {cmd: y, outs: [a, b]}}
  scores: {foreach: x, do: {cmd: y, outs: [a, b]}}
"""


def test_a_lock_cut_anywhere_is_readable_again(project: Path) -> None:
    Path("dvc.yaml").write_text(DECLARED)
    lock = Path("dvc.lock")
    lock.write_text(HEAD + ENTRY.format(name="rollouts"))
    lock_guard.remember()
    for kept in range(len(WHOLE)):
        lock.write_text(WHOLE[:kept])
        lock_guard.repair()
        stages = YAML(typ="safe").load(lock.read_text())["stages"]
        assert "rollouts" in stages, kept
        for entry in stages.values():
            outputs = [(len(out["md5"]), out["size"]) for out in entry["outs"]]
            assert outputs == [(32, 10)] * 2, kept


def test_a_whole_lock_is_left_alone(project: Path) -> None:
    lock = Path("dvc.lock")
    lock.write_text(HEAD + ENTRY.format(name="rollouts"))
    lock_guard.remember()
    lock.write_text(WHOLE)
    assert not lock_guard.repair()
    assert lock.read_text() == WHOLE


def test_without_a_copy_nothing_happens(project: Path) -> None:
    Path("dvc.lock").write_text("")
    assert not lock_guard.repair()


def test_the_guard_repairs_when_the_process_it_watches_is_killed(project: Path) -> None:
    lock = Path("dvc.lock")
    lock.write_text(WHOLE)
    lock_guard.remember()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as watched:
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollbook.dvc.guard", str(watched.pid)]
        )
        time.sleep(0.5)
        lock.write_text(WHOLE[:100])
        assert guard.poll() is None
        watched.kill()
    _wait(lambda: lock.read_text() == WHOLE)
    guard.kill()
    guard.wait()


def test_a_lock_that_shrank_before_the_run_is_left_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch was checked out: what `check` finds as it starts is what counts, not an older copy."""
    lock = Path("dvc.lock")
    lock.write_text(WHOLE)
    lock_guard.remember()
    lock.write_text(HEAD + ENTRY.format(name="rollouts"))
    monkeypatch.setenv("DVC_STAGE", "check")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    lock_guard.watch_parent()
    assert not lock_guard.repair()
    lock.unlink()
    lock_guard.watch_parent()
    assert not lock_guard.repair() and not lock.exists()


RWLOCK = json.dumps({"write": {"/p/plan.json": {"pid": 1, "cmd": "dvc repro"}}, "read": {}})


@pytest.fixture
def guard_process(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A guard whose DVC has been killed and that stays."""
    lock_guard.GOOD_COPY.parent.mkdir(parents=True, exist_ok=True)
    lock_guard.GOOD_COPY.write_text(WHOLE)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as watched:
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollbook.dvc.guard", str(watched.pid)]
        )
        lock_guard.DVC_WRITES.write_text(RWLOCK[:20])
        watched.kill()
    yield guard
    guard.kill()
    guard.wait()


def test_a_torn_rwlock_goes_when_the_process_that_wrote_it_is_killed_and_when_the_next_is(
    guard_process: subprocess.Popen[bytes],
) -> None:
    for _ in range(2):
        _wait(lambda: not lock_guard.DVC_WRITES.exists())
        assert guard_process.poll() is None
        lock_guard.DVC_WRITES.write_text("")  # a DVC killed before it has started `check`
    _wait(lambda: not lock_guard.DVC_WRITES.exists())


def test_a_guard_that_stays_goes_when_another_stage_starts(
    guard_process: subprocess.Popen[bytes],
) -> None:
    _wait(lambda: not lock_guard.DVC_WRITES.exists())
    Path("dvc.lock").write_text(WHOLE)
    lock_guard.remember()
    assert guard_process.wait(timeout=20) == 0


def test_check_mends_what_a_kill_of_everything_at_once_leaves(project: Path) -> None:
    Path("dvc.yaml").write_text(DECLARED)
    lock = Path("dvc.lock")
    lock.write_text(HEAD + ENTRY.format(name="rollouts"))
    lock_guard.remember()
    for torn in ("", WHOLE[:-20]):
        lock.write_text(torn)
        lock_guard.DVC_WRITES.write_text("")
        assert lock_guard.mend() == [lock_guard.DVC_WRITES, lock]
        assert lock.read_text() == HEAD + ENTRY.format(name="rollouts")
        assert not lock_guard.mend()


def test_check_leaves_a_lock_alone_that_was_checked_out(project: Path) -> None:
    Path("dvc.yaml").write_text(DECLARED)
    Path("dvc.lock").write_text(WHOLE)
    lock_guard.remember()
    Path("dvc.lock").write_text(HEAD + ENTRY.format(name="rollouts"))
    assert not lock_guard.mend()
    Path("dvc.lock").unlink()
    assert not lock_guard.mend()


@pytest.mark.parametrize("kept", [0, 1, 20, len(RWLOCK) - 1])
def test_dvc_cannot_read_a_torn_rwlock_and_runs_once_it_is_removed(
    project: Path, kept: int
) -> None:
    from dvc.rwlock import RWLockFileCorruptedError, rwlock

    folder = lock_guard.DVC_WRITES.parent.resolve()
    lock_guard.DVC_WRITES.write_text(RWLOCK[:kept])
    with (
        pytest.raises(RWLockFileCorruptedError),
        rwlock(str(folder), _local(), "dvc repro", [], [str(project / "a")], False),
    ):
        pass
    assert lock_guard.remove_torn_rwlock()
    with rwlock(str(folder), _local(), "dvc repro", [], [str(project / "a")], False):
        assert not lock_guard.remove_torn_rwlock()
        assert json.loads(lock_guard.DVC_WRITES.read_text())["write"]


def test_an_rwlock_that_dvc_is_writing_is_left_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_guard, "ATTEMPTS", 2)
    lock_guard.DVC_WRITES.write_text("")
    with lock_guard.DVC_WRITES_LOCK.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not lock_guard.remove_torn_rwlock()
    assert lock_guard.DVC_WRITES.exists()


@pytest.mark.parametrize("section", ["write", "read"])
def test_a_stage_whose_dvc_is_gone_ends_before_it_starts_anything(
    project: Path, section: str
) -> None:
    """DVC was killed while Python was starting: what the stage then has for a parent may never end."""
    of_another = {"pid": 2**22 + 1, "cmd": "dvc repro"}
    own = {"pid": os.getpid(), "cmd": "dvc repro"}
    for maker, goes_on in ((of_another, False), (own, True)):
        named = {"write": {"/p": maker}} if section == "write" else {"read": {"/p": [maker]}}
        lock_guard.DVC_WRITES.write_text(json.dumps({"write": {}, "read": {}} | named))
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "rollbook.stages.report", "--help"],
            env={**os.environ, "DVC_STAGE": "report", "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            text=True,
        )
        assert ("has ended" in ended.stderr) != goes_on, ended.stderr
        # What a stage starts, and what a fork server forks, has another parent and is none of DVC's.
        subprocess.run(
            [sys.executable, "-c", "import rollbook.stages"],
            env={**os.environ, "DVC_STAGE": "report", "PYTHONPATH": PYTHONPATH},
            check=True,
        )


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _local() -> object:
    from dvc.fs import localfs

    return localfs
