"""`rollbook show` on a project as training leaves it, as a light clone, sealed, and tampered with."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from benchmarks.showing import make_iteration
from rollbook.cli.main import cli
from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.hashing import md5_of
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, read_json, schema_of, write_json, write_table
from tests.processes import PYTHONPATH
from tests.unit.views.show.project import ROWS, edit, names

MD5 = "0123456789abcdef" * 2
ABSENT = ("torch", "transformers", "datasets", "mlflow", "polars", "pandera", "dvc")
"""Packages that a look must do without."""


def show(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["show", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def facts(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(show(*arguments, "--json"))
    return found


def test_a_rollout_from_prompt_to_gradient(looked_at: Path) -> None:
    ids = names()
    said = show(ids["rollout"])
    assert said.startswith(
        f"Rollout {ids['rollout']}\nanswer 3, training iteration i0002, recipe grpo"
    )
    for part in (
        "finish reason  length",
        "50, 50 of them to train on",
        "A = (1 − 0.5) / (0.5 + 0.0001) = +0.9998",
        "✓ computed again from 8 stored rollouts: 0.9998, as stored",
        "1.0000 on average, 1.0000 to 1.0000",
        "policy that generated",
        f"i0001, digest {Run().policy_digest('i0001')[:12]}, not on disk",
        f"i0002, digest {Run().policy_digest('i0002')[:12]}",
        "artifacts/updates/i0002.parquet",
        "there is no MLflow store here",
    ):
        assert part in said
    found = facts(ids["rollout"])
    assert found["kind"] == "rollout" and len(found["tokens"]) == 50
    assert "".join(token["text"] for token in found["tokens"]) == found["completion"]
    assert [answer["rollout_id"][-2:] for answer in found["siblings"]] == [
        "00",
        "01",
        "02",
        "04",
        "05",
        "06",
        "07",
    ]
    assert found["provenance"]["disagreements"] == []
    assert found["provenance"]["settings"]["update_policy"]["update"]["loss"]["name"] == "dapo"


def test_a_rollout_of_an_evaluation(looked_at: Path) -> None:
    ids = names()
    found = facts(ids["evaluation"])
    assert found["evaluation_set"] == "heldout"
    assert found["advantage"] is None and found["update"] is None
    assert found["provenance"]["policy_in"]["key"] == "i0002"
    assert found["prompt"]["messages"][0]["content"] == ids["evaluated"]
    said = show(ids["evaluation"])
    assert "evaluation of policy i0002 on heldout" in said
    assert "Advantage" not in said and "Update" not in said


def test_a_group(looked_at: Path) -> None:
    ids = names()
    found = facts(ids["group"])
    assert [answer["reward"] for answer in found["answers"]] == [1.0] * 4 + [0.0] * 4
    assert (found["mean"], found["std"], found["informative"], found["kept"]) == (0.5, 0.5, True, 8)
    assert "mean reward          0.5" in show(ids["group"])
    evaluated = facts(ids["evaluation"].rpartition("/")[0])
    assert len(evaluated["answers"]) == 5 and evaluated["answers"][4]["greedy"]
    assert evaluated["mean"] == 0.5 and evaluated["informative"] is None


def test_a_prompt_over_time(looked_at: Path) -> None:
    ids = names()
    found = facts(ids["evaluated"], "--over-time")
    assert [item["iteration"] for item in found["occurrences"]] == ["i0001", "i0002"]
    assert all(item["right"] == 0.5 and item["answer"]["greedy"] for item in found["occurrences"])
    trained = facts(ids["prompt"], "--over-time")
    (once,) = trained["occurrences"]
    assert once["group_id"] == ids["group"] and once["informative"] is True
    assert (once["rollouts"], once["mean_reward"], once["right"]) == (8, 0.5, 0.5)
    assert once["answer"]["rollout_id"] == f"{ids['group']}/00"
    assert facts(ids["prompt"])["occurrences"][0]["answer"] is None
    assert "one row: no other iteration drew" in show(ids["prompt"], "--over-time")
    assert "one row" not in show(ids["evaluated"], "--over-time")
    assert facts(ids["rollout"], "--over-time") == trained
    assert facts(ids["evaluation"], "--over-time") == found
    with pytest.raises(ArtifactError, match="i0002 is a policy"):
        show("i0002", "--over-time")


def test_a_policy(looked_at: Path) -> None:
    found = facts("i0002")
    assert found["policy"]["digest"] == Run().policy_digest("i0002")
    assert (found["previous"]["key"], found["steps_back"], found["recipe"]) == ("i0001", 2, "grpo")
    assert found["trained_on"]["rollouts"] == 16 and found["trained_on"]["informative"] == 2
    assert found["trained_on"]["same"] is True
    assert found["evaluations"][0]["set"] == "heldout"
    base = facts("i0000")
    assert base["previous"] is None and base["trained_on"] is None
    assert base["policy"]["place"] == "on disk" and base["base"] == {"name": "tiny"}
    assert "the base policy" in show("i0000")


def test_a_page_is_written_and_the_json_stays_clean(changeable: Path) -> None:
    ids = names()
    said = show(ids["rollout"], "--html", "sub/page.html")
    assert said == "sub/page.html: rollout page, open it in a browser\n"
    page = Path("sub/page.html").read_text(encoding="utf-8")
    assert ids["rollout"] in page
    # The project's dvc.lock is made up; what is printed about that is on the page too.
    assert "Note: what lies in the workspace of" in page and "of another run than dvc.lock" in page
    Path("dvc.lock").unlink()
    show(ids["rollout"], "--html", "sub/page.html")
    assert "Note: " not in Path("sub/page.html").read_text(encoding="utf-8")
    result = CliRunner().invoke(cli, ["show", "i0001", "--json", "--html", "page.html"])
    assert json.loads(result.stdout)["kind"] == "policy"
    assert "Policy i0001" in Path("page.html").read_text(encoding="utf-8")
    Path("file").touch()
    with pytest.raises(ArtifactError, match="cannot be written"):
        show("i0001", "--html", "file/page.html")


def test_everything_works_where_torch_does_not_and_nothing_is_written(changeable: Path) -> None:
    before = sorted(changeable.rglob("*"))
    code = (
        "import sys\n"
        f"for name in {ABSENT!r}: sys.modules[name] = None\n"
        "from rollbook.cli.main import cli\n"
        "for arguments in sys.argv[1:]:\n"
        "    cli.main(['show', *arguments.split()], standalone_mode=False)\n"
        "import os\n"
        "assert 'pandas' not in sys.modules and 'OPENBLAS_NUM_THREADS' not in os.environ\n"
    )
    ids = names()
    wanted = [*ids.values(), "i0002", f"{ids['evaluated']} --over-time", f"{ids['rollout']} --json"]
    result = subprocess.run(
        [sys.executable, "-c", code, *wanted],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": PYTHONPATH, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "as stored" in result.stdout
    assert sorted(changeable.rglob("*")) == before


def test_a_light_clone_says_what_is_not_there(changeable: Path) -> None:
    ids = names()
    shutil.rmtree("artifacts/policies")
    for kind in ("updates", "logprobs"):
        path_of(kind, "i0002").unlink()
    found = facts(ids["rollout"])
    assert all(token["text"] is None for token in found["tokens"])
    assert "that of i0001: not on disk; `dvc repro` makes it" in found["decoded"]
    assert found["update"] is None and found["advantage"]["arithmetic"] is None
    assert any("artifacts/updates/i0002.parquet" in line for line in found["provenance"]["missing"])
    said = show(ids["rollout"])
    assert "[22]" in said and "11111" in said  # ids in the strip, the stored text above it
    assert "nothing is known of an update yet" in said
    assert "not on disk: artifacts/logprobs/i0002.parquet" in said
    path_of("rollouts", "i0002").unlink()
    with pytest.raises(ArtifactError, match=r"rollouts/i0002\.parquet: is not on disk"):
        show(ids["rollout"])
    over_time = facts(ids["prompt"])
    assert over_time["occurrences"] == [] and "rollouts of i0002" in over_time["missing"][0]


def test_a_sealed_and_pruned_iteration(changeable: Path) -> None:
    """Params.yaml knows it no more; its recipe, md5s and what became of its policy are in `sealed/`."""
    Path("params.yaml").write_text(
        "iterations:\n  i0002: {previous: i0001, recipe: grpo, reference: i0000}\n"
    )
    Path("dvc.lock").unlink()
    Path("sealed").mkdir()
    entry = {"previous": "i0000", "recipe": "older", "reference": "i0000"}
    about: dict[str, Any] = {"version": 1, "run": {}, "recipes": {"older": {}}}
    about |= {"iterations": {"i0001": entry}, "plan": {"i0001": {}}, "pruned": ["i0001"]}
    write_json(about, Path("sealed/i0001-i0001.json"))
    Path("sealed/i0001-i0001.dvc").touch()
    Path("sealed/i0001-i0001.yaml").write_text(
        "schema: '2.0'\nstages:\n  generate_rollouts@i0001:\n    cmd: x\n    outs:\n"
        f"    - path: artifacts/rollouts/i0001.parquet\n      hash: md5\n      md5: {MD5}\n      size: 1\n"
    )
    found = facts(names("i0001")["rollout"])["provenance"]
    assert (found["recipe"], found["sealed"]) == ("older", "i0001-i0001")
    assert "rollbook seal --rebuild i0001" in found["policy_out"]["place"]
    assert [item["md5"] for item in found["origins"] if "rollouts" in item["path"]] == [MD5]
    policy = facts("i0001")
    assert policy["sealed"] == "i0001-i0001" and policy["previous"]["key"] == "i0000"
    later = facts(names()["rollout"])["provenance"]
    assert later["policy_in"]["key"] == "i0001"
    assert "pruned" in later["policy_in"]["place"]


def test_tampering_is_told(changeable: Path) -> None:
    ids = names()
    rewards = [1.0] * 4 + [0.0] * 4
    edit("scores", "i0002", reward=[0.5, *rewards[1:], *rewards])
    problems = facts(ids["rollout"])["provenance"]["disagreements"]
    assert any(
        "artifacts/advantages/i0002.parquet was made from scores" in line for line in problems
    )
    said = show(ids["rollout"])
    assert "✗ artifacts/advantages/i0002.parquet was made from scores" in said
    edit("advantages", "i0002", advantage=[3.0] * 16)
    assert "✗ computed again" in show(ids["rollout"])
    edit("rollouts", "i0002", text=["other"] * 16)
    assert facts("i0002")["trained_on"]["same"] is False


def test_damaged_and_misplaced_tables_are_errors(changeable: Path) -> None:
    ids = names()
    shutil.copy(path_of("rollouts", "i0001"), path_of("rollouts", "i0002"))
    with pytest.raises(ArtifactError, match="holds rollouts i0001"):
        show(ids["rollout"])
    path_of("rollouts", "i0002").write_bytes(b"PAR1 nothing")
    with pytest.raises(ArtifactError, match="truncated or damaged"):
        show(ids["rollout"])


def test_the_run_in_mlflow_is_linked(changeable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(changeable))
    Path("mlflow").mkdir()
    digest = Run().policy_digest("i0002")
    with closing(sqlite3.connect("mlflow/mlflow.db")) as store:
        store.execute(
            "CREATE TABLE runs (run_uuid, experiment_id, lifecycle_stage, status, end_time)"
        )
        store.execute("CREATE TABLE tags (run_uuid, key, value)")
        for run, key, ended in (("old", "i0002", 1), ("new", "i0002", 2), ("other", "i0001", 3)):
            store.execute("INSERT INTO runs VALUES (?, 7, 'active', 'FINISHED', ?)", (run, ended))
            store.execute("INSERT INTO tags VALUES (?, 'policy_digest.out', ?)", (run, digest))
            store.execute("INSERT INTO tags VALUES (?, 'iteration', ?)", (run, key))
        store.commit()
    found = facts(names()["rollout"])["provenance"]["mlflow"]
    assert found["run_id"] == "new"
    assert found["url"].endswith("/#/experiments/7/runs/new")
    assert "`rollbook ui` sends it" in facts("i0001")["mlflow"]["how"]
    Path("mlflow/mlflow.db").write_bytes(b"not a database, but long enough to be taken for one" * 9)
    assert f"policy_digest.out` = '{digest}'" in facts("i0002")["mlflow"]["how"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert "in the MLflow at http://tracker:5000" in facts("i0002")["mlflow"]["how"]


def test_recipes_are_found_in_any_yaml(changeable: Path) -> None:
    Path("params.yaml").write_text(
        "seed: 0\niterations:\n  i0001: &one\n    previous: i0000\n    recipe: slow\n"
        "  i0002: {<<: *one, recipe: 'fast one'}\n"
    )
    assert (facts("i0001")["recipe"], facts("i0002")["recipe"]) == ("slow", "fast one")
    Path("params.yaml").write_text("iterations: {i0001: {recipe: inline}}\n")
    assert facts("i0001")["recipe"] == "inline"
    Path("params.yaml").write_text("iterations: [\n")
    assert facts("i0001")["recipe"] == ""
    Path("params.yaml").unlink()
    assert facts("i0001")["recipe"] == "" and facts("i0001")["previous"]["key"] == "i0000"


def test_help_has_an_example() -> None:
    assert "Example: rollbook show i0003/" in show("--help")


def record(stage: str, key: str, **content: Any) -> None:
    """Puts other entries into a run_info."""
    path = path_of(f"run_info/{stage}", key)
    write_json({**(read_json(path) if path.exists() else {}), **content}, path)


def in_a_line(*arguments: str) -> str:
    """What is shown, without its columns."""
    return " ".join(show(*arguments).split())


def test_commit_packages_and_engine(changeable: Path) -> None:
    git = {"commit": "0123456789abcdef", "dirty": True}
    packages = {"torch": "2.9", "transformers": "5.1", "numpy": "2.3", "pyarrow": "22", "vllm": "1"}
    ran = {"git": git, "packages": packages, "python": "3.11", "gpus": [], "cpu": "a processor"}
    engine = {"name": "vllm", "dtype": "bfloat16", "max_model_len": None}
    record("generate_rollouts", "i0002", environment={**ran, "gpus": ["a GPU"]})
    record("generate_rollouts", "i0002", settings={"generate": {"engine": engine}})
    record("score_rollouts", "i0002", environment=ran, runtime={"threads_used": 1})
    clean = {**ran, "git": {**git, "dirty": False}}
    record("update_policy", "i0002", environment=clean, runtime={"threads_used": 4})
    found = facts(names()["rollout"])["provenance"]
    generated, scored, _, updated = found["made"]
    assert found["engine"] == "{dtype: bfloat16, name: vllm}"
    assert generated["environment"] == "vllm 1, torch 2.9, transformers 5.1, Python 3.11, a GPU"
    assert scored["environment"] == "numpy 2.3, pyarrow 22, Python 3.11, a processor, 1 thread"
    assert updated["environment"].endswith("5.1, Python 3.11, a processor, 4 threads")
    assert (generated["commit"], generated["dirty"]) == (git["commit"], True)
    said = in_a_line(names()["rollout"])
    assert "commit 0123456789ab with changes, kept in run_info" in said
    assert "commit none: not run in a git repository" in said  # of compute_advantages
    assert "commit 0123456789ab update_policy@i0002" in in_a_line("i0002")


def test_a_policy_trained_with_lora(changeable: Path) -> None:
    settings = Run().iteration("i0002").settings("update_policy")
    lora = {"rank": 8, "alpha": 16, "dropout": None}
    record("update_policy", "i0002", settings={"update": {**settings["update"], "lora": lora}})
    assert facts("i0002")["settings"]["lora"] == lora
    assert "lora: {alpha: 16, rank: 8}" in in_a_line("i0002")


def test_log_probs_under_a_reference(changeable: Path) -> None:
    rollouts = pq.read_table(path_of("rollouts", "i0002"))
    ids = {name: rollouts[name] for name in ("rollout_id", "group_id", "prompt_id", "iteration")}
    columns = {
        "old_logprobs": rollouts["sampling_logprobs"].to_pylist(),
        "ref_logprobs": [[-0.25] * len(tokens) for tokens in rollouts["completion_token_ids"]],
        "values": [None] * len(rollouts),
        "entropies": [None] * len(rollouts),
    }
    types = {name: column.dtype for name, column in schema_of("logprobs").columns.items()}
    made = {name: pa.array(values, types[name]) for name, values in columns.items()}
    write_table(schema_of("logprobs").build({**ids, **made}), "logprobs", "i0002")
    base = Run().policy_digest("i0000")
    record("measure_logprobs", "i0002", inputs={"reference": base})
    found = facts(names()["rollout"])
    assert {token["ref_logprob"] for token in found["tokens"]} == {-0.25}
    assert found["tokens"][0]["old_logprob"] == found["tokens"][0]["sampling_logprob"]
    assert "log-prob old reference" in in_a_line(names()["rollout"])
    assert "-0.2500" in show(names()["rollout"])
    assert facts("i0002")["reference"]["key"] == "i0000"
    assert facts("i0001")["reference"] is None
    assert f"reference of the KL i0000, digest {base[:12]}" in in_a_line("i0002")


def test_a_reward_that_failed(changeable: Path) -> None:
    ids = names()
    scores = pq.read_table(path_of("scores", "i0002"))
    failed = [each == ids["rollout"] for each in scores["rollout_id"].to_pylist()]
    rewards = scores["reward"].to_pylist()
    values = [None if bad else reward for bad, reward in zip(failed, rewards, strict=True)]
    errors = ["numeric_answer: ValueError: \x1b[31mno" if bad else None for bad in failed]
    edit("scores", "i0002", reward=values, reward_numeric_answer=values, error=errors)
    found = facts(ids["rollout"])
    assert found["reward"] is None and found["rewards"][0]["value"] is None
    assert "✗ a reward function failed: numeric_answer: ValueError: ␛[31mno" in show(ids["rollout"])
    for answer in facts(ids["group"])["answers"]:
        assert (answer["error"] is not None) is (answer["rollout_id"] == ids["rollout"])
    assert " failed " in in_a_line(ids["group"])
    (once,) = facts(ids["prompt"])["occurrences"]
    assert once["rollouts"] == 8 and once["mean_reward"] == pytest.approx(3 / 7)


def test_a_rollout_that_was_not_trained_on(changeable: Path) -> None:
    ids = names()
    updates = pq.read_table(path_of("updates", "i0002"))
    left = [each == ids["rollout"] for each in updates["rollout_id"].to_pylist()]
    columns: dict[str, list[Any]] = {
        name: [
            None if out else each for out, each in zip(left, updates[name].to_pylist(), strict=True)
        ]
        for name in ("policy_logprobs", "ratio_mean", "ratio_min", "ratio_max", "clipped_fraction")
    }
    columns["reason"] = ["no signal in its group" if out else None for out in left]
    edit("updates", "i0002", trained=[not out for out in left], **columns)
    found = facts(ids["rollout"])
    assert found["update"]["trained"] is False
    assert {(token["ratio"], token["clipped"]) for token in found["tokens"]} == {(None, None)}
    said = show(ids["rollout"])
    assert "not trained on: no signal in its group" in said and "share of the loss" not in said
    assert "no signal in its group" in in_a_line(ids["group"])
    assert facts("i0002")["trained_on"]["trained"] == 15


def test_an_update_that_changed_nothing_breaks_no_chain(changeable: Path) -> None:
    before = Run().policy_digest("i0001")
    record("update_policy", "i0002", outputs={"policies": before})
    found = facts("i0002")
    assert (found["policy"]["digest"], found["steps_back"]) == (before, 1)
    assert found["previous"]["key"] == "i0001"
    assert facts("i0001")["steps_back"] == 1
    record("update_policy", "i0001", inputs={"policies": "0" * 64})
    assert facts("i0002")["steps_back"] is None


def test_branches_stand_where_their_number_does(changeable: Path) -> None:
    make_iteration("gspo0003", "i0002", ROWS)
    found = facts(names()["evaluated"], "--over-time")
    keys = ["i0001", "i0002", "gspo0003"]
    assert [item["iteration"] for item in found["occurrences"]] == keys
    assert Run().made_keys == ["i0000", *keys]


def test_another_run_than_dvc_lock_names_is_said(changeable: Path) -> None:
    info = path_of("run_info/update_policy", "i0002")
    outs = f"  a:\n    outs:\n    - path: {info}\n      md5: {md5_of(info)}\n"
    Path("dvc.lock").write_text(f"stages:\n{outs}")
    assert CliRunner().invoke(cli, ["show", "i0002"]).stderr == ""
    Path("dvc.lock").write_text(f"stages:\n{outs.replace(md5_of(info), 'f' * 32)}")
    result = CliRunner().invoke(cli, ["show", "i0002", "--json"])
    assert json.loads(result.stdout)["kind"] == "policy"
    assert result.stderr.startswith("note: what lies in the workspace of update_policy@i0002 is of")
    assert CliRunner().invoke(cli, ["show", "i0001"]).stderr == ""


def test_from_a_folder_below_the_project(looked_at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("artifacts/rollouts")
    found = CliRunner().invoke(cli, ["show", "i0002"]).exception
    assert isinstance(found, RollbookError)
    assert f"no params.yaml and no artifacts/ in {Path.cwd()}" in found.message


def test_a_rollout_names_its_pairs(looked_at: Path) -> None:
    group, rollout = names()["group"], names()["rollout"]
    prompt = show(group, "--json")
    assert "Pairs" not in show(rollout) and facts(rollout)["partners"] == []
    other = f"{group}/05"
    pair = {
        "pair_id": f"{rollout}-05",
        "group_id": group,
        "prompt_id": json.loads(prompt)["prompt"]["prompt_id"],
        "iteration": "i0002",
        "chosen_id": rollout,
        "rejected_id": other,
        "chosen_reward": 1.0,
        "rejected_reward": 0.25,
    }
    table = pa.Table.from_pylist([pair])
    write_table(schema_of("pairs").build({name: table[name] for name in pair}), "pairs", "i0002")
    [better], [worse] = facts(rollout)["partners"], facts(other)["partners"]
    assert better == {
        "pair_id": pair["pair_id"],
        "chosen": True,
        "rollout_id": other,
        "own_reward": 1.0,
        "reward": 0.25,
    }
    assert not worse["chosen"] and worse["rollout_id"] == rollout and worse["reward"] == 1.0
    assert "chosen over" in show(rollout) and "rejected for" in show(other)
    assert facts(f"{group}/01")["partners"] == []


def test_values_and_returns_stand_beside_their_tokens(looked_at: Path) -> None:
    rollout = names()["rollout"]
    assert "return" not in show(rollout).partition("Reward")[0]
    place = pq.read_table(path_of("rollouts", "i0002"))["rollout_id"].to_pylist().index(rollout)
    lengths = pa.compute.list_value_length(
        pq.read_table(path_of("rollouts", "i0002"))["completion_token_ids"]
    ).to_pylist()
    returns = [[0.5 + row] * length for row, length in enumerate(lengths)]
    edit("advantages", "i0002", token_returns=returns)
    found = facts(rollout)["tokens"]
    assert {token["token_return"] for token in found} == {0.5 + place}
    assert {token["value"] for token in found} == {None}
    said = show(rollout).partition("Reward")[0]
    assert "return" in said and f"{0.5 + place:.4f}" in said and "value" not in said
