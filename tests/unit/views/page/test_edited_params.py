"""Where params.yaml was edited since a run, page, doctor and report tell what ran, and say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.cli.report import as_it_ran
from rollbook.core.yaml import parse_yaml
from rollbook.project.report import Report, ReportedPolicy
from rollbook.project.run.iteration import AS_RUN
from rollbook.project.run.run import Run
from rollbook.settings.params import read_params
from rollbook.tables.artifacts import path_of, read_json, write_json
from rollbook.views.doctor.diagnosis import diagnosis_of
from rollbook.views.page.choosing import PageLimits
from rollbook.views.page.curves import charts
from rollbook.views.page.overview import edited
from rollbook.views.page.shown import ShownChain, shown_chain
from rollbook.views.page.writing import page_html
from tests.unit.views.page.project import KEYS, write_params

LAST = KEYS[-1]


@pytest.fixture
def raw(own_run: Path) -> dict[str, Any]:
    """The run with the recipe that its last iteration ran with, and what params.yaml holds."""
    ran = read_params().recipe_of(LAST).model_dump(mode="json", serialize_as_any=True)
    for stage, name in AS_RUN.items():
        path = path_of(f"run_info/{stage}", LAST)
        info = read_json(path) if path.exists() else {}
        write_json({**info, "settings": {**info.get("settings", {}), name: ran[stage]}}, path)
    return parse_yaml(Path("params.yaml").read_text(), "params.yaml")


def run_with(raw: dict[str, Any]) -> ShownChain:
    write_params(raw)
    return shown_chain(Run())


def test_nothing_is_said_of_a_file_that_says_what_ran(raw: dict[str, Any]) -> None:
    assert not edited(run_with(raw)) and not diagnosis_of(Run()).changed


def test_an_iteration_under_another_recipe_keeps_the_name_that_made_it(raw: dict[str, Any]) -> None:
    raw["iterations"][LAST]["recipe"] = "language_model"
    run = run_with(raw)
    assert run.recipe(LAST) == "grpo" and Run().iteration(LAST).recipe_name == "grpo"
    page = page_html(run, PageLimits())
    assert "grpo: i0000 to i0002</h1>" in page and "language_model" not in page
    assert f"another recipe than {LAST} ran with" in edited(run)
    found = diagnosis_of(run.run)
    assert found.changed == [LAST] == found.to_dict()["changed"]
    assert any(f"another recipe now than {LAST} ran with" in each for each in found.remarks)
    table, changed = as_it_ran(Report([ReportedPolicy(LAST, 2, "language_model", {})]), run.run)
    assert (table.iterations[0].recipe, changed) == ("grpo", [LAST])


def test_an_edited_recipe_keeps_its_name_and_is_told_as_it_ran(raw: dict[str, Any]) -> None:
    raw["recipes"]["grpo"]["generate_rollouts"]["temperature"] = 0.25
    run = run_with(raw)
    assert run.recipe(LAST) == "grpo" and run.changed == [LAST]
    assert run.every[LAST].recipe.generate_rollouts.temperature != 0.25


def test_means_are_named_by_the_samples_that_they_are_of(raw: dict[str, Any]) -> None:
    raw["evaluate_policy"]["samples"] = 8
    run = run_with(raw)
    page = page_html(run, PageLimits())
    assert "heldout, mean@4" in page and "pass@4" in page
    assert "mean@8" not in page and "pass@8" not in page
    assert charts(run)[0].told.startswith("mean@4 ")
    assert "another number of samples than the evaluations have" in edited(run)
    path = path_of("metrics/evaluate_policy", LAST)
    write_json({"eval/heldout/mean_at_8": 0.5}, path)
    assert "heldout, mean@4 or 8" in page_html(shown_chain(Run()), PageLimits())
