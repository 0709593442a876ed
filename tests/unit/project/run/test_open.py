"""`rollbook.open` and `rollbook.load`: in the project's folder, beside it, and where params.yaml cannot be read."""

from pathlib import Path

import pytest

import rollbook
from rollbook.core.errors import ConfigError, RollbookError
from rollbook.project.run.currency import State


def test_a_run_elsewhere_has_its_tables_and_no_currency(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = rollbook.open(finished)
    assert run.iteration("i0002").previous == "i0001" and run.load("rollouts").height > 0
    with pytest.raises(RollbookError, match="is known in its own folder only"):
        _ = run.currency
    monkeypatch.chdir(finished)
    here = rollbook.open(finished)  # by another name
    assert here.is_here and set(here.currency.states.values()) == {State.DONE}


def test_load_names_a_params_yaml_that_cannot_be_read(run: Path) -> None:
    assert rollbook.load("rollouts").height > 0
    Path("params.yaml").write_text("iterations: [\n")
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        rollbook.load("rollouts")
    assert rollbook.load("rollouts", iterations=["i0001"]).height > 0


def test_a_run_without_a_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither params\.yaml nor artifacts/"):
        rollbook.open(tmp_path)
