import json
from pathlib import Path

import polars as pl
import pytest

from rollbook.project.run.run import Run
from rollbook.tables.artifacts import FOLDERS, path_of, read_facts
from rollbook.views.mlflow.sync import bring_up_to_date
from rollbook.views.mlflow.views import run_link
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project

LOCK = """\
schema: '2.0'
stages:
  generate_rollouts@i0002:
    outs:
    - path: artifacts/rollouts/i0002.parquet
      md5: 11111111111111111111111111111111
"""


@pytest.fixture
def shown(finished: Project) -> Shown:
    Path("dvc.lock").write_text(LOCK)
    bring_up_to_date(Run())
    return Shown()


def test_settings_are_parameters_under_the_names_of_params_yaml(shown: Shown) -> None:
    params = shown.iterations["i0002"][0].data.params
    assert params["update_policy.loss.name"] == "dapo"
    assert params["update_policy.learning_rate"] == "0.0003"
    assert params["generate_rollouts.group_size"] == "8"
    assert params["score_rollouts.rewards.0.name"] == "numeric_answer"
    assert params["evaluate_policy.samples"] == "4"
    assert params["seed"] == "0"
    assert not [name for name, value in params.items() if value == "null"]


def test_the_chain_also_names_data_and_base_policy(shown: Shown) -> None:
    params = shown.chains[0].data.params
    assert params["data.train.0.name"] == "arithmetic"
    assert params["policy.base.name"] == "tiny"
    assert params["seed"] == "0"


def test_tags_say_where_it_comes_from(shown: Shown) -> None:
    tags = shown.iterations["i0002"][0].data.tags
    assert tags["commit"] == tags["mlflow.source.git.commit"] == "c0ffee"
    assert (tags["dirty"], tags["version.torch"]) == ("true", "2.13.0")
    assert tags["policy_digest.in"] == read_facts(path_of("policies", "i0001")).content_hash
    assert tags["policy_digest.out"] == read_facts(path_of("policies", "i0002")).content_hash
    assert tags["md5.rollouts"] == "1" * 32


def test_every_artifact_is_an_input_with_its_md5(shown: Shown) -> None:
    inputs = {
        item.dataset.name: item for item in shown.iterations["i0002"][0].inputs.dataset_inputs
    }
    assert set(inputs) == {
        *(f"{kind}/i0002" for kind in ("prompts", "rollouts", "scores", "logprobs", "advantages")),
        *(f"{kind}/i0002" for kind in ("pairs", "updates", "optimizer_steps", "evaluations")),
        *(f"{kind}/{key}" for kind in FOLDERS for key in ("i0001", "i0002")),
        *("history/i0001", "history/i0002"),
        *("policies/i0000", "data/train", "data/evaluation"),
    }
    rollouts = inputs["rollouts/i0002"]
    assert rollouts.dataset.digest == "1" * 32
    assert json.loads(rollouts.dataset.source) == {"uri": "artifacts/rollouts/i0002.parquet"}
    assert json.loads(rollouts.dataset.profile) == {"num_rows": 6}
    assert rollouts.tags[0].value == "made"
    assert inputs["policies/i0001"].tags[0].value == "read"
    # not in dvc.lock yet: the content hash stands in
    prompts = read_facts(path_of("prompts", "i0002")).content_hash
    assert inputs["prompts/i0002"].dataset.digest == f"content:{prompts[:24]}"


def test_the_policy_is_a_model_outside_mlflow(shown: Shown) -> None:
    models = shown.client.search_logged_models([shown.experiment_id])
    [model] = [model for model in models if model.name == "policy-i0002"]
    assert model.tags["path"] == "artifacts/policies/i0002"
    assert model.tags["digest"] == read_facts(path_of("policies", "i0002")).content_hash
    assert model.tags["mlflow.model.isExternal"] == "true"
    run = shown.iterations["i0002"][0]
    assert model.source_run_id == run.info.run_id
    assert [(out.model_id, out.step) for out in run.outputs.model_outputs] == [(model.model_id, 2)]
    assert {metric.key for metric in model.metrics or []} >= {"eval/heldout/mean_at_4"}
    assert not list(Path("mlflow").rglob("weights.txt"))


def test_the_group_table_holds_rollouts_with_their_rewards(shown: Shown) -> None:
    run = shown.iterations["i0002"][0]
    by_group, file = shown.client.list_artifacts(run.info.run_id, "groups")
    assert (by_group.path, file.path) == ("groups/i0002.csv", "groups/i0002.parquet")
    frame = pl.read_parquet(shown.client.download_artifacts(run.info.run_id, file.path))
    assert frame["reward"].to_list() == [1, 0, 1, 1, 0, 1]
    assert frame["advantage"].to_list() == [0.5, -0.5, 0.5, 0.5, -0.5, 0.5]
    assert frame["length_tokens"].to_list() == [2] * 6
    assert frame["prompt"][0] == "1+2="
    assert not [name for name, dtype in frame.schema.items() if dtype.is_nested()]


def test_the_table_that_mlflow_shows_has_a_row_per_group(shown: Shown) -> None:
    run = shown.iterations["i0002"][0]
    frame = pl.read_csv(shown.client.download_artifacts(run.info.run_id, "groups/i0002.csv"))
    assert frame["question"].to_list() == ["1+2=", "2+3=", "3+4="]
    assert frame["answers"].to_list() == ["3 ¦ 4", "5 ¦ 5", "1 ¦ 7"]
    assert frame["rewards"].to_list() == ["1.0 0.0", "1.0 1.0", "0.0 1.0"]
    assert frame["reward_mean"].to_list() == [0.5, 1.0, 0.5]
    assert frame["reward_std"].to_list() == [0.5, 0.0, 0.5]


def test_what_is_asked_for_first_stands_first(shown: Shown) -> None:
    run = shown.iterations["i0002"][0]
    names = [name for name in run.data.metrics if not name.startswith("optimizer_steps/")]
    assert names[:3] == [f"eval/heldout/mean_at_4{bound}" for bound in ("", "_high", "_low")]
    assert names[3:6] == ["eval/heldout/greedy", "reward", "reward_std"]
    assert next(iter(run.data.tags)) in {"recipe", "iteration"}


def test_descriptions_say_outcome_recipe_and_where_to_go(shown: Shown) -> None:
    note = shown.chains[0].data.tags["mlflow.note.content"]
    first, *_ = note.splitlines()
    # 0.3 at the base, 0.1 more in each of three iterations
    assert first.startswith("**heldout 0.300 → 0.600** [0.580, 0.620], i0001 to i0003, seed 0.")
    assert "Recipe **grpo** from i0001: prompts: 256 an iteration; rollouts: 8 answers" in note
    assert "reward: numeric_answer; advantages: group; loss: dapo; KL: none; update: 16 " in note
    second = shown.iterations["i0002"][0].info.run_id
    assert f"| [i0002]({run_link(shown.experiment_id, second)})&emsp;| grpo&emsp;|" in note
    note = shown.iterations["i0002"][0].data.tags["mlflow.note.content"]
    assert note.startswith("**heldout 0.500 [0.480, 0.520]**, greedy 0.600; training reward 0.550.")
    models = shown.client.search_logged_models([shown.experiment_id])
    [model] = [model for model in models if model.name == "policy-i0002"]
    assert (
        f"[iteration i0002]({run_link(shown.experiment_id, second)})"
        in (model.tags["mlflow.note.content"])
    )


def test_the_update_has_curves_by_optimizer_step(shown: Shown) -> None:
    run = shown.iterations["i0002"][0]
    assert shown.curve(run, "optimizer_steps/loss") == {3: 0.3, 4: 0.4}


def test_costs_are_shown_beside_the_results(shown: Shown) -> None:
    metrics = shown.iterations["i0002"][0].data.metrics
    assert metrics["seconds/update_policy"] == 1.0
    assert metrics["peak_memory_mb/update_policy"] == 100.0
    assert metrics["tokens_per_second/generate_rollouts"] == 50.0


def test_a_mean_without_an_interval_has_no_brackets(project: Path) -> None:
    single = Project(1)
    single.finish("i0001")
    scores = {"eval/heldout/mean_at_4": 0.5, "eval/heldout/greedy": 1.0}
    single.run("evaluate_policy", "i0001", scores)
    bring_up_to_date(Run())
    shown = Shown()
    note = shown.chains[0].data.tags["mlflow.note.content"]
    assert note.startswith("**heldout 0.300 → 0.500**, i0001 to i0001")
    assert "| heldout 0.500&emsp;|" in note
    note = shown.iterations["i0001"][0].data.tags["mlflow.note.content"]
    assert note.startswith("**heldout 0.500**, greedy 1.000; training reward")
