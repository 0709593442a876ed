"""Two policies side by side, from commits, experiments and chains of one workspace."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollbook.cli.main import cli
from rollbook.core.errors import ArtifactError, ConfigError, RollbookError
from rollbook.dvc.cache import cached_path
from rollbook.project.run.revisions import revision_of
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.compare.comparison import Comparison, compare
from rollbook.views.compare.sides import side_of
from tests.two_commits import edit, evaluate, git, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Look, do not touch."""
    folder = tmp_path_factory.mktemp("two_commits")
    make(folder)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy as the current folder, to change at will."""
    shutil.copytree(made, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def project(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the current folder, to look at."""
    monkeypatch.chdir(made)
    return made


def _compared(first: str, second: str, examples: int = 10) -> Comparison:
    return compare(side_of(Run(), first), side_of(Run(), second), examples)


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["compare", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_settings_that_differ_and_policies_that_do_not(project: Path) -> None:
    found = _compared("first", "HEAD:i0003")
    assert [side.key for side in found.sides] == ["i0003", "i0003"]
    assert found.shared == ["i0001"]
    assert [(each.place, each.values) for each in found.settings] == [("seed", ("0", "1"))]
    [stretch] = found.stretches
    assert (stretch.first, stretch.last, stretch.names) == (1, 3, ("grpo", "grpo"))
    [setting] = stretch.settings
    assert setting.place == "update_policy.learning_rate" and setting.is_size
    assert setting.values == ("0.0003", "0.001")


def test_the_final_evaluation_is_compared_on_the_prompts_in_common(project: Path) -> None:
    [test] = _compared("first", "HEAD:i0003").tests
    assert (test.set, test.prompts) == ("heldout", (4, 5, 4))
    assert test.means == (0.5, 0.75)
    assert (test.better, test.worse) == (2, 1)
    half = 1.959963984540054 * math.sqrt(1.25 / 3) / 2  # deviations of 0, -0.5, 0.5, 1 from 0.25
    assert (test.difference, test.low, test.high) == pytest.approx((0.25, 0.25 - half, 0.25 + half))
    assert test.p_value == pytest.approx(0.4386, abs=1e-4)
    [same] = _compared("first", "first:i0002").tests
    assert (same.difference, same.p_value, same.better, same.worse) == (0, 1, 0, 0)


def test_prompts_that_changed_sides_with_an_answer_of_each(project: Path) -> None:
    found = _compared("first", "HEAD:i0003")
    assert (found.became_right, found.became_wrong) == (1, 1)
    right, wrong = found.changed
    assert right.became_right and (right.prompt, right.reference_answer) == ("4+5=", "9")
    assert [(each.mean, each.text, each.reward) for each in right.answers] == [
        (0, "1", 0),
        (1, "9", 1),
    ]
    assert wrong.prompt == "2+3="
    assert [(each.mean, each.text) for each in wrong.answers] == [(0.5, "5"), (0, "4")]
    first_only = _compared("first", "HEAD:i0003", examples=1)
    assert (first_only.became_wrong, first_only.changed) == (1, [right])


def test_curves_are_those_of_the_chain(project: Path) -> None:
    found = _compared("HEAD:i0003", "own0003")
    keys = [[row["iteration"] for row in side.rows] for side in found.sides]
    assert keys[0] == ["i0000", "i0001", "i0002", "i0003"]
    assert keys[1] == ["i0000", "i0001", "i0002", "own0003"]
    assert found.sides[0].rows[:3] == found.sides[1].rows[:3]  # curves.csv in git, metrics on disk
    assert found.shared == ["i0001", "i0002"]
    assert found.stretches[0].settings == []
    assert [(each.first, each.last, each.names) for each in found.stretches] == [
        (1, 2, ("grpo", "grpo")),
        (3, 3, ("grpo", "gentler")),
    ]


def test_names_of_commits_experiments_and_iterations(project: Path) -> None:
    faster = side_of(Run(), "faster")
    assert (faster.key, faster.revision.commit) == ("own0003", revision_of("main").commit)
    assert side_of(Run(), "workspace").rows == faster.rows
    assert side_of(Run(), "i0002").revision.is_workspace
    assert side_of(Run(), "first:i0000").chain == []
    for name, error, message in (
        (
            "nobody",
            RollbookError,
            "no commit, branch, tag or experiment 'nobody'; experiments: faster",
        ),
        ("--all", RollbookError, "'--all'"),
        ("first:own0003", ConfigError, "first .* has no iteration or recipe 'own0003'"),
        ("i0009", RollbookError, "'i0009'"),
    ):
        with pytest.raises(error, match=message):
            side_of(Run(), name)


def test_an_experiment_called_like_a_recipe_is_asked_about(copy: Path) -> None:
    git("branch", "grpo", "first")
    with pytest.raises(ConfigError, match="say workspace:grpo, or grpo: for the revision"):
        side_of(Run(), "grpo")
    assert side_of(Run(), "workspace:grpo").revision.is_workspace
    assert side_of(Run(), "grpo:").revision.commit == revision_of("first").commit


def test_an_iteration_that_is_not_evaluated(copy: Path) -> None:
    edit(iterations__i0004={"previous": "i0003", "recipe": "grpo", "reference": "i0000"})
    with pytest.raises(ArtifactError, match="i0004 of workspace is not evaluated"):
        side_of(Run(), "i0004")
    assert side_of(Run(), "workspace").key == "own0003"


def test_what_is_not_on_this_machine_is_named_with_the_command_that_gets_it(copy: Path) -> None:
    first = side_of(Run(), "first")
    cached_path(first.revision.md5s["artifacts/evaluations/i0003.parquet"]).unlink()
    with pytest.raises(ArtifactError, match="the version of first") as gone:
        _compared("first", "workspace")
    assert "`rollbook pull first`" in gone.value.hint
    Path("artifacts/evaluations/own0003.parquet").unlink()
    assert _compared("workspace", "HEAD").tests[0].difference == 0  # from the cache
    cached_path(
        side_of(Run(), "HEAD").revision.md5s["artifacts/evaluations/own0003.parquet"]
    ).unlink()
    with pytest.raises(ArtifactError, match="own0003") as gone:
        _compared("workspace", "i0001")
    assert "`rollbook pull`" in gone.value.hint


@pytest.mark.parametrize("damage", ["cut", "swapped"])
def test_objects_that_are_not_what_they_should_be(copy: Path, damage: str) -> None:
    first = side_of(Run(), "first")
    paths = [f"artifacts/evaluations/{key}.parquet" for key in ("i0003", "i0000")]
    victim, other = (cached_path(first.revision.md5s[path]) for path in paths)
    content = victim.read_bytes()[:-20] if damage == "cut" else other.read_bytes()
    victim.unlink()
    victim.write_bytes(content)
    message = "truncated or damaged" if damage == "cut" else "holds evaluations i0000"
    with pytest.raises(ArtifactError, match=message):
        _compared("first", "workspace")


def test_another_way_of_evaluating_is_pointed_out(copy: Path) -> None:
    edit(evaluate_policy__samples=8)
    found = _compared("HEAD", "workspace")
    assert not found.evaluated_alike
    assert [each.place for each in found.settings] == ["evaluate_policy.samples"]
    assert "evaluate_policy differs" in _said("HEAD", "workspace")


def test_without_a_prompt_in_common(copy: Path) -> None:
    evaluate("own0003", [])
    said = _said("first", "workspace")
    assert "no set in common" in said
    facts: dict[str, Any] = json.loads(_said("first", "workspace", "--json"))
    assert (facts["evaluation"], facts["changed"]) == ([], [])


def test_what_is_printed(project: Path) -> None:
    said = _said("first", "faster")
    commit = revision_of("first").commit[:8]
    assert f"A  i0003 of first ({commit}): 3 iterations under grpo" in said
    assert "The policies of i0001 are the same in both, byte for byte." in said
    assert "Prompts that changed sides: 1 right in B only, 1 right in A only" in said
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert "3 i0003 own0003 0.600 0.600 0.700 0.700" in rows
    assert any(
        row.startswith("heldout 4 of 4 and 5 0.500 0.750 +0.250 [-0.383, +0.883]") for row in rows
    )
    assert "'4+5=' '9' 0.00 1.00 '1' '9'" in rows


def test_hostile_answers_are_shown_escaped(copy: Path) -> None:
    evaluate("i0003", [["\x1b[31m[bold]", "\x1b[31m[bold]"]])
    evaluate("i0002", [["3", "3"]])
    said = _said("i0002", "i0003")
    assert "changed sides: 0 right in B only, 1 right in A only" in said
    assert "\x1b" not in said and "'␛[31m[bold]'" in said


def test_as_json(project: Path) -> None:
    facts: dict[str, Any] = json.loads(_said("first", "HEAD:i0003", "--json"))
    assert [side["policy"] for side in facts["sides"]] == ["i0003", "i0003"]
    assert facts["evaluation"][0]["prompts"] == {"a": 4, "b": 5, "common": 4}
    assert facts["evaluation"][0]["difference"] == 0.25
    assert facts["changed"][0]["answers"][1] == {"mean": 1, "text": "9", "reward": 1}
    assert facts["recipes"][0]["settings"][0]["values"] == ["0.0003", "0.001"]
    assert facts["sides"][0]["curves"][3]["mean"] == 0.6


def test_recipes_are_compared_by_the_latest_policies_trained_under_them(project: Path) -> None:
    found = _compared("grpo", "gentler")
    assert [side.key for side in found.sides] == ["i0003", "own0003"]
    assert [side.recipe for side in found.sides] == ["grpo", "gentler"]
    [_, last] = found.stretches
    assert [each.place for each in last.settings] == ["update_policy.learning_rate"]
    assert found.last_recipes == []  # the last step says it
    assert side_of(Run(), "first:grpo").key == side_of(Run(), "first").key == "i0003"
    shorter = _compared("i0002", "gentler")
    assert [(each.place, each.values) for each in shorter.last_recipes] == [
        ("update_policy.learning_rate", ("0.001", "0.0001"))
    ]
    assert "Recipes of i0002 and own0003 differ in" in _said("i0002", "gentler")


def test_a_recipe_that_no_policy_was_trained_under(copy: Path) -> None:
    edit(recipes__idle={"extends": "grpo"}, recipes__waiting={"extends": "grpo"})
    edit(iterations__i0004={"previous": "i0003", "recipe": "waiting", "reference": "i0000"})
    with pytest.raises(
        ArtifactError, match="no policy of workspace was trained under recipe 'idle'"
    ) as error:
        side_of(Run(), "idle")
    assert "iterations under it: none; `rollbook recipe diff idle OTHER`" in error.value.hint
    with pytest.raises(ArtifactError) as error:
        side_of(Run(), "waiting")
    assert "iterations under it: i0004;" in error.value.hint
    with pytest.raises(ConfigError, match="no iteration or recipe 'gentler'"):
        side_of(Run(), "first:gentler")


def test_a_policy_and_one_that_it_was_trained_on_to(copy: Path) -> None:
    assert "B was trained on from A: what they share are the policies of i0001." in _said(
        "first:i0001", "first:i0003"
    )
    assert "A was trained on from B: " in _said("first:i0003", "first:i0001")


def test_an_iteration_that_is_not_there_is_told_the_nearest(copy: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no iteration or recipe 'own0099'; did you mean 'own0003'"
    ):
        side_of(Run(), "own0099")


def test_revisions_are_compared_whatever_became_of_the_settings(copy: Path) -> None:
    Path("params.yaml").write_text("nothing: {to: read")
    assert _compared("first", "main").shared == ["i0001"]
    with pytest.raises(ConfigError):
        side_of(Run(), "i0003")


def test_a_workspace_off_its_lock_is_not_taken_for_what_that_names(copy: Path) -> None:
    """As after an experiment and `git checkout .`, which leaves its artifacts."""
    whole = CliRunner().invoke(cli, ["compare", "HEAD:i0003", "workspace:i0003"])
    assert "The policies are the same, byte for byte." in whole.stdout and not whole.stderr
    info = path_of("run_info/update_policy", "i0002")
    out = f"    - path: {info}\n      hash: md5\n      md5: {'f' * 32}\n      size: 1\n"
    entry = f"  x:\n    cmd: 'true'\n    outs:\n{out}"
    with Path("dvc.lock").open("a") as lock:
        lock.write(entry)
    off = CliRunner().invoke(cli, ["compare", "HEAD:i0003", "workspace:i0003"])
    assert "The policies of i0001 are the same in both, byte for byte." in off.stdout
    assert off.stderr.startswith("note: what lies in the workspace of update_policy@i0002 is of")


def test_without_git_that_is_what_is_said(copy: Path) -> None:
    shutil.rmtree(".git")
    with pytest.raises(RollbookError, match="is no git repository"):
        side_of(Run(), "HEAD")
