"""Scoring processes: they say what this one says, survive what rewards do to them, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollbook.components.rewards.base import Reward, RewardInput, limit_of
from rollbook.core.errors import RewardError
from rollbook.core.registry import build
from rollbook.rl.scoring.scorer import Scorer, score_groups
from tests.processes import children, open_files
from tests.unit.components.rewards.hostile import HERE, rows
from tests.unit.components.rewards.rows import reward

ROOT = Path(__file__).parents[4]


def custom(name: str, **options: Any) -> Reward:
    built = build("rewards", {"path": f"{HERE}:{name}", **options})
    assert isinstance(built, Reward)
    return built


def scored(
    rewards: Reward | Sequence[Reward], table: Sequence[RewardInput], processes: Any = 1, **kw: Any
) -> dict[str, list[Any]]:
    rewards = [rewards] if isinstance(rewards, Reward) else rewards
    columns = score_groups(rewards, table, max_error_share=1, processes=processes, **kw)
    return {name: column.to_pylist() for name, column in columns.items()}


def is_gone(process: int) -> bool:
    """In the end: one that was still starting looks for its parent later. A zombie that nobody waits for counts."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module", autouse=True)
def event_loop_of_this_process() -> None:
    """Made by the first function that is awaited, and kept."""
    scored(reward("function", path=f"{HERE}:later"), rows("a"), 0)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process and no file outlives scoring."""
    processes, files = children(), open_files()
    yield
    assert children() == processes
    assert open_files() <= files


def test_many_rows_of_several_rewards_are_scored_by_several_processes() -> None:
    texts = [str(place % 13) for place in range(400)]
    rewards = [
        reward("numeric_answer"),
        reward("function", path=f"{HERE}:shout"),
        reward("function", path=f"{HERE}:later"),
        reward("shuffled", reward={"path": f"{HERE}:Siblings"}, label="mixed"),
    ]
    counts: list[int] = []
    here, there = (
        scored(rewards, rows(*texts), processes, on_rows=counts.append) for processes in (0, 2)
    )
    assert there == here
    assert sum(counts) == 800
    spread = scored(custom("Does"), rows(*["nap"] * 300), 2)["process"]
    assert len(set(spread)) == 2
    assert os.getpid() not in spread


def test_the_order_of_rows_changes_nothing() -> None:
    table = rows(*(str(place % 7) for place in range(300)))
    rewards = [custom("Does", time_limit=9), custom("Siblings")]
    straight = scored(rewards, table, 0)
    turned = scored(rewards, table[::-1], 2)
    for columns in (straight, turned):
        columns.pop("process")
    assert {name: column[::-1] for name, column in turned.items()} == straight


def test_few_rows_without_a_limit_stay_here() -> None:
    assert scored(custom("Does"), rows("a"), "auto")["process"] == [os.getpid()]
    assert scored(custom("Does", time_limit=9), rows("a"), "auto")["process"] != [os.getpid()]
    assert scored(custom("Does", time_limit=9), rows("a"), 0)["process"] == [os.getpid()]


def test_a_call_that_takes_too_long_is_killed_and_the_rest_is_scored() -> None:
    table = rows("a", "bb", "hang", "ccc", "sleep", "dddd", "e", "ff")
    got = scored([custom("Does", time_limit=0.5), reward("numeric_answer")], table)
    late = "Does: TimeoutError: took longer than 0.5 s"
    assert got["error"] == [None, None, late, None, late, None, None, None]
    assert got["reward_Does"] == [1.0, 2.0, None, 3.0, None, 4.0, 1.0, 2.0]
    assert got["reward_numeric_answer"] == [0.0] * 8
    assert got["reward"] == [1.0, 2.0, None, 3.0, None, 4.0, 1.0, 2.0]


def test_a_group_that_is_scored_together_is_late_together() -> None:
    got = scored(
        custom("Siblings", time_limit=0.2), rows("a", "hang", "b", "c", per_group=2), processes=1
    )
    assert got["error"] == ["Siblings: TimeoutError: took longer than 0.4 s"] * 2 + [None] * 2
    assert got["reward"] == [None, None, 2.0, 2.0]


def test_a_reward_inside_another_brings_its_limit() -> None:
    inner = {"path": f"{HERE}:Siblings", "time_limit": 0.2}
    outer = reward("shuffled", reward=inner)
    assert limit_of(outer) == 0.2
    got = scored(outer, rows("hang", "b"), "auto")
    assert got["error"] == ["shuffled: TimeoutError: took longer than 0.4 s"] * 2


def test_a_row_that_ends_its_process_is_an_error_of_the_row() -> None:
    table = rows("a", "segfault", "bb", "exit", "ccc", "dddd")
    got = scored(custom("Does"), table)
    assert got["error"] == [
        None,
        "Does: ChildProcessError: ended the process that it ran in (SIGSEGV)",
        None,
        "Does: ChildProcessError: ended the process that it ran in (exit code 3)",
        None,
        None,
    ]
    assert got["reward"] == [1.0, None, 2.0, None, 3.0, 4.0]


def test_a_row_whose_process_ended_for_another_reason_gets_a_second_chance(tmp_path: Path) -> None:
    once = custom("BreaksOnce", folder=str(tmp_path))
    got = scored(once, rows("a", "once1", "b", "c", "once2", "d"))
    assert got["error"] == [None] * 6
    assert got["reward"] == [1.0] * 6


def test_several_rows_of_one_group_may_break(tmp_path: Path) -> None:
    both = [custom("BreaksOnce", folder=str(tmp_path)), custom("Does", time_limit=0.5)]
    got = scored(both, rows("exit", "a", "hang", "once"))
    kinds = [error and error.split(": ")[1] for error in got["error"]]
    assert kinds == ["ChildProcessError", None, "TimeoutError", None]
    assert got["reward_BreaksOnce"] == [1.0] * 4


def test_what_is_raised_is_what_it_is_here() -> None:
    table = rows("a", "raise", "memory", "stop", "object", "b")
    here, there = (
        scored(custom("Does"), rows(*(row.text for row in table[:4])), processes)
        for processes in (0, 1)
    )
    assert here.pop("process") != there.pop("process")
    assert here == there
    assert here["error"][1:4] == [
        "Does: OwnError: no",
        "Does: MemoryError: ",
        "Does: SystemExit: 3",
    ]
    with pytest.raises(RewardError, match="logs a OwnError as 'thing'"):
        scored(custom("Does"), table)


def test_the_first_traceback_comes_back() -> None:
    with pytest.raises(RewardError, match="1 of 2 rollouts") as caught:
        score_groups([custom("Does")], rows("a", "raise"), processes=1)
    assert 'raise OwnError("no", row)' in str(caught.value.__cause__)


def test_interrupting_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        scored(custom("Does"), rows("a", "interrupt"), 2)


def test_what_must_run_here_does() -> None:
    counts: list[int] = []
    both = [custom("Here"), custom("Does", time_limit=9)]
    got = scored(both, rows("a", "b"), 2, on_rows=counts.append)
    assert got["reward_Here"] == [float(os.getpid())] * 2
    assert os.getpid() not in got["process"]
    assert sum(counts) == 2


def test_loading_is_not_in_the_time_limit_and_may_fail() -> None:
    assert scored(custom("SlowToLoad", time_limit=0.3), rows("a", "b"))["reward"] == [1.0, 1.0]
    for processes in (0, 1):
        with pytest.raises(RewardError, match="reward SlowToLoad: ImportError: no module"):
            scored(custom("SlowToLoad", broken=True), rows("a"), processes)


def test_a_limit_that_could_not_hold_is_refused() -> None:
    class Local(Reward):
        def __call__(self, row: RewardInput) -> float:
            return 1.0

    assert scored(Local(name="local"), rows("a"))["reward"] == [1.0]
    with pytest.raises(RewardError, match="'local' has a time limit, which holds in worker"):
        scored(Local(name="local", time_limit=1), rows("a"))


def test_rewards_of_a_file_are_built_there(project: Path) -> None:
    (project / "helper.py").write_text("def value(): return 0.5\n")
    (project / "mine.py").write_text(
        "import os\nfrom helper import value\nfrom rollbook.components.rewards.base import Reward, RewardResult\n"
        "class Mine(Reward):\n    bonus: float = 0.0\n"
        "    def __call__(self, row):\n"
        "        return RewardResult(value() + self.bonus, {'process': os.getpid()})\n"
    )
    mine = build("rewards", {"path": "mine.py:Mine", "bonus": 0.25})
    assert isinstance(mine, Reward)
    got = scored([mine, reward("shuffled", reward=mine.settings())], rows("a"), 1)
    assert got["reward_Mine"] == got["reward_shuffled"] == [0.75]
    assert got["process"] != [os.getpid()]


def test_processes_are_used_again_and_replaced() -> None:
    others = children()
    with Scorer([custom("Does", time_limit=0.3)], 1) as scorer:
        first, second = (scorer.score(rows("a", "b"))["process"].to_pylist() for _ in range(2))
        assert first == second
        assert scorer.score(rows("sleep"), 1)["reward"].to_pylist() == [None]
        (worker,) = children() - others
        os.kill(worker, signal.SIGKILL)
        assert scorer.score(rows("a"))["reward"].to_pylist() == [1.0]


def test_a_run_that_failed_leaves_no_answers_for_the_next() -> None:
    with Scorer([custom("Does", time_limit=9)], 2) as scorer:
        with pytest.raises(KeyboardInterrupt):
            scorer.score(rows(*["nap"] * 256, "interrupt", *["nap"] * 256))
        assert scorer.score(rows("a", "bb"))["reward"].to_pylist() == [1.0, 2.0]


LEFT = ("leave", "leave apart", "leave orphan")


@pytest.mark.parametrize("end", ["a", "hang", "segfault"])
def test_what_a_reward_started_ends_with_its_process(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARTED_BY", str(tmp_path))
    got = scored(custom("Does", time_limit=0.5), rows(*LEFT, end))
    assert got["reward"][:3] == [1.0] * 3
    # Several scoring processes may have started something, the last of which are logged.
    assert [
        process for process in living_with(f"STARTED_BY={tmp_path}") if not is_gone(process)
    ] == []
    assert all(is_gone(int(child)) for child in got["child"][:3])


def test_a_reward_may_change_the_folder() -> None:
    both = [custom("Does", label="first"), custom("Does", label="second")]
    before = Path.cwd()
    for processes in (0, 1):
        assert scored(both, rows("wander"), processes)["reward"] == [2.0]
        assert Path.cwd() == before


def test_scoring_processes_stay_lean() -> None:
    code = (
        "import rollbook.rl.scoring.worker, sys\n"
        "from rollbook.core.registry import build; build('rewards', 'numeric_answer')\n"
        "heavy = ('torch', 'pandas', 'pandera', 'mlflow', 'sympy', 'datasets')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_scorer_ends_all_that_is_below(by: signal.Signals) -> None:
    """As from a terminal: the signal goes to its process group."""
    code = (
        "from tests.unit.rl.scoring.test_workers import custom, rows, scored, LEFT\n"
        "scored(custom('Does', time_limit=60), rows(*LEFT, 'sleep'))\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
    ) as scorer:
        deadline = time.monotonic() + 60
        while is_short_of(found := descendants(scorer.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(scorer.pid, by)
        assert not is_short_of(found)
        assert scorer.wait(10) == -by
    assert all(is_gone(process) for process in found)


def test_a_keeper_that_is_stopped_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.rl.scoring.workers.KILL_SECONDS", 0.2)
    got = scored(custom("Does", time_limit=0.5), rows("stop parent", "sleep"))
    assert got["error"] == [None, "Does: TimeoutError: took longer than 0.5 s"]


def living_with(variable: str) -> list[int]:
    """Processes with a variable in the environment that they were started in."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def descendants(process: int) -> dict[int, str]:
    """Names of the processes below one, by id."""
    found: dict[int, str] = {}
    listing = Path(f"/proc/{process}/task/{process}/children")
    with contextlib.suppress(OSError):
        for child in map(int, listing.read_text().split()):
            found[child] = Path(f"/proc/{child}/comm").read_text().strip()
            found |= descendants(child)
    return found


def is_short_of(found: dict[int, str]) -> bool:
    """Whether rewards have still to start something."""
    return list(found.values()).count("sleep") < len(LEFT)
