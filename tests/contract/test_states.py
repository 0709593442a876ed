"""check, status, verify, doctor, page and MLflow agree about a project, in every state that projects get into."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.ids import BASE_KEY
from rollbook.dvc.lock import LOCK_FILE, without
from rollbook.project.plan import load_stage, make_plan
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES, PLAN_FILE
from rollbook.project.run.run import Run
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import FOLDERS, path_of, write_json
from rollbook.views.mlflow.chains import read_chains
from rollbook.views.page.overview import edited
from rollbook.views.page.shown import shown_chain
from tests.finished_run import copy, make, settings, write_settings

Step = tuple[str, str]
KEYS = ("i0001", "i0002", "own0002")
BASE_STEPS = [(name, BASE_KEY) for name in (*ONCE_STAGES, "evaluate_policy")]


def steps(*keys: str) -> set[Step]:
    """All steps of iterations."""
    return {(stage, key) for key in keys for stage in ITERATION_STAGES}


AFTER_SCORES = {"compute_advantages", "update_policy", "evaluate_policy"}
"""Stages of an iteration that follow from its scores."""


@dataclass(frozen=True)
class State:
    """A state of the finished run of tests/finished_run.py, and what is true of it.

    Attributes:
        make: brings the run in the current folder into the state.
        stale, missing, gone: steps in these states; all others are done.
        changed: iterations that ran with another recipe than params.yaml has now.
        shown: iterations whose stored results belong together, which MLflow shows.
        reread: steps that read what was made again since, by the lock file.
        damaged: paths whose bytes are not as recorded.
        waiting: iterations by re-score that would be scored.
    """

    make: Callable[[], None]
    stale: Iterable[Step] = ()
    missing: Iterable[Step] = ()
    gone: Iterable[Step] = ()
    changed: Iterable[str] = ()
    shown: Iterable[str] = KEYS
    reread: Iterable[Step] = ()
    damaged: Iterable[str] = ()
    waiting: dict[str, list[str]] = field(default_factory=dict)


# --- what brings a run into a state -----------------------------------------------------------------


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """params.yaml with a change."""

    def make_it() -> None:
        raw = settings()
        change(raw)
        write_settings(raw)

    return make_it


def forget(*forgotten: Step, files: bool = True) -> Callable[[], None]:
    """Entries of dvc.lock, and the outputs they name, as if the steps had not run."""

    def make_it() -> None:
        addresses = {f"{stage}@{key}" for stage, key in forgotten}
        outputs = {
            path
            for entry in Run().entries
            if (entry.stage, entry.key) in forgotten
            for path in entry.outputs
        }
        LOCK_FILE.write_text(without(LOCK_FILE.read_text(), addresses))
        if files:
            remove(*outputs)

    return make_it


def remove(*paths: str) -> None:
    for path in map(Path, paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def fresh() -> None:
    remove("artifacts", "dvc.lock", "rescores/dvc.lock", ".dvc/cache", "reports")


def pulled() -> None:
    remove(*(path_of(kind, "x").parent.as_posix() for kind in FOLDERS))


def flipped() -> None:
    path = path_of("scores", "i0002")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # a hard link into the cache
    path.write_bytes(data)


def half_weight(raw: dict[str, Any]) -> None:
    raw["recipes"]["grpo"]["score_rollouts"]["rewards"][0]["weight"] = 0.5


def scored_again() -> None:
    """As a `dvc repro` that was killed behind score_rollouts@i0001, after an edit of the reward."""
    from dvc.repo import Repo

    edit(half_weight)()
    write_json(make_plan(read_params()), PLAN_FILE)
    load_stage("score_rollouts").execute("i0001")
    for address in ("check", "score_rollouts@i0001"):
        Repo().commit(address, force=True)


def sealed() -> None:
    result = CliRunner().invoke(cli, ["seal", "i0001", "--keep", "none"])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"


def other_code() -> None:
    path = Path("my_rewards.py")
    path.write_text(path.read_text().replace("/ 8", "/ 9"))


def appended(key: str, previous: str, recipe: str) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        item = {"previous": previous, "recipe": recipe, "reference": BASE_KEY}
        raw["iterations"][key] = item

    return change


def without_branch(raw: dict[str, Any]) -> None:
    del raw["iterations"]["own0002"]


def killed_behind(stage: str) -> State:
    """`dvc repro` killed behind a stage of i0002."""
    later = ITERATION_STAGES[ITERATION_STAGES.index(stage) + 1 :]
    lost = {(name, "i0002") for name in later}
    shown = KEYS if not lost else ("i0001", "own0002")
    scored = {"score_rollouts", "compute_advantages", "measure_logprobs"}.isdisjoint(later)
    states = {} if scored else {"other": []}
    return State(forget(*lost), missing=lost, shown=shown, waiting=states)


AFTER_I0001 = {(stage, "i0001") for stage in AFTER_SCORES} | steps("i0002", "own0002")
EDITED_REWARD = AFTER_I0001 | {("score_rollouts", "i0001")}
STATES = {
    "finished": State(lambda: None),
    "fresh": State(fresh, missing={*BASE_STEPS, *steps(*KEYS)}, shown=()),
    "only the base policy": State(
        forget(*steps(*KEYS)), missing=steps(*KEYS), shown=(), waiting={"other": []}
    ),
    **{f"killed behind {stage}": killed_behind(stage) for stage in ITERATION_STAGES[:-1]},
    "scores there and not in dvc.lock": State(
        forget(("score_rollouts", "i0002"), files=False),
        missing=[("score_rollouts", "i0002")],
        stale={(stage, "i0002") for stage in AFTER_SCORES},
        reread=[("compute_advantages", "i0002")],
    ),
    "policy lost": State(
        forget(("update_policy", "i0002")),
        missing=[("update_policy", "i0002")],
        stale=[("evaluate_policy", "i0002")],
        shown=("i0001", "own0002"),
        reread=[("evaluate_policy", "i0002")],
    ),
    "edited reward": State(edit(half_weight), stale=EDITED_REWARD, changed=["i0001", "i0002"]),
    "scores made again": State(
        scored_again,
        stale=AFTER_I0001,
        changed=["i0002"],
        shown=(),
        reread=[("compute_advantages", "i0001")],
        waiting={"other": ["i0001"]},
    ),
    "edited loss of a recipe that no iteration has": State(
        edit(lambda raw: raw["recipes"].update(unused={"extends": "grpo", "update_policy": {}}))
    ),
    "edited learning rate of a branch": State(
        edit(lambda raw: raw["recipes"]["own"]["update_policy"].update(learning_rate=1e-5)),
        stale=[("update_policy", "own0002"), ("evaluate_policy", "own0002")],
    ),
    "edited evaluation": State(
        edit(lambda raw: raw["evaluate_policy"].update(temperature=0.5)),
        stale={("evaluate_policy", key) for key in (BASE_KEY, *KEYS)},
    ),
    "edited data": State(
        edit(lambda raw: raw["data"]["train"][0].update(below=7)),
        stale={*BASE_STEPS, *steps(*KEYS)},
    ),
    "other code of a reward": State(other_code, stale=EDITED_REWARD, waiting={"other": [*KEYS]}),
    "sealed": State(sealed),
    "pulled": State(
        pulled, gone=[("init_policy", BASE_KEY), *(("update_policy", key) for key in KEYS)]
    ),
    "damaged": State(flipped, damaged=["artifacts/scores/i0002.parquet"]),
    "table away": State(
        lambda: remove("artifacts/scores/i0002.parquet"), gone=[("score_rollouts", "i0002")]
    ),
    "iteration appended": State(
        edit(appended("i0003", "i0002", "grpo")),
        missing=steps("i0003"),
        waiting={"other": []},
    ),
    "branch appended": State(
        edit(appended("far0003", "own0002", "own")),
        missing=steps("far0003"),
        waiting={"other": []},
    ),
    "branch taken out": State(edit(without_branch), shown=("i0001", "i0002")),
    "re-score appended": State(
        edit(lambda raw: raw["rescores"].update(second={"recipe": "grpo"})),
        waiting={"second": [*KEYS]},
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("finished"))


@pytest.fixture(params=STATES)
def state(
    request: pytest.FixtureRequest,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> State:
    """The state that the current folder is in."""
    monkeypatch.chdir(copy(finished, tmp_path / "run"))
    found = STATES[request.param]
    found.make()
    return found


def said(*arguments: str, codes: Iterable[int] = (0,)) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code in codes, f"{arguments}: {result.output}\n{result.exception!r}"
    return result.stdout


def test_every_command_has_the_same_answer(state: State) -> None:
    status = json.loads(said("status", "--json"))
    training = [step for step in status["steps"] if step["stage"] != "track_iteration"]
    by_state: dict[str, set[Step]] = {}
    for step in training:
        by_state.setdefault(step["state"], set()).add((step["stage"], step["key"]))
    assert by_state.get("stale", set()) == set(state.stale)
    assert by_state.get("missing", set()) == set(state.missing)
    assert by_state.get("gone", set()) == set(state.gone)
    assert bool(status["stale_because"]) == bool(state.stale)

    checked = said("check")
    count = re.search(r"^(\d+) finished steps run again", checked, re.MULTILINE)
    assert int(count[1] if count else 0) == len(set(state.stale)), checked
    unfinished = re.search(r"^not run yet: (.*)$", checked, re.MULTILINE)
    keys = {key for _, key in state.missing} - {BASE_KEY}
    assert {*(unfinished[1].split(", ") if unfinished else [])} == keys
    waiting = re.findall(r"`rollbook rescore --stage (\w+)` would score (.*)", checked)
    assert {name: keys.split(", ") for name, keys in waiting} == {
        name: keys for name, keys in state.waiting.items() if keys
    }

    run = Run()
    shown = {step.key for chain in read_chains(run) for step in chain.steps}
    assert shown == set(state.shown)
    assert shown >= {
        key for key in run.params.iterations if steps(key) <= by_state.get("done", set())
    }

    if not {*BASE_STEPS} & set(state.missing):
        diagnosis = json.loads(said("doctor", "--chain", "i0002", "--json", codes=(0, 1)))
        assert diagnosis["changed"] == sorted(state.changed)
        note = edited(shown_chain(run, "i0002"))
        assert all(key in note for key in state.changed) and bool(note) == bool(state.changed)

    verified = json.loads(said("verify", "--json", codes=(0, 1)))
    assert [finding["path"] for finding in verified["findings"]] == [*state.damaged]
    notes = [note for note in verified["notes"] if "was made again since" in note]
    named = {
        step for step in by_state.get("stale", ()) if f"{step[0]}@{step[1]}" in " ".join(notes)
    }
    assert named == set(state.reread)
