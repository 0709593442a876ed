"""A branch: a real continuation from a stored policy under another recipe, beside all that is trained already."""

from pathlib import Path

import pytest

from rollbook.tables.artifacts import read_json
from tests.e2e.projects import (
    edit_params,
    output_hashes,
    repro,
    run,
    stages_run,
    store_uri,
    table_of,
)
from tests.unit.views.mlflow.conftest import Shown

pytestmark = pytest.mark.e2e


def _digest(folder: Path, key: str) -> str:
    """Of a policy."""
    return str(read_json(folder / "artifacts/policies" / key / "rollbook.json")["content_hash"])


def test_a_branch_goes_on_from_a_stored_policy(copy: Path) -> None:
    rewards = [{"name": "numeric_answer"}, {"name": "tag_count"}]
    edit_params(copy, recipes__own_2={"extends": "grpo", "score_rollouts": {"rewards": rewards}})
    before = output_hashes(copy)
    said = run(copy, "rollbook", "train-from", "i0002", "--recipe", "own_2").stdout
    assert "added own0003 after i0002 (own_2)" in said
    stages = stages_run(repro(copy))
    assert {stage.partition("@")[2] for stage in stages} == {"own0003", ""}
    assert "update_policy@own0003" in stages and "track_iteration@own0003" in stages
    after = output_hashes(copy)
    meant = {"artifacts/plan.json", "reports/summary.json", "reports/curves.csv"}
    assert {path for path in before if after[path] != before[path]} == meant

    digests = {key: _digest(copy, key) for key in ("i0000", "i0001", "i0002", "own0003")}
    assert len(set(digests.values())) == 4
    rollouts = table_of(copy, "rollouts", "own0003")
    assert rollouts["policy_digest"].unique().to_pylist() == [digests["i0002"]]
    updated = read_json(copy / "artifacts/run_info/update_policy/own0003.json")
    assert digests["i0002"] in updated["inputs"].values()
    assert "reward_tag_count" in table_of(copy, "scores", "own0003").column_names

    asked = ("rollbook", "rescore", "numeric_answer", "--iterations", "own0003")
    said = run(copy, *asked).stdout
    assert "own0003: 96 rollouts in 24 groups" in said
    assert "the policy i0002, which the old rewards have trained" in said
    shown = Shown(uri=store_uri(copy))
    [run_of_rescore] = shown.of_kind("rescore")
    [chain] = shown.chains
    assert run_of_rescore.data.tags["mlflow.parentRunId"] == chain.info.run_id
    assert shown.curve(run_of_rescore, "rollouts") == {3: 96}
    assert set(shown.iterations) >= {"i0001", "i0002", "own0003"}

    # A second branch, from further back, has letters of its own; all three lines stand side by side.
    said = run(copy, "rollbook", "train-from", "i0001", "--recipe", "own_2").stdout
    assert "added ownb0002 after i0001 (own_2)" in said
    said = run(copy, "rollbook", "check").stdout
    assert "nothing that is finished runs again" in said and "ownb0002" in said
