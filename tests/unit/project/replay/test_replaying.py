"""Steps replayed for real, as processes of their own, on a small project: data, and scores of a user's own reward.

The reward file was edited after its commit, so its code is the commit's with the patch that was recorded.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from rollbook.cli.replay import FOLDER
from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.own_code import OLD_FILES
from rollbook.dvc.cache import cached_path
from rollbook.dvc.lock import HEAD, Entry, lock_of, read_entries, texts_of
from rollbook.project.plan import make_plan
from rollbook.project.plan_file import PLAN_FILE
from rollbook.project.replay.choosing import Choice, Options
from rollbook.project.replay.code_trees import CodeTrees
from rollbook.project.replay.programs import output_of
from rollbook.project.replay.running import FOLDER as SCRATCH_FOLDER
from rollbook.project.replay.running import Replayer
from rollbook.project.replay.stored import StoredArtifacts, dvc_md5
from rollbook.project.replay.verdict import StepVerdict
from rollbook.project.run.run import Run
from rollbook.project.sealing import Sealing, definitions_of
from rollbook.settings.params import read_params
from rollbook.settings.sealed import files_of
from rollbook.tables.artifacts import FOLDERS, path_of, read_json, write_json
from rollbook.tables.run_info import GitState
from tests.e2e.projects import commit, git
from tests.processes import PYTHONPATH
from tests.stored_iterations import settings, store
from tests.unit.project.replay.finished_steps import (
    DVC_CONFIG,
    IGNORED,
    kept,
    replay,
    run_step,
    verdict,
)

REWARD = '''"""Whether an answer is short, by a helper."""
from replayed_helper import LIMIT


def short(completions, **columns):
    return [1.0 if len(c[0]["content"]) <= LIMIT else 0.0 for c in completions]
'''
SCORE = "score_rollouts@i0001"
STEPS = f"prepare_data@i0000, {SCORE}"
SCORES = path_of("scores", "i0001")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished steps; look, do not touch."""
    folder = tmp_path_factory.mktemp("finished") / "project"
    folder.mkdir()
    with contextlib.chdir(folder):
        raw = settings(data__train=[{"name": "arithmetic", "below": 4}])
        raw["data"]["evaluation"] = {"heldout": {"name": "arithmetic", "below": 9, "prompts": 4}}
        rewards = [{"name": "function", "path": "mine.py:short"}]
        raw["recipes"]["grpo"]["score_rollouts"] = {"rewards": rewards}
        with Path("params.yaml").open("w") as stream:
            YAML().dump(raw, stream)
        Path(".gitignore").write_text(IGNORED)
        Path(".dvc").mkdir()
        Path(".dvc/config").write_text(DVC_CONFIG)
        Path("mine.py").write_text(REWARD)
        Path("replayed_helper.py").write_text("LIMIT = 3\n")
        git(folder, "init", "--quiet")
        commit(folder, "Before it ran")
        Path("replayed_helper.py").write_text("LIMIT = 1\n")
        store("i0001")
        write_json(make_plan(read_params()), PLAN_FILE)
        run_step("prepare_data", "i0000")
        run_step("score_rollouts", "i0001")
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished project as the current folder, to change at will; files and cache stay one."""
    for name in ("MLFLOW_TRACKING_URI", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    for entry in read_entries():
        for path, md5 in entry.outputs.items():
            Path(path).unlink()
            Path(path).hardlink_to(cached_path(md5))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    left_out = (".dvc/tmp", ".git/", FOLDER.parts[0])
    found = {
        file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()
    }
    return {
        name: file.read_bytes()
        for name, file in found.items()
        if not name.startswith(left_out) and "__pycache__" not in name
    }


def _tamper(path: Path, row: int = 3) -> str:
    """Changes one reward in place, its metadata kept, so that the table says as before what it is. Returns the row."""
    table = pq.read_table(path)
    rewards = table["reward"].to_pylist()
    rewards[row] = 0.25
    place = table.column_names.index("reward")
    changed = table.set_column(place, "reward", pa.array(rewards, pa.float64()))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), "tampered.parquet")
    with path.open("r+b") as stream:
        stream.write(Path("tampered.parquet").read_bytes())
        stream.truncate()
    Path("tampered.parquet").unlink()
    return str(table["rollout_id"][row].as_py())


def test_all_steps_are_identical_and_nothing_changes(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other" / "polars-0.0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: polars\nVersion: 0.0.1\n")
    monkeypatch.setenv("PYTHONPATH", f"{PYTHONPATH}:{package.parent}")
    monkeypatch.syspath_prepend(str(package.parent))
    before = _files(copy)
    result = replay("--all")
    assert result.exit_code == 0, result.output
    assert _files(copy) == before
    assert not SCRATCH_FOLDER.exists()
    assert "1 of 2: prepare_data@i0000: identical, " in result.output
    assert f"2 of 2: {SCORE}: identical, " in result.output
    assert "2 steps: 2 identical" in result.output
    assert "track_iteration" in result.output
    assert git(copy, "status", "--short") == " M replayed_helper.py\n?? dvc.lock\n"
    steps = json.loads((FOLDER / "all.json").read_text())["steps"]
    assert [(each["step"], each["outcome"]) for each in steps] == [
        ("prepare_data@i0000", "identical"),
        (SCORE, "identical"),
    ]
    assert {each["code"] for each in steps} == {"the worktree"}
    assert [each["path"] for each in steps[1]["outputs"]] == [
        "artifacts/metrics/score_rollouts/i0001.json",
        "artifacts/scores/i0001.parquet",
    ]
    [polars] = [each for each in steps[1]["environment"] if each["what"] == "package polars"]
    assert polars["now"] == "0.0.1"
    assert f"package polars: {polars['then']} then, 0.0.1 now" in result.output


def test_a_value_tampered_with_is_found_by_row_and_column(copy: Path) -> None:
    identity = _tamper(SCORES)
    prompts = path_of("prompts", "i0001")
    table = pq.read_table(prompts)
    answers = pa.array(["3", "6"])
    prompts.unlink()
    place = table.column_names.index("reference_answer")
    pq.write_table(table.set_column(place, "reference_answer", answers), prompts)
    result = replay(SCORE)
    assert result.exit_code == 1
    said = "the workspace (one file with DVC's cache) holds something else than was recorded"
    assert f"different: the replay made what was recorded, but {said}" in result.output
    assert "; `rollbook verify` says what restores it" in result.output
    assert (
        f"rollout_id {identity}, reward: 0.25 instead of 0.0; 1 of 8 rows differ" in result.output
    )
    found = verdict(SCORE)
    assert (found["outcome"], found["exit_code"]) == ("different", 1)
    outcomes = [each["comparison"]["outcome"] for each in found["outputs"]]
    assert outcomes == ["identical", "different"]
    [note] = found["notes"]  # what it was replayed from came from the cache
    assert note.startswith(
        f"{prompts}: the workspace holds something else than was read: prompt_id"
    )
    assert "reference_answer: '6' instead of '5'; 1 of 2 rows differ" in note


def test_other_code_and_the_recorded_one(copy: Path) -> None:
    Path("replayed_helper.py").write_text("LIMIT = 20\n")
    commit(copy, "A helper edited")
    result = replay(SCORE)
    assert result.exit_code == 0, result.output
    found = verdict(SCORE)
    assert found["outcome"] == "identical"
    assert found["code"].endswith("with the recorded patch")
    assert f"ran code and params.yaml of {found['code']}\n" in result.output
    assert found["code_since"] == ["code replayed_helper.py: changed"]

    other = replay(SCORE, "--with-code", "HEAD")
    assert other.exit_code == 1, other.output
    texts = [each["comparison"]["text"] for each in verdict(SCORE)["outputs"]]
    assert "/03, reward: 1.0 instead of 0.0; 1 of 8 rows differ" in texts[1]
    assert texts[0].startswith("reward ")

    Path("replayed_helper.py").write_text("LIMIT = 2 - 1\n")
    refactored = replay(SCORE, "--with-code", "worktree")
    assert refactored.exit_code == 0, refactored.output
    assert verdict(SCORE)["outcome"] == "same content"
    assert "another digest of settings and code" in refactored.output


@pytest.mark.parametrize(
    ("hashing", "compared"), [("return ast.unparse(tree)", False), ("return _written(tree)", True)]
)
def test_hashes_of_another_python_count_unless_the_recorded_code_makes_others(
    copy: Path, hashing: str, compared: bool
) -> None:
    files = {"pipeline/code.py": f"def _analysed(tree):\n    {hashing}\n"}
    files |= dict.fromkeys(OLD_FILES, "")
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    commit(copy, "Under its old names")
    recorded = Run().needed_info("score_rollouts", "i0001")
    git_then = GitState(commit=git(copy, "rev-parse", "HEAD").strip())
    around = replace(recorded.environment, python="3.9.1", git=git_then)
    Path("replayed_helper.py").write_text("LIMIT = 20\n")  # so that today's code is another
    [entry] = [each for each in read_entries() if each.key == "i0001"]
    choice = Choice(Options(Run()), CodeTrees(SCRATCH_FOLDER / "code"))
    setting = choice.setting(entry, replace(recorded, environment=around))
    assert setting.digest == (recorded.digest if compared else "")
    said = "it ran under Python 3.9, which hashes of code depended on then, so commit"
    assert [note.startswith(said) for note in setting.notes] == ([] if compared else [True])


def test_run_info_of_older_code(copy: Path) -> None:
    [entry] = [each for each in read_entries() if each.key == "i0001"]
    path = path_of("run_info/score_rollouts", "i0001")
    content = read_json(path)
    needed = ("settings", "code", "digest", "inputs", "outputs", "command", "runtime", "seconds")
    old = {name: content[name] for name in ("stage", "iteration", *needed)}
    path.unlink()
    write_json({**old, "environment": {"cpu": content["environment"]["cpu"], "git": None}}, path)
    md5 = kept(path)["md5"]
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().replace(entry.outputs[path.as_posix()], md5))
    result = replay(SCORE)
    assert result.exit_code == 0, result.output
    assert verdict(SCORE)["outcome"] == "identical"


def _move_cache_to_a_remote(remote: Path) -> None:
    shutil.move(".dvc/cache", remote)
    with Path(".dvc/config").open("a") as stream:
        stream.write(f"    remote = there\n['remote \"there\"']\n    url = {remote}\n")


def test_a_clone_with_nothing_but_a_remote(copy: Path, tmp_path: Path) -> None:
    _move_cache_to_a_remote(tmp_path / "remote")
    shutil.rmtree("artifacts")
    result = replay(SCORE)
    assert result.exit_code == 0, result.output
    assert verdict(SCORE)["outcome"] == "identical"
    assert not Path("artifacts").exists() and not Path(".dvc/cache/files").exists()


def test_settings_of_a_sealed_iteration(copy: Path) -> None:
    part, params = "i0001", read_params()
    definitions, locked, outputs = files_of(part)
    write_json(definitions_of(Sealing(part, ["i0001"], []), params, make_plan(params)), definitions)
    entries = texts_of(Path("dvc.lock").read_text())
    locked.write_text(lock_of([entries[SCORE]]))
    outputs.write_text("wdir: ..\nouts: []\n")
    Path("dvc.lock").write_text(HEAD + entries["prepare_data"])
    content = YAML().load(Path("params.yaml").read_text())
    del content["iterations"]["i0001"]
    content["recipes"]["grpo"]["score_rollouts"]["rewards"] = [{"name": "numeric_answer"}]
    with Path("params.yaml").open("w") as stream:
        YAML().dump(content, stream)
    result = replay("score_rollouts")
    assert result.exit_code == 0, result.output
    found = verdict(SCORE)
    assert (found["step"], found["outcome"]) == (SCORE, "identical")
    assert (found["code"], found["settings"]) == ("the worktree", "params.yaml")


def _loses(path: Path) -> None:
    for entry in read_entries():
        if path.as_posix() in {**entry.inputs, **entry.outputs}:
            md5 = {**entry.inputs, **entry.outputs}[path.as_posix()]
            cached_path(md5).unlink(missing_ok=True)
    path.unlink()


def test_what_is_not_within_reach_is_named(copy: Path) -> None:
    rollouts = path_of("rollouts", "i0001")
    _loses(rollouts)
    result = replay(SCORE)
    assert result.exit_code == 2
    assert f"{rollouts}: neither the workspace nor DVC's cache has it" in result.output
    assert "and no remote gives it: nothing can be fetched: " in result.output
    assert f"`dvc pull {rollouts}`" in result.output
    assert verdict(SCORE)["outcome"] == "not replayed"


def test_an_input_changed_in_both_places_is_refused(copy: Path) -> None:
    prompts = path_of("prompts", "i0001")
    [entry] = [each for each in read_entries() if each.key == "i0001"]
    for file in (prompts, cached_path(entry.inputs[prompts.as_posix()])):
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data[:-1] + b"x")
    result = replay(SCORE)
    assert result.exit_code == 2
    assert "other bytes than were recorded" in result.output
    assert "in the workspace and DVC's cache, and no remote gives the right ones: " in result.output


def test_changed_settings_without_the_commit_they_ran_with(copy: Path) -> None:
    Path("params.yaml").write_text(
        Path("params.yaml").read_text().replace("mine.py:short", "mine.py:gone")
    )
    shutil.rmtree(".git")
    result = replay(SCORE)
    assert result.exit_code == 2
    assert "git has no commit" in result.output


def test_a_failing_program_is_quoted(project: Path) -> None:
    code = (
        "import sys; print('\\rbar\\rno such luck\\n\\n  hint: none', file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(RollbookError) as caught:
        output_of([sys.executable, "-c", code], project)
    assert str(caught.value) == "no such luck\nhint: none"


def test_what_a_library_says_at_exit_does_not_hide_the_error(project: Path) -> None:
    leaks = "".join(f"print(' - leaked function {n}', file=sys.stderr); " for n in range(20))
    error = "print('\\nmeasure@i0001: no such device\\n  hint: cpu', file=sys.stderr); "
    begin, end = "import sys; ", "sys.exit(1)"
    library = "print('nanobind: leaked 20 functions!', file=sys.stderr); "
    for code, name in (
        (error + library + leaks, "measure"),
        (error + library + leaks, ""),
        (error + leaks, "measure"),
    ):
        with pytest.raises(RollbookError, match=r"^measure@i0001: no such device\nhint: cpu"):
            output_of([sys.executable, "-c", begin + code + end], project, name)


@pytest.mark.parametrize(
    ("stopped_by", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; steps that have a verdict: 1"),
        (OSError(errno.EROFS, "Read-only file system", "x"), 2, "x: cannot be written"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "run the same command again"),
        (ValueError("not expected"), 2, "not expected"),
    ],
)
def test_what_is_cut_off_keeps_what_it_has(
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped_by: BaseException,
    code: int,
    said: str,
) -> None:
    once = Replayer.replay

    def replay_one(self: Replayer, entry: Entry) -> StepVerdict:
        if entry.key == "i0001":
            raise stopped_by
        return once(self, entry)

    monkeypatch.setattr(Replayer, "replay", replay_one)
    result = replay("--all")
    assert result.exit_code == code, result.output
    assert "1 of 2: prepare_data@i0000: identical, " in result.output
    assert said in result.output
    content = json.loads((FOLDER / "all.json").read_text())
    assert [each["step"] for each in content["steps"]] == ["prepare_data@i0000"]
    assert (content["verdict"], content["exit_code"], content["not_yet"]) == (None, None, [SCORE])


def test_a_verdict_that_cannot_be_written_is_shown_and_a_difference_stays_one(copy: Path) -> None:
    Path("file").touch()
    identical = replay(SCORE, "--json", "file/verdict.json")
    assert identical.exit_code == 2
    assert f"{SCORE}: identical" in identical.output
    assert "file/verdict.json: cannot be written" in identical.output
    _tamper(SCORES)
    assert replay(SCORE, "--json", "file/verdict.json").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score_rolouts"], "did you mean 'score_rollouts'"),
        (["score_rollouts@i0002"], "no finished step is called so"),
        (["report"], "is not replayed: it sums up"),
        (["track_iteration@i0001"], "rollbook track --rebuild"),
        ([], "say which steps, or --all"),
        (["--all", SCORE], "say either which steps or --all, not both"),
        ([""], f"'': names no program; a step is called STAGE or STAGE@K, such as {STEPS}"),
        (
            ["@i0001"],
            f"@i0001: names no program; a step is called STAGE or STAGE@K, such as {SCORE}",
        ),
        ([SCORE, "--tolerance", "nan"], "nan is no distance"),
        ([SCORE, "--tolerance", "inf"], "inf is no distance"),
        ([SCORE, "--rev", "nowhere"], "nowhere"),
        ([SCORE, "--with-code", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_asked_for(copy: Path, arguments: list[str], message: str) -> None:
    result = replay(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_altered_copies_in_the_cache_alone(copy: Path, tmp_path: Path) -> None:
    stored = StoredArtifacts(tmp_path / "fetched", in_workspace=True)
    [entry] = [each for each in read_entries() if each.key == "i0001"]
    md5 = entry.outputs[SCORES.as_posix()]
    assert list(stored.altered(SCORES.as_posix(), md5)) == []
    cached_path(md5).unlink()
    shutil.copy(SCORES, cached_path(md5))
    assert list(stored.altered(SCORES.as_posix(), md5)) == []
    _tamper(cached_path(md5))
    [found] = stored.altered(SCORES.as_posix(), md5)
    assert (found.where, found.at) == ("DVC's cache", cached_path(md5))
    stored.put(SCORES.as_posix(), md5, tmp_path / "scores.parquet")
    assert dvc_md5(tmp_path / "scores.parquet") == md5


def test_folders_are_put_together_from_the_cache(copy: Path, tmp_path: Path) -> None:
    folder = path_of(FOLDERS[0], "i0001")
    texts: Mapping[str, str] = {"a.txt": "a", "deep/b.txt": "b"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    listing = [{"md5": dvc_md5(folder / name), "relpath": name} for name in texts]
    md5 = dvc_md5(folder)
    for entry in listing:
        kept(folder / entry["relpath"])
    cached_path(md5).parent.mkdir(parents=True, exist_ok=True)
    cached_path(md5).write_text(json.dumps(listing))
    shutil.rmtree(folder)
    stored = StoredArtifacts(tmp_path / "fetched", in_workspace=True)
    stored.put(folder.as_posix(), md5, tmp_path / "policy")
    assert dvc_md5(tmp_path / "policy") == md5

    _move_cache_to_a_remote(tmp_path / "remote")
    elsewhere = StoredArtifacts(tmp_path / "fetched", in_workspace=True)
    elsewhere.put(folder.as_posix(), md5, tmp_path / "again")
    assert dvc_md5(tmp_path / "again") == md5
    damaged = tmp_path / "remote/files/md5" / listing[1]["md5"][:2] / listing[1]["md5"][2:]
    damaged.unlink()
    with pytest.raises(ArtifactError, match=f"lacks 1 of 2 objects: {listing[1]['md5']}"):
        StoredArtifacts(tmp_path / "afresh", True).put(folder.as_posix(), md5, tmp_path / "third")
    damaged.write_text("changed there")
    damaged.chmod(0o444)  # as DVC leaves them; it would remove others that are damaged
    with pytest.raises(ArtifactError, match="the remote has other bytes than were recorded of 1"):
        StoredArtifacts(tmp_path / "fourth", True).put(folder.as_posix(), md5, tmp_path / "third")
    shutil.copytree(tmp_path / "remote", ".dvc/cache", dirs_exist_ok=True)

    cached_path(listing[1]["md5"]).write_text("changed")
    [found] = stored.altered(folder.as_posix(), md5)
    assert (found.where, found.name) == ("DVC's cache", "deep/b.txt")


def test_a_result_that_dvc_commit_took_over(copy: Path) -> None:
    [entry] = [each for each in read_entries() if each.key == "i0001"]
    lock = Path("dvc.lock")
    lock.write_text(lock.read_text().replace(str(entry.digest), "f" * 64))
    result = replay(SCORE)
    assert result.exit_code == 0, result.output
    found = verdict(SCORE)
    assert found["outcome"] == "identical"
    [note] = found["notes"]
    assert note.startswith(f"it ran with settings and code {str(entry.digest)[:12]}, and is replay")
    assert "its lock entry says ffffffffffff: `dvc commit` took the result over" in note


def test_what_cannot_be_compared_is_not_called_different(copy: Path) -> None:
    metrics = path_of("metrics/score_rollouts", "i0001")
    _loses(SCORES)
    Path("replayed_helper.py").write_text("LIMIT = 2 - 1\n")
    same = replay(SCORE, "--with-code", "worktree")
    assert same.exit_code == 0, same.output
    assert "recorded bytes are not within reach; their content hash is the same" in same.output

    Path("replayed_helper.py").write_text("LIMIT = 20\n")
    both = replay(SCORE, "--with-code", "worktree")
    assert both.exit_code == 1, both.output  # the metrics are there, and are others
    assert verdict(SCORE)["outcome"] == "different"

    _loses(metrics)
    neither = replay(SCORE, "--with-code", "worktree")
    assert neither.exit_code == 2, neither.output
    found = verdict(SCORE)
    assert found["outcome"] == "not replayed" and not found["problem"]
    texts = [each["comparison"]["text"] for each in found["outputs"]]
    assert all("cannot be compared: artifacts/" in text for text in texts)


@pytest.mark.parametrize("name", ["HEAD", "finished", "faster"])
def test_steps_of_a_commit_and_of_an_experiment(copy: Path, name: str) -> None:
    commit(copy, "As it ran")
    head = git(copy, "rev-parse", "HEAD").strip()
    git(copy, "tag", "finished")
    git(copy, "update-ref", f"refs/exps/{head[:2]}/{head[2:]}/faster", head)
    if name != "HEAD":
        Path("dvc.lock").unlink()
        Path("replayed_helper.py").write_text("LIMIT = 20\n")
        content = YAML().load(Path("params.yaml").read_text())
        content["recipes"]["grpo"]["score_rollouts"]["rewards"] = [{"name": "numeric_answer"}]
        with Path("params.yaml").open("w") as stream:
            YAML().dump(content, stream)
        commit(copy, "Went on")
        _tamper(SCORES)  # also where DVC keeps it, so that is said
    result = replay(SCORE, "--rev", name)
    found = verdict(SCORE)
    if name == "HEAD":
        assert (result.exit_code, found["outcome"]) == (0, "identical")
        return
    assert result.exit_code == 1, result.output
    assert replay(SCORE).exit_code == 2  # the workspace has no finished step
    [altered] = [each for each in found["outputs"] if each["path"] == SCORES.as_posix()]
    assert altered["recorded"] == altered["replayed"]
    assert altered["comparison"]["text"].startswith(
        "the replay made what was recorded, but DVC's cache holds something else"
    )
    content = json.loads((FOLDER / f"{SCORE}.json").read_text())
    assert content["revision"] == f"{name} ({head[:8]})"


def test_the_device_is_what_is_asked_for_and_the_folder_stays(copy: Path) -> None:
    result = replay(SCORE, "--device", "cpu", "--keep")
    assert result.exit_code == 0, result.output
    assert f"what was run is in {SCRATCH_FOLDER}, until the next replay" in result.output
    tree = SCRATCH_FOLDER / "code" / "worktree"
    assert YAML().load((tree / "params.yaml").read_text())["runtime"]["device"] == "cpu"
    assert (tree / SCORES).exists()
    assert YAML().load(Path("params.yaml").read_text())["runtime"].get("device", "auto") == "auto"
    assert replay(SCORE).exit_code == 0
    assert not SCRATCH_FOLDER.exists()


@pytest.mark.parametrize(
    ("tolerance", "outcome", "code"),
    [("0.001", "within tolerance", 0), ("0.0001", "different", 1), ("0", "different", 1)],
)
def test_the_tolerance_that_is_asked_for(
    copy: Path, tolerance: str, outcome: str, code: int
) -> None:
    Path("mine.py").write_text(REWARD.replace("return [1.0 if", "return [1.0005 if"))
    result = replay(SCORE, "--with-code", "worktree", "--tolerance", tolerance)
    assert (result.exit_code, verdict(SCORE)["outcome"]) == (code, outcome), result.output
    if tolerance != "0":
        assert f"numbers may be {tolerance} apart, weights {tolerance}: asked for" in result.output
