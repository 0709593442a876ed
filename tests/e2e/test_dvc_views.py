"""DVC's own tables of a trained project, with the commands that the README names."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from rollbook.views.page import vega
from tests.e2e.projects import ROOT, commit, edit_params, run

pytestmark = pytest.mark.e2e

README = (ROOT / "README.md").read_text(encoding="utf-8")
REWARD = 0.987654
RATE = "recipes.grpo.update_policy.learning_rate"


@pytest.fixture
def changed(copy: Path) -> Path:
    """The trained project, committed, and then in the workspace another learning rate and what came of it."""
    commit(copy, "Trained")
    edit_params(copy, recipes__grpo__update_policy__learning_rate=1e-4)
    file = copy / "reports" / "summary.json"
    summary = json.loads(file.read_text())
    summary["training"]["reward"] = REWARD
    file.write_text(json.dumps(summary))
    return copy


def test_metrics_are_few_and_compared(changed: Path) -> None:
    shown = json.loads(run(changed, "dvc", "metrics", "show", "--json").stdout)
    metrics = shown[""]["data"]["reports/summary.json"]["data"]
    assert metrics["last"]["heldout"].keys() >= {"mean_at_2", "mean_at_2_low", "mean_at_2_high"}
    assert sum(1 for _ in re.finditer(r": [-\"0-9]", json.dumps(metrics))) <= 20
    found = json.loads(run(changed, "dvc", "metrics", "diff", "--json").stdout)
    compared = found["reports/summary.json"]
    assert list(compared) == ["training.reward"]
    assert compared["training.reward"]["new"] == REWARD


def test_experiments_stand_side_by_side_with_what_differs(changed: Path) -> None:
    run(changed, "dvc", "exp", "save", "--name", "gentler")
    [command] = re.findall(r"^\$ (dvc exp show .*?)(?: +#.*)?$", README, re.MULTILINE)
    rows = list(csv.DictReader(run(changed, *shlex.split(command), "--csv").stdout.splitlines()))
    assert {"training.reward", RATE} <= rows[0].keys()
    assert not [name for name in rows[0] if "artifacts/" in name or re.match(r"\w+\d\.", name)]
    assert len(rows[0]) <= 14
    [gentler] = [row for row in rows if row["Experiment"] == "gentler"]
    assert (gentler["training.reward"], gentler[RATE]) == (str(REWARD), "0.0001")


def test_curves_need_no_network_once_a_run_has_been_reported(trained: Path) -> None:
    assert (trained / vega.FILE).read_text().startswith("// vl-convert-python ")
