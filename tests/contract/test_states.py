"""check, status, verify, doctor, page and MLflow agree about a project, in every state that projects get into."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from rollbook.cli.main import cli
from rollbook.core.errors import RollbookError
from rollbook.core.ids import BASE_KEY
from rollbook.dvc.lock import LOCK_FILE, without
from rollbook.project import code
from rollbook.project.code import file_of_name
from rollbook.project.plan import load_stage, make_plan
from rollbook.project.plan_file import ITERATION_STAGES, ONCE_STAGES, PLAN_FILE
from rollbook.project.run.run import Run
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import FOLDERS, NAMED_TABLES, TABLES, path_of, write_json
from rollbook.tables.schemas.versions import UPGRADES, Upgrade, newest
from rollbook.views.mlflow.chains import read_chains
from rollbook.views.page.overview import edited
from rollbook.views.page.shown import shown_chain
from tests import finished_run
from tests.finished_run import copy, lock_says, make, write_settings

Step = tuple[str, str]
KEYS = ("i0001", "i0002", "own0002")
BASE_STEPS = [(name, BASE_KEY) for name in (*ONCE_STAGES, "evaluate_policy")]
DATA = Path("own.jsonl")
ROW = '{"question": "6 + 1?", "answer": "7"}\n'


def steps(*keys: str) -> set[Step]:
    """All steps of iterations."""
    return {(stage, key) for key in keys for stage in ITERATION_STAGES}


AFTER_SCORES = {"compute_advantages", "update_policy", "evaluate_policy"}
"""Stages of an iteration that follow from its scores."""
RESCORES = [("rescore_rollouts", f"other-{key}") for key in KEYS]
"""Stored re-scores of the run."""
MADE_AGAIN = "tables that they read, which were made again since"


@dataclass(frozen=True)
class State:
    """A state of the finished run of tests/finished_run.py, and what is true of it.

    Attributes:
        make: brings the run in the current folder into the state.
        stale, missing, gone: steps in these states; all others are done.
        changed: iterations that ran with another recipe than params.yaml has now.
        because: what changed, as `check` and `status` both name it.
        shown: iterations whose stored results belong together, which MLflow shows; None if it refuses.
        reread: steps, re-scores among them, that read what was made again since, or what no lock file names.
        damaged: paths whose bytes are not as recorded.
        unread: whether a file is so damaged that doctor and page cannot read it.
        lost, outdated: tables that are not here, and tables made from others than those here, as the doctor has them.
        waiting: iterations by re-score that would be scored.
        seals: whether i0001-i0002 may be sealed; by default if all their steps are done and the base is not stale.
        patches: what else is true, as values by the place of a name in the code.
    """

    make: Callable[[], object]
    stale: Iterable[Step] = ()
    missing: Iterable[Step] = ()
    gone: Iterable[Step] = ()
    changed: Iterable[str] = ()
    because: Iterable[str] = ()
    shown: Iterable[str] | None = KEYS
    reread: Iterable[Step] = ()
    damaged: Iterable[str] = ()
    unread: bool = False
    lost: Iterable[str] = ()
    outdated: Iterable[str] = ()
    waiting: dict[str, list[str]] = field(default_factory=dict)
    seals: bool | None = None
    patches: dict[str, Any] = field(default_factory=dict)


# --- what brings a run into a state -----------------------------------------------------------------


def settings() -> dict[str, Any]:
    """params.yaml of the run, with a data file; no finished work may be thrown away."""
    raw = finished_run.settings()
    raw["data"]["train"].append({"name": "file", "files": DATA.as_posix()})
    raw["runtime"]["max_rerun_hours"] = 0
    return raw


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


def together(*changes: Callable[[], None]) -> Callable[[], None]:
    """One change after the other."""

    def make_it() -> None:
        for change in changes:
            change()

    return make_it


def remove(*paths: str) -> None:
    for path in map(Path, paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def fresh() -> None:
    remove("artifacts", "dvc.lock", "rescores/dvc.lock", ".dvc/cache", "reports")


def pulled() -> None:
    remove(*(path_of(kind, "x").parent.as_posix() for kind in FOLDERS))


def rewritten(name: str, change: Callable[[bytearray], bytearray]) -> Callable[[], None]:
    """Other bytes in a file of the workspace; the one in the cache stays whole."""

    def make_it() -> None:
        path = Path(name)
        data = change(bytearray(path.read_bytes()))
        path.unlink()  # a hard link into the cache
        path.write_bytes(data)

    return make_it


def flipped(data: bytearray) -> bytearray:
    data[len(data) // 2] ^= 1
    return data


def cut_off(data: bytearray) -> bytearray:
    return data[: len(data) // 2]


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


def other_digest() -> None:
    """dvc.lock as another run of update_policy@own0002 left it, such as after a merge."""
    digest = next(
        entry.digest
        for entry in Run().entries
        if (entry.stage, entry.key) == ("update_policy", "own0002")
    )
    lock_says(str(digest), "f" * len(str(digest)))


def edit_in_place(change: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """params.yaml as it stands, with a change."""

    def make_it() -> None:
        raw = YAML(typ="safe").load(Path("params.yaml"))
        change(raw)
        write_settings(raw)

    return make_it


UPDATE = "rollbook/stages/update_policy.py"


def newer_code(analysed: Callable[[bytes], dict[str, Any]], source: bytes) -> dict[str, Any]:
    """Hash and imports of a source file, of a Rollbook that updates otherwise."""
    found = analysed(source)
    return found | ({"hash": "0" * 32} if source == file_of_name(UPDATE).read_bytes() else {})


VERSION = version("rollbook")
NEWER_VERSIONS = {
    kind: {**UPGRADES.get(kind, {}), newest(kind): Upgrade({})} for kind in (*TABLES, *NAMED_TABLES)
}
"""As of a Rollbook for which every table that lies here is of the version before."""


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
    rescored = "compute_advantages" not in later
    return State(
        forget(*((name, "i0002") for name in later)),
        missing={(name, "i0002") for name in later},
        shown=("i0001", "own0002"),
        reread=() if rescored else RESCORES[1:2],
    )


POLICIES = [("init_policy", BASE_KEY), *(("update_policy", key) for key in KEYS)]
PLAN = PLAN_FILE.as_posix()
SCORES = "artifacts/scores/i0002.parquet"
AFTER_I0001 = {(stage, "i0001") for stage in AFTER_SCORES} | steps("i0002", "own0002")
EDITED_REWARD = AFTER_I0001 | {("score_rollouts", "i0001")}
EVERYTHING = {*BASE_STEPS, *steps(*KEYS)}
STATES = {
    "finished": State(lambda: None),
    "fresh": State(fresh, missing=EVERYTHING, shown=()),
    "only the base policy": State(
        forget(*steps(*KEYS)), missing=steps(*KEYS), shown=(), reread=RESCORES
    ),
    "half run": State(
        forget(*steps("i0002", "own0002")),
        missing=steps("i0002", "own0002"),
        shown=["i0001"],
        reread=RESCORES[1:],
    ),
    **{f"killed behind {stage}": killed_behind(stage) for stage in ITERATION_STAGES[:-1]},
    "scores there and not in dvc.lock": State(
        forget(("score_rollouts", "i0002"), files=False),
        missing=[("score_rollouts", "i0002")],
        stale={(stage, "i0002") for stage in AFTER_SCORES},
        because=[MADE_AGAIN],
        reread=[("compute_advantages", "i0002"), RESCORES[1]],
    ),
    "policy lost": State(
        forget(("update_policy", "i0002")),
        missing=[("update_policy", "i0002")],
        stale=[("evaluate_policy", "i0002")],
        because=[MADE_AGAIN],
        shown=("i0001", "own0002"),
        reread=[("evaluate_policy", "i0002")],
    ),
    "dvc.lock lost": State(lambda: remove("dvc.lock"), missing=EVERYTHING, reread=RESCORES),
    "dvc.lock of another run": State(
        other_digest,
        stale=[("update_policy", "own0002"), ("evaluate_policy", "own0002")],
        because=[
            "run_info, which has what they ran with, is not on this machine, or of another run"
        ],
    ),
    "rescores/dvc.lock lost": State(
        lambda: remove("rescores/dvc.lock"), waiting={"other": [*KEYS]}
    ),
    "plan.json away": State(lambda: remove(PLAN), seals=False),
    "plan.json cut off": State(rewritten(PLAN, cut_off), damaged=[PLAN], seals=False, shown=None),
    "edited reward": State(
        edit(half_weight),
        stale=EDITED_REWARD,
        changed=["i0001", "i0002"],
        because=["score_rollouts.rewards.0.weight"],
    ),
    "scores made again": State(
        scored_again,
        stale=AFTER_I0001,
        changed=["i0002"],
        because=["score_rollouts.rewards.0.weight"],
        shown=(),
        reread=[("compute_advantages", "i0001"), RESCORES[0]],
        outdated=["artifacts/advantages/i0001.parquet"],
        waiting={"other": ["i0001"]},
    ),
    "edited loss of a recipe that no iteration has": State(
        edit(lambda raw: raw["recipes"].update(unused={"extends": "grpo", "update_policy": {}}))
    ),
    "edited learning rate of a branch": State(
        edit(lambda raw: raw["recipes"]["own"]["update_policy"].update(learning_rate=1e-5)),
        stale=[("update_policy", "own0002"), ("evaluate_policy", "own0002")],
        changed=["own0002"],
        because=["update_policy.learning_rate"],
    ),
    "edited reward of a branch and a re-score": State(
        edit(lambda raw: raw["recipes"]["own"]["score_rollouts"]["rewards"][0].update(weight=2.0)),
        stale={(stage, "own0002") for stage in ("score_rollouts", *AFTER_SCORES)},
        changed=["own0002"],
        because=["score_rollouts.rewards.0.weight"],
        waiting={"other": [*KEYS]},
    ),
    "edited evaluation": State(
        edit(lambda raw: raw["evaluate_policy"].update(temperature=0.5)),
        stale={("evaluate_policy", key) for key in (BASE_KEY, *KEYS)},
        because=["evaluate_policy.temperature"],
    ),
    "edited settings of the data": State(
        edit(lambda raw: raw["data"]["train"][0].update(below=7)),
        stale=EVERYTHING,
        because=["data.train.0.below"],
    ),
    "edited data file": State(
        lambda: DATA.write_text(2 * ROW.replace("6", "7")),
        stale=EVERYTHING,
        because=[DATA.as_posix()],
    ),
    "other code of a reward": State(
        other_code, stale=EDITED_REWARD, because=["my_rewards.py"], waiting={"other": [*KEYS]}
    ),
    "other Rollbook": State(
        lambda: None,
        stale=AFTER_I0001 - {("compute_advantages", "i0001")},
        because=[f"{VERSION} → 99", UPDATE],
        patches={
            "rollbook.project.code.CODE_HASH_VERSION": "newer",
            "rollbook.project.code._analysed": partial(newer_code, code._analysed),
            "rollbook.project.run.currency.installed_versions": lambda _: {"rollbook": "99"},
        },
    ),
    "tables of an older Rollbook": State(
        lambda: None,
        patches={"rollbook.tables.schemas.versions.UPGRADES": NEWER_VERSIONS},
    ),
    "sealed": State(sealed, seals=False),
    "sealed, then edited": State(
        together(sealed, edit_in_place(half_weight)),
        stale={(stage, "i0002") for stage in ("score_rollouts", *AFTER_SCORES)},
        changed=["i0002"],
        because=["score_rollouts.rewards.0.weight"],
        seals=False,
    ),
    "pulled": State(pulled, gone=POLICIES),
    "damaged": State(rewritten(SCORES, flipped), damaged=[SCORES], seals=False),
    "table cut off": State(
        rewritten(SCORES, cut_off),
        gone=[("score_rollouts", "i0002")],
        damaged=[SCORES],
        seals=False,
        unread=True,
    ),
    "run_info away": State(
        lambda: remove("artifacts/run_info/score_rollouts/i0001.json"),
        gone=[("score_rollouts", "i0001")],
        shown=(),
    ),
    "table away": State(lambda: remove(SCORES), gone=[("score_rollouts", "i0002")], lost=[SCORES]),
    "iteration appended": State(edit(appended("i0003", "i0002", "grpo")), missing=steps("i0003")),
    "branch appended": State(edit(appended("far0003", "own0002", "own")), missing=steps("far0003")),
    "branch taken out": State(edit(without_branch), shown=("i0001", "i0002")),
    "re-score appended": State(
        edit(lambda raw: raw["rescores"].update(second={"recipe": "grpo"})),
        waiting={"second": [*KEYS]},
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / DATA).write_text(ROW)
    return make(folder, settings())


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
    for place, value in found.patches.items():
        monkeypatch.setattr(place, value)
    return found


def said(*arguments: str, fails: bool | None = False) -> str:
    """What a command prints; it may fail with an error that is meant for users, and never crashes."""
    result = CliRunner().invoke(cli, arguments)
    expected = isinstance(result.exception, RollbookError | SystemExit | None)
    assert expected, f"{arguments}: {result.output}\n{result.exception!r}"
    assert fails in (None, result.exit_code != 0), (
        f"{arguments}: {result.output}\n{result.exception}"
    )
    return result.stdout


def test_every_command_has_the_same_answer(state: State) -> None:
    status = json.loads(said("status", "--json"))
    by_state: dict[str, set[Step]] = {}
    for step in status["steps"]:
        if step["stage"] != "track_iteration":
            by_state.setdefault(step["state"], set()).add((step["stage"], step["key"]))
    stale, missing, gone = (by_state.get(each, set()) for each in ("stale", "missing", "gone"))
    assert (stale, missing, gone) == (set(state.stale), set(state.missing), set(state.gone))
    assert bool(status["stale_because"]) == bool(stale)
    assert all(each in status["stale_because"] for each in state.because)
    assert bool(state.because) == bool(stale)

    _check_agrees(state, status)
    run = Run()
    _mlflow_agrees(state, run, by_state)
    if run.has("data", "train"):
        _doctor_and_page_agree(state, run, stale)
    _verify_agrees(state)
    for command in (["show", "i0002"], ["lineage", "i0002"], ["compare", "i0001", "i0002"]):
        said(*command, fails=None)
    if (seals := state.seals) is None:
        sealed_steps = steps("i0001", "i0002")
        seals = not sealed_steps & (stale | missing | gone) and not {*BASE_STEPS} & stale
    said("seal", "i0001-i0002", "--keep", "all", fails=not seals)


def _check_agrees(state: State, status: dict[str, Any]) -> None:
    """The same steps to run, for the same reason, and the same iterations and re-scores to finish."""
    checked = said("check", fails=bool(state.stale))  # max_rerun_hours is 0
    count = re.search(r"^(\d+) finished steps run again, from (\S+)", checked, re.MULTILINE)
    assert int(count[1] if count else 0) == len(set(state.stale)), checked
    assert all(each in checked for each in state.because), checked
    if count:
        first = next(step for step in status["steps"] if step["state"] == "stale")
        assert count[2] == f"{first['stage']}@{first['key']}"
    unfinished = re.search(r"^not run yet: (.*)$", checked, re.MULTILINE)
    keys = {key for _, key in state.missing} - {BASE_KEY}
    assert {*(unfinished[1].split(", ") if unfinished else [])} == keys
    waiting = re.findall(r"`rollbook rescore --stage (\w+)` would score (.*)", checked)
    assert {name: keys.split(", ") for name, keys in waiting} == state.waiting
    for name, by_key in status["rescores"].items():
        asked = [key for key, each in by_key.items() if each in ("stale", "missing")]
        assert [key for key in asked if key not in keys] == [
            key for key in state.waiting.get(name, []) if key not in keys
        ]


def _mlflow_agrees(state: State, run: Run, by_state: dict[str, set[Step]]) -> None:
    """MLflow shows all whose chain is done, and no iteration of which a step never ran."""
    if state.shown is None:
        with pytest.raises(RollbookError):
            read_chains(run)
        return
    shown = {step.key for chain in read_chains(run) for step in chain.steps}
    assert shown == set(state.shown)
    done = by_state.get("done", set())
    assert shown >= {
        key for key in run.params.iterations if steps(*run.chain(key).keys) <= done
    } - {key for _, key in state.gone}


def _doctor_and_page_agree(state: State, run: Run, stale: set[Step]) -> None:
    """They name the same iterations that ran with another recipe, which run again; and the tables not looked at."""
    if state.unread:
        for command in (["doctor", "--chain", "i0002"], ["page"]):
            said(*command, fails=True)
        return
    lost, outdated = set(), set()
    assert set(state.changed) <= {key for _, key in stale}
    for chain in run.chains:
        diagnosis = json.loads(said("doctor", "--chain", chain.tip, "--json", fails=None))
        changed = [key for key in chain.keys if key in state.changed]
        assert diagnosis["changed"] == changed
        note = edited(shown_chain(run, chain.tip))
        assert all(key in note for key in changed) and bool(note) == bool(changed)
        lost |= {*diagnosis["missing"]}
        outdated |= {*diagnosis["outdated"]}
    assert (lost, outdated) == (set(state.lost), set(state.outdated))


def _verify_agrees(state: State) -> None:
    """Damage where there is some, and the steps that read other versions than are recorded now."""
    verified = json.loads(said("verify", "--json", fails=bool(state.damaged)))
    assert [finding["path"] for finding in verified["findings"]] == [*state.damaged]
    notes = [note.split(": ")[0] for note in verified["notes"] if "was made again since" in note]
    named = re.findall(r"\w+@[\w-]+", " ".join(notes))
    more = re.findall(r" and (\d+) more", " ".join(notes))
    assert {*named} <= {f"{stage}@{key}" for stage, key in state.reread}
    assert len(named) + sum(map(int, more)) == len(set(state.reread))
