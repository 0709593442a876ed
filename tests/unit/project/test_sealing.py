"""Sealing on projects that are finished, as it were: real files, real DVC, nothing trained."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

import rollbook
from rollbook.cli.iterate import next_iterations
from rollbook.cli.main import cli
from rollbook.cli.seal import kept_keys
from rollbook.cli.train_from import branch
from rollbook.core.errors import ConfigError, RollbookError
from rollbook.core.ids import PARAMS_FILE
from rollbook.core.yaml import read_yaml
from rollbook.dvc.lock import lock_of, texts_of, without
from rollbook.project import check, sealing
from rollbook.project.plan import make_plan
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.report import read_report
from rollbook.project.run.run import Run
from rollbook.settings.params import parse_params, read_params, read_text, write_text
from rollbook.settings.sealed import read_sealed
from rollbook.tables.artifacts import path_of, write_json
from rollbook.views.mlflow.chains import read_chains
from rollbook.views.page.choosing import PageLimits
from rollbook.views.page.curves import charts
from rollbook.views.page.environment import environments
from rollbook.views.page.findings import diagnosed, findings_html
from rollbook.views.page.lineage import drawing
from rollbook.views.page.overview import evaluation, recipes
from rollbook.views.page.rollouts import explored
from rollbook.views.page.shown import shown_chain
from tests.unit.settings.test_params import ROOT, shipped
from tests.unit.views.mlflow.project import Project

KEYS = ["i0001", "i0002", "i0003", "i0004"]
SHARED = "the same in every policy\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four iterations in dvc.lock and in DVC's cache. Policies share a file. Look, do not touch."""
    from dvc.repo import Repo

    from rollbook.stages.report import report

    folder = tmp_path_factory.mktemp("finished")
    with contextlib.chdir(folder):
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copy(ROOT / name, name)
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
        Project(len(KEYS)).finish(*KEYS)
        text = read_text().replace("  i0002:", "  # the second\n  i0002:")
        write_text(text)
        for key in ("i0000", *KEYS):
            (path_of("policies", key) / "tokenizer.json").write_text(SHARED)
        write_json(make_plan(read_params()), PLAN_FILE)
        report()
        Repo().commit(force=True)
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished project as the current folder, to change at will."""
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def sealed_once(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with i0001 to i0003 sealed, and the policies of i0001 and i0002 pruned. Look, do not touch."""
    folder = tmp_path_factory.mktemp("sealed") / "project"
    shutil.copytree(finished, folder)
    with contextlib.chdir(folder):
        _done("i0001-i0003")
    return folder


@pytest.fixture
def sealed(sealed_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sealed project as the current folder, to change at will."""
    shutil.copytree(sealed_once, tmp_path / "sealed")
    monkeypatch.chdir(tmp_path / "sealed")
    return tmp_path / "sealed"


def _seal(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["seal", *arguments], catch_exceptions=True)


def _done(*arguments: str) -> str:
    result = _seal(*arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.output


def _error(*arguments: str) -> str:
    result = _seal(*arguments)
    assert isinstance(result.exception, RollbookError), result.output
    return str(result.exception)


def _files(folder: Path) -> dict[str, bytes]:
    """Everything that counts, caches and locks of DVC left out."""
    found = [file for file in folder.rglob("*") if file.is_file()]
    kept = {str(file.relative_to(folder)): file for file in found}
    return {
        name: file.read_bytes() for name, file in kept.items() if not name.startswith(".dvc/tmp/")
    }


def test_iterations_leave_the_loop_and_stay_readable(copy: Path) -> None:
    chains, before = read_chains(Run()), read_report(Run())
    rollouts = rollbook.load("rollouts", join=("scores",))
    plan = json.loads(PLAN_FILE.read_text())
    lock, text = Path("dvc.lock").read_text(), read_text()
    entries = texts_of(lock)
    _done("i0001-i0003", "--keep", "every:2")

    assert list(read_yaml(PARAMS_FILE)["iterations"]) == ["i0004"]
    assert "  # the second\n" in read_text()
    assert set(read_text().splitlines()) <= set(text.splitlines())
    gone = {name for name in entries if name.rpartition("@")[2] in KEYS[:3]}
    assert len(gone) == 3 * 8
    assert texts_of(Path("dvc.lock").read_text()).keys() == entries.keys() - gone
    assert texts_of(Path("sealed/i0001-i0003.yaml").read_text()) == {
        name: entries[name] for name in gone
    }
    assert Run().sealed_outputs.keys() >= {
        "artifacts/policies/i0001",
        "artifacts/rollouts/i0003.parquet",
    }

    params = read_params()
    assert params.chain("i0004") == KEYS
    assert {key: item.kept for key, item in params.sealed.items()} == {
        "i0001": False,
        "i0002": True,
        "i0003": True,  # i0004 goes on from it
    }
    assert params.recipe_of("i0001") == params.recipes["grpo"]
    assert make_plan(params) == plan
    assert read_report(Run()) == before
    assert rollbook.load("rollouts", join=("scores",)).equals(rollouts)
    assert [chain.contents for chain in read_chains(Run())] == [chain.contents for chain in chains]
    assert Run().currency.reruns == []
    assert Run().currency.unfinished == []


def test_the_page_shows_of_sealed_iterations_what_it_showed_before(
    copy: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for folder in (copy, sealed):
        monkeypatch.chdir(folder)
        for file in Path("artifacts/policies").glob("*/tokenizer.json"):
            file.unlink()  # of no use: SHARED
        seen.append(_on_the_page())
    before, after = seen
    names = [*KEYS, *(f"eval:heldout/{key}" for key in ("i0000", *KEYS))]
    assert list(before["explored"].blocks) == names
    assert len(before["evaluation"][0].rows) == 5
    assert after == before


def _on_the_page() -> dict[str, Any]:
    run = shown_chain(Run())
    return {
        "explored": explored(run, PageLimits()),
        "charts": charts(run),
        "evaluation": evaluation(run),
        "recipes": list(recipes(run)),
        "findings": findings_html(diagnosed(run)),
        "lineage": drawing(run),
        "environments": environments(run),
    }


def test_dvc_keeps_what_is_sealed_and_nothing_of_what_is_pruned(sealed: Path) -> None:
    from dvc.repo import Repo

    def in_cache(md5: str) -> bool:
        return Path(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}").exists()

    md5s = Run().sealed_outputs
    kinds = ("policies", "optimizers", "values")
    pruned = {f"artifacts/{kind}/{key}" for kind in kinds for key in KEYS[:2]}
    assert {path for path, md5 in md5s.items() if not in_cache(md5)} == pruned
    assert not any(Path(path).exists() for path in pruned)
    listed = YAML(typ="safe").load(Path("sealed/i0001-i0003.dvc").read_text())["outs"]
    assert {out["path"]: out["md5"] for out in listed} == {
        path: md5 for path, md5 in md5s.items() if path not in pruned
    }

    before = _files(Path("artifacts"))
    repo = Repo()
    assert repo.status().keys() == {
        "check",
        "report",
    }  # always changed; other iterations in params.yaml
    repo.gc(workspace=True, force=True)
    shutil.rmtree("artifacts")
    repo.checkout(force=True)
    assert _files(Path("artifacts")) == before
    assert Path("artifacts/policies/i0003/tokenizer.json").read_text() == SHARED


def test_policies_that_others_need_are_kept(copy: Path) -> None:
    raw = shipped(
        iterations={
            "i0001": {"previous": "i0000", "recipe": "grpo", "reference": "i0000"},
            "i0002": {"previous": "i0001", "recipe": "grpo", "reference": "i0000"},
            "i0003": {"previous": "i0002", "recipe": "grpo", "reference": "i0001"},
            "i0004": {"previous": "i0003", "recipe": "grpo", "reference": "i0002"},
            "b0003": {"previous": "i0002", "recipe": "grpo", "reference": "i0000"},
        }
    )
    params = parse_params(raw)
    assert sealing.needed(["i0001"], params) == {"i0001"}
    assert sealing.needed(["i0001", "i0002"], params) == {"i0001", "i0002"}
    # i0003 and its reference are for i0004; i0002 is the reference of the end, and b0003 follows it
    assert sealing.needed(["i0001", "i0002", "i0003"], params) == {"i0002", "i0003"}
    assert sealing.needed(["i0001", "i0002", "i0003", "i0004"], params) == {"i0002", "i0004"}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("all", KEYS),
        ("none", []),
        ("last", ["i0004"]),
        ("every:2", ["i0002", "i0004"]),
        ("every:10", []),
        ("i0001,i0003-i0004", ["i0001", "i0003", "i0004"]),
    ],
)
def test_what_keep_names(keep: str, kept: list[str]) -> None:
    assert kept_keys(keep, KEYS) == kept


@pytest.mark.parametrize("keep", ["every:0", "every:x", "each:2", "i0007", "i0002-i0009", ""])
def test_keep_that_names_nothing(keep: str) -> None:
    with pytest.raises(ConfigError, match="--keep"):
        kept_keys(keep, KEYS)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("i0001-i0009", "there is no iteration 'i0005'"),
        ("i0002-i0003", "i0002 follows i0001, which is not sealed; begin with i0001"),
        ("i0003-i0001", "names no range"),
        ("i0001-b0002", "names no range"),
        ("all", "names no range"),
    ],
)
def test_ranges_that_cannot_be_sealed(copy: Path, part: str, message: str) -> None:
    before = _files(copy)
    assert message in _error(part)
    assert _files(copy) == before


def _stale() -> None:
    write_text(read_text().replace("learning_rate: 3.0e-4", "learning_rate: 1.0e-3"))


def _unfinished() -> None:
    lock = Path("dvc.lock")
    lock.write_text(without(lock.read_text(), ["evaluate_policy@i0002"]))


def _edited() -> None:
    Path("artifacts/metrics/score_rollouts/i0002.json").write_text("{}")


def _uncached() -> None:
    md5 = "4d"
    for line in Path("dvc.lock").read_text().split("artifacts/rollouts/i0002.parquet")[-1:]:
        md5 = line.split("md5: ")[1].split()[0].strip("'")
    Path(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}").unlink()


def _running() -> None:
    holder = {"pid": os.getppid(), "cmd": "dvc repro"}
    Path(".dvc/tmp").mkdir(exist_ok=True)
    Path(".dvc/tmp/rwlock").write_text(json.dumps({"write": {"/x": holder}, "read": {}}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_stale, "update_policy.learning_rate: 0.0003 → 0.001"),
        (_unfinished, "not finished: i0002"),
        (_edited, "artifacts/metrics/score_rollouts/i0002.json modified"),
        (_uncached, "artifacts/rollouts/i0002.parquet not in cache"),
        (_running, "DVC is busy"),
    ],
)
def test_what_is_not_finished_and_current_is_refused(
    copy: Path, change: Callable[[], None], message: str
) -> None:
    change()
    before = _files(copy)
    assert message in _error("i0001-i0003")
    assert {name: text for name, text in _files(copy).items() if name in before} == before
    assert not Path("sealed").exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def _kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the first `number` steps that change files happen, then none; DVC's own locks do not count."""
    left = [number]

    def counted(step: Any, place: str) -> Any:
        def run(path: Any, *arguments: Any, **named: Any) -> Any:
            if place in str(path) and ".dvc/tmp" not in str(path):
                if not left[0]:
                    raise Killed
                left[0] -= 1
            return step(path, *arguments, **named)

        return run

    for owner, name in ((Path, "replace"), (Path, "rename"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), ""))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink, ".dvc/cache"))


def _cut_off(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Seals in `folder` until step `number`. Returns whether there was one."""
    monkeypatch.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        _kill_at(patch, number)
        try:
            _done("i0001-i0003")
        except Killed:
            return True
    return False


WRITTEN = 3
"""Steps until the .dvc file is there; from then on sealing goes on instead of starting again."""


def test_cut_off_at_any_step_it_ends_as_if_it_had_not_been(
    copy: Path, sealed_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, before = _files(sealed_once), _files(copy)
    for number in range(WRITTEN + 1):
        assert _cut_off(copy, number, monkeypatch)
        assert {name: text for name, text in _files(copy).items() if name in before} == before
        assert Path("sealed/i0001-i0003.dvc").exists() == (number == WRITTEN)
    number, folder = 0, tmp_path / "cut-off"
    shutil.copytree(copy, folder)
    while _cut_off(folder, number, monkeypatch):
        _done("i0001-i0003")
        assert _files(folder) == expected, number
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        number += 1 if number < WRITTEN else 4
    assert number > 10


def test_between_the_dvc_file_and_params_yaml_everything_says_how_to_go_on(
    sealed: Path, finished: Path
) -> None:
    shutil.copy(finished / "params.yaml", "params.yaml")
    with pytest.raises(ConfigError, match="rollbook seal i0001-i0003"):
        read_params()
    _done("i0001-i0003")
    assert list(read_params().iterations) == ["i0004"]


def test_training_goes_on_behind_sealed_iterations(sealed: Path) -> None:
    _done("i0004")
    params = read_params()
    assert read_yaml(PARAMS_FILE)["iterations"] == {}
    assert list(params.sealed) == KEYS
    expected = {"i0005": {"previous": "i0004", "recipe": "grpo", "reference": "i0000"}}
    assert next_iterations(params, 5, None) == expected
    assert CliRunner().invoke(cli, ["iterate", "5"]).exit_code == 0
    params = read_params()
    assert params.chain("i0005") == [*KEYS, "i0005"]
    assert make_plan(params)["i0005"]["prepare_prompts"]
    assert branch(params, "i0004", "language_model", 1)
    with pytest.raises(ConfigError, match="rollbook seal --rebuild i0001"):
        branch(params, "i0001", "language_model", 1)
    assert "i0001 is sealed already" in _error("i0001-i0005")
    assert "not finished: i0005" in _error("i0005")


def test_what_was_pruned_is_nobodys_predecessor(sealed: Path) -> None:
    found = read_sealed()
    for name in ("previous", "reference"):
        item = {"previous": "i0003", "recipe": "grpo", "reference": "i0000", name: "i0001"}
        with pytest.raises(ConfigError, match=f"iterations.i0004.{name}: the policy of i0001"):
            parse_params(shipped(iterations={"i0004": item}), sealed=found)
    item = {"previous": "i0003", "recipe": "grpo", "reference": "i0003"}
    assert parse_params(shipped(iterations={"i0004": item}), sealed=found)
    with pytest.raises(ConfigError, match="there is no iteration 'i0009'"):
        parse_params(shipped(iterations={"i0004": {**item, "previous": "i0009"}}), sealed=found)


def test_a_recipe_is_what_it_was(sealed: Path) -> None:
    plan, rate = (
        make_plan(read_params()),
        read_params().recipe_of("i0001").update_policy.learning_rate,
    )
    write_text(read_text().replace("learning_rate: 3.0e-4", "learning_rate: 1.0e-3"))
    params = read_params()
    assert params.recipe_of("i0001").update_policy.learning_rate == rate
    assert make_plan(params)["i0001"] == plan["i0001"]
    assert make_plan(params)["i0004"] != plan["i0004"]
    write_text(read_text().replace("prompts_per_iteration: 256", "prompts_per_iteration: 128", 1))
    assert [read_params().prompts_drawn(key) for key in KEYS] == [256, 256, 256, 128]


def test_another_seed_is_said_to_change_nothing_that_is_sealed(sealed: Path) -> None:
    assert not [text for text in check.warnings_for(read_params()) if "sealed" in text]
    write_text(read_text().replace("\nseed: 0", "\nseed: 1"))
    [warning] = [text for text in check.warnings_for(read_params()) if "sealed" in text]
    assert warning.startswith("seed: is 1, and was 0 when i0001-i0003 was trained")


def test_a_lost_definition_is_an_error_that_names_it(sealed: Path) -> None:
    Path("sealed/i0001-i0003.json").unlink()
    with pytest.raises(
        ConfigError,
        match=r"sealed/i0001-i0003.json.*\n.*`git checkout sealed/i0001-i0003.json` brings it back",
    ):
        read_params()


LOCK = """schema: '2.0'
stages:
  check:
    cmd: a
    outs:
    - path: x
  'b@i0001':
    cmd: b
  b@i0002:
    cmd: c
datasets:
- name: d
"""


def test_entries_of_a_lock_file() -> None:
    entries = texts_of(LOCK)
    assert list(entries) == ["check", "b@i0001", "b@i0002"]
    assert entries["b@i0001"] == "  'b@i0001':\n    cmd: b\n"
    assert without(LOCK, ["b@i0001"]) == LOCK.replace(entries["b@i0001"], "")
    assert without(LOCK, list(entries)) == ""
    assert YAML(typ="safe").load(lock_of([entries["check"]]))["stages"].keys() == {"check"}
