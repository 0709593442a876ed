"""`rollbook lineage`: what made a policy, and the other way round; a clone without policies knows as much."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.errors import ArtifactError, RollbookError
from rollbook.core.process import exclusive
from rollbook.dvc.running_steps import DVC_LOCK, lock_file_of
from rollbook.project.ancestry import ancestry_of, find_policy, policy_digest
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import FOLDERS, path_of, read_facts, read_json, write_json
from rollbook.views.lineage.graph import escaped
from tests.finished_run import HOSTILE


@pytest.fixture
def seen(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished run as the current folder. Look, do not touch."""
    monkeypatch.chdir(finished)
    return finished


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["lineage", *arguments])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def facts(*arguments: str) -> Any:
    return json.loads(said(*arguments, "--json"))


def error(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["lineage", *arguments])
    assert isinstance(result.exception, RollbookError), result.output
    return str(result.exception)


def hash_of(kind: str, key: str) -> str:
    return read_facts(path_of(kind, key)).content_hash


def test_a_branch_back_to_the_base(seen: Path) -> None:
    found = facts("own0002")
    assert found["policy"] == hash_of("policies", "own0002")
    assert found["base_policy"] == hash_of("policies", "i0000")
    first, second = found["links"]
    assert (first["key"], first["previous"], first["recipe"]) == ("i0001", "i0000", "grpo")
    assert (second["key"], second["previous"], second["recipe"]) == ("own0002", "i0001", "own")
    assert first["policy"] == second["previous_policy"] == hash_of("policies", "i0001")
    assert second["rollouts"] == "artifacts/rollouts/own0002.parquet"
    assert (second["rows"], second["rollouts_hash"]) == (16, hash_of("rollouts", "own0002"))
    assert second["prompts_hash"] == hash_of("prompts", "own0002")
    assert second["replaced"] == []
    assert not first["reference_used"]
    assert second["reference_used"]
    assert (second["reference"], second["reference_policy"]) == ("i0000", found["base_policy"])
    [reward] = second["rewards"]
    assert reward == {
        "name": "my_rewards.py:varied",
        "settings": {"label": HOSTILE, "style": "conversational", "weight": 0.5},
    }
    assert (second["engine"]["name"], second["loss"]["name"]) == ("transformers", "grpo")
    assert first["estimator"]["name"] == "group"
    assert second["method"]["update_policy.loss.kl_coef"] == "0.1"
    assert (
        "my_rewards.py" in second["code"] and "rollbook/stages/update_policy.py" in second["code"]
    )
    assert first["code_digest"] != second["code_digest"]
    metrics = read_json(path_of("metrics/evaluate_policy", "own0002"))
    assert second["evaluation"]["heldout"]["mean"] == metrics["eval/heldout/mean_at_2"]


def test_as_text_each_iteration_says_what_changed(seen: Path) -> None:
    text = said("own0002")
    assert text.startswith(
        f"policy own0002 {hash_of('policies', 'own0002')[:12]}: 2 iterations and 32 rollouts"
    )
    assert text.index("\nown0002 ") < text.index("\ni0001 ") < text.index("\ni0000 ")
    [changes] = [line for line in text.splitlines() if line.startswith("  settings")]
    assert "update_policy.loss.name dapo → grpo" in changes
    assert "learning_rate 0.0003" in text
    assert "  settings   as i0001" in said("i0002")


def test_by_digest_and_folder(seen: Path) -> None:
    digest = hash_of("policies", "i0002")
    assert facts(digest[:10]) == facts("i0002") == facts("artifacts/policies/i0002")
    assert facts("i0000")["links"] == []
    assert said("i0000").startswith("policy i0000")
    assert "did you mean 'i0002'" in error("i0003")
    assert "say a POLICY" in error()
    assert "say a POLICY" in error("")
    assert "not both" in error("i0002", "--uses", "code:rollbook/stages/check.py")
    short = error(digest[:1])
    assert "is the beginning of a digest of " in short and f"i0002 ({digest[:12]})" in short


def test_names_of_files_are_tidied_and_few_are_listed(seen: Path) -> None:
    assert said("--uses", "code:./rollbook/stages/../stages/update_policy.py") == said(
        "--uses", "code:rollbook/stages/update_policy.py"
    )
    unknown = error("--uses", "code:update_polcy.py")
    assert "rollbook/stages/update_policy.py" in unknown and unknown.count(".py") == 6


def test_where_nothing_is_yet(run: Path) -> None:
    """As in a fresh clone."""
    shutil.rmtree("artifacts")
    for asked in (["i0002"], ["--uses", "reward:numeric_answer"], ["--uses", "policy:i0002"]):
        assert "`rollbook pull` brings" in error(*asked)
        assert "nothing is allowed" not in error(*asked)


def test_while_steps_run_what_is_missing_is_theirs(run: Path) -> None:
    path_of("run_info/update_policy", "i0001").unlink()
    assert "`dvc checkout` restores" in error("i0002")
    with exclusive(lock_file_of("update_policy", "i0001"), "test"):
        assert "update_policy@i0001 is at work" in error("i0002")
        assert "update_policy@i0001 is at work" in error("i0001")


def test_another_run_than_dvc_lock_names_is_said(run: Path) -> None:
    command = ["lineage", "i0002"]
    assert CliRunner().invoke(cli, command).stderr == ""
    info = path_of("run_info/update_policy", "i0002")
    content = read_json(info)
    info.unlink()
    write_json({**content, "finished": "2001-01-01T00:00:00+00:00"}, info)
    result = CliRunner().invoke(cli, [*command, "--json"])
    json.loads(result.stdout)
    [line] = result.stderr.splitlines()
    assert line.startswith("note: what lies in the workspace of update_policy@i0002 is of another")
    with exclusive(DVC_LOCK, "test"):
        assert "DVC is at work" in CliRunner().invoke(cli, command).stderr


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "i0001", "i0002"],
        ["lineage", "i0001"],
        ["verify"],
        ["status"],
        ["pull"],
    ],
)
def test_commands_say_where_to_run_them(
    seen: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir("rescores")
    found = CliRunner().invoke(cli, command).exception
    assert isinstance(found, RollbookError)
    assert found.hint == f"run from the project's folder: cd {seen}"
    replayed = CliRunner().invoke(cli, ["replay", "--all"])
    assert replayed.exit_code == 2 and f"cd {seen}" in replayed.stderr


def test_a_clone_without_policies_and_tables_says_the_same(run: Path) -> None:
    before = facts("i0002")
    for kind in (*FOLDERS, "rollouts", "scores", "prompts", "advantages"):
        shutil.rmtree(Path("artifacts") / kind)
    assert facts("i0002") == before
    assert policy_digest(Run(), before["policy"][:10]) == before["policy"]
    with pytest.raises(ArtifactError, match="on disk"):
        find_policy(Run(), "i0002")


def test_tables_made_again_since_are_said_and_not_exported(run: Path) -> None:
    shutil.copy("artifacts/rollouts/own0002.parquet", "artifacts/rollouts/new.parquet")
    Path("artifacts/rollouts/new.parquet").replace("artifacts/rollouts/i0001.parquet")
    info = path_of("run_info/score_rollouts", "i0002")
    content = read_json(info)
    content["outputs"]["scores"] = "0" * 64
    info.unlink()
    write_json(content, info)
    first, second = facts("i0002")["links"]
    assert (first["replaced"], second["replaced"]) == (["rollouts"], ["scores"])
    assert first["rows"] == 16
    assert "made again since: rollouts" in said("i0002")
    with pytest.raises(ArtifactError, match=r"rollouts/i0001\.parquet: is not what"):
        ancestry_of(Run(), policy_digest(Run(), "i0002")).refuse_replaced()


BOX = re.compile(r'  (\w+)\["([^"]*)"\]')
ARROW = re.compile(r"  (\w+) -->(?:\|\w+\|)? (\w+)")
FRAME = re.compile(r"flowchart LR|  subgraph \w+|  end")


def graph(*arguments: str) -> tuple[dict[str, str], set[tuple[str, ...]]]:
    """Boxes and arrows of a graph that has nothing else, and no box without an arrow."""
    lines = said(*arguments, "--mermaid").splitlines()
    boxes = dict(match.groups() for line in lines if (match := BOX.fullmatch(line)))
    arrows = {match.groups() for line in lines if (match := ARROW.fullmatch(line))}
    frame = [line for line in lines if FRAME.fullmatch(line)]
    assert len(boxes) + len(arrows) + len(frame) == len(lines)
    assert {name for arrow in arrows for name in arrow} == boxes.keys()
    return boxes, arrows


def test_the_graph_connects_what_was_read_and_made(seen: Path) -> None:
    boxes, arrows = graph("own0002")
    assert ("policy_i0001", "rollouts_own0002") in arrows
    assert ("policy_i0000", "logprobs_own0002") in arrows
    assert "logprobs_i0001" not in boxes
    assert boxes["policy_own0002"].startswith(
        f"policy own0002<br/>{hash_of('policies', 'own0002')[:12]}<br/>own<br/>"
    )


def test_labels_cannot_end_or_format_themselves() -> None:
    text = escaped('a"]; <b>_x_</b> #1 `y`\n\x1b é 1.5')
    assert text == "a#34;#93;#59; #60;b#62;#95;x#95;#60;/b#62; #35;1 #96;y#96;   é 1.5"


def test_what_a_reward_went_into(seen: Path) -> None:
    found = facts("--uses", f"reward:{HOSTILE}")
    assert found["uses"] == [
        {"step": "rescore_rollouts@other-i0001", "key": "i0001", "how": "asked again, weight 0.5"},
        {"step": "rescore_rollouts@other-i0002", "key": "i0002", "how": "asked again, weight 0.5"},
        {"step": "score_rollouts@own0002", "key": "own0002", "how": "rewarded, weight 0.5"},
        {
            "step": "rescore_rollouts@other-own0002",
            "key": "own0002",
            "how": "asked again, weight 0.5",
        },
    ]
    assert found["policies"] == ["own0002"]
    judged = facts("--uses", "reward:numeric_answer")
    assert {use["how"] for use in judged["uses"]} == {"judged"}
    assert judged["policies"] == []
    everywhere = facts("--uses", "reward:my_rewards.py:varied")
    assert everywhere["policies"] == ["i0001", "i0002", "own0002"]
    assert "did you mean 'numeric_answer'" in error("--uses", "reward:numeric")


def test_what_data_went_into(seen: Path) -> None:
    found = facts("--uses", "data:arithmetic")
    assert {
        "step": "prepare_prompts@i0001",
        "key": "i0001",
        "how": "asked 4 prompts of it, of 4",
    } in found["uses"]
    assert found["policies"] == ["i0001", "i0002", "own0002"]
    judged = facts("--uses", "data:heldout")
    assert judged["policies"] == []
    assert "evaluate_policy@i0000" in {use["step"] for use in judged["uses"]}


def test_what_code_went_into(run: Path) -> None:
    found = facts("--uses", "code:my_rewards.py")
    assert [use["step"] for use in found["uses"]] == [
        "score_rollouts@i0001",
        "rescore_rollouts@other-i0001",
        "score_rollouts@i0002",
        "rescore_rollouts@other-i0002",
        "score_rollouts@own0002",
        "rescore_rollouts@other-own0002",
    ]
    assert all(use["how"].endswith("as it is now") for use in found["uses"])
    assert found["policies"] == ["i0001", "i0002", "own0002"]
    Path("my_rewards.py").write_text("def varied(completions, **kwargs):\n    return [0.0]\n")
    assert "another than now" in said("--uses", "code:my_rewards.py")
    base = facts("--uses", "code:tiny.py")
    assert base["thing"] == "code:rollbook/components/policies/tiny.py"
    assert base["policies"] == ["i0001", "i0002", "own0002"]
    assert all(use["how"].endswith("as it is now") for use in base["uses"])
    assert "could be" in error("--uses", "code:base.py")


def test_what_a_policy_went_into(seen: Path) -> None:
    found = facts("--uses", "policy:i0001")
    assert {use["step"]: use["how"] for use in found["uses"]} == {
        "evaluate_policy@i0001": "judged it",
        **{
            f"{stage}@{key}": how
            for key in ("i0002", "own0002")
            for stage, how in (
                ("prepare_prompts", "rendered prompts for it"),
                ("generate_rollouts", "sampled from it"),
                ("update_policy", "trained on from it"),
            )
        },
        **({"measure_logprobs@own0002": "measured its log-probs"} if measured("own0002") else {}),
    }
    assert found["policies"] == ["i0002", "own0002"]
    base = facts("--uses", "policy:i0000")
    hows = {use["step"]: use["how"] for use in base["uses"]}
    assert hows["measure_logprobs@own0002"] == "measured its log-probs as the reference"
    assert base["policies"] == ["i0001", "i0002", "own0002"]


def measured(key: str) -> bool:
    return bool(read_json(path_of("run_info/measure_logprobs", key))["settings"]["needs_old"])


@pytest.mark.parametrize("thing", ["reward", "rewards:x", "data:", "numeric_answer"])
def test_a_thing_that_cannot_be_read(seen: Path, thing: str) -> None:
    assert "cannot be read" in error("--uses", thing)


def test_a_graph_is_no_json(seen: Path) -> None:
    assert "does not go with --json" in error("i0001", "--mermaid", "--json")


def record(stage: str, key: str, **content: Any) -> None:
    """Puts other entries into a run_info."""
    path = path_of(f"run_info/{stage}", key)
    found = read_json(path)
    path.unlink()
    write_json({**found, **content}, path)


def test_the_graph_of_what_a_thing_went_into(seen: Path) -> None:
    boxes, arrows = graph("--uses", f"reward:{HOSTILE}")
    assert boxes["thing"] == escaped(f"reward:{HOSTILE}")
    steps = {text.partition("<br/>")[0]: name for name, text in boxes.items()}
    rewarded = steps["score#95;rollouts@own0002"]
    assert {name for source, name in arrows if source == "thing"} == {
        name for name in boxes if name.startswith("step_")
    }
    assert {arrow for arrow in arrows if arrow[0] != "thing"} == {(rewarded, "policy_own0002")}
    boxes, arrows = graph("--uses", "code:my_rewards.py")
    assert {("policy_i0001", "policy_i0002"), ("policy_i0001", "policy_own0002")} < arrows
    _, arrows = graph("--uses", "code:tiny.py")
    made = {source for source, name in arrows if name == "policy_i0001" and source != "thing"}
    assert made and all(source.startswith("step_") for source in made)
    judged, arrows = graph("--uses", "reward:numeric_answer")
    assert not [name for name in judged if name.startswith("policy_")]


def test_an_update_that_changes_nothing_is_no_step_of_the_way(run: Path) -> None:
    before = policy_digest(Run(), "i0001")
    record("update_policy", "i0002", outputs={"policies": before})
    shutil.rmtree("artifacts/policies")
    ancestry = ancestry_of(Run(), policy_digest(Run(), "i0002"))
    assert (ancestry.digest, [update.key for update in ancestry.updates]) == (before, ["i0001"])
    assert facts("i0002") == facts("i0001")
    everything = ["i0001", "i0002", "own0002"]
    assert facts("--uses", "data:arithmetic")["policies"] == everything
    assert facts("--uses", "code:my_rewards.py")["policies"] == everything
    assert facts("--uses", "policy:i0000")["policies"] == everything


def test_a_file_that_only_a_rescore_read_made_no_policy(run: Path) -> None:
    # Older ones do not say of which re-score they are.
    record("rescore_rollouts/other", "i0001", files={"judge.txt": "0" * 64}, rescore="")
    found = facts("--uses", "data:judge.txt")
    assert [use["step"] for use in found["uses"]] == ["rescore_rollouts@other-i0001"]
    assert found["policies"] == []
