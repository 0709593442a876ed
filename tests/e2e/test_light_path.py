"""A year later, on a laptop: `git clone`, `rollbook pull`, and all can be looked at, without torch or a policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.tables.artifacts import FOLDERS
from tests.e2e.projects import git, run, table_of, without_torch

pytestmark = pytest.mark.e2e

Command = Callable[..., str]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which torch cannot be imported."""
    return without_torch(tmp_path_factory.mktemp("without_torch"))


@pytest.fixture(scope="module")
def clone(origin: Path, without: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the trained project with all but its policies from the DVC remote. Look, do not touch."""
    home = tmp_path_factory.mktemp("light")
    git(home, "clone", "--quiet", str(origin), "clone")
    said = run(home / "clone", "rollbook", "pull", variables=without).stdout
    assert "not pulled: policies, optimizers and values" in said
    return home / "clone"


@pytest.fixture
def light(clone: Path, without: dict[str, str]) -> Command:
    """Runs a command of rollbook in the clone; what it prints."""
    return lambda *command: run(clone, "rollbook", *command, variables=without).stdout


def test_all_but_the_policies_is_there(clone: Path, trained: Path, light: Command) -> None:
    there, made = (
        {
            path.relative_to(folder)
            for path in folder.glob("artifacts/**/*")
            if path.is_file() and path.parts[len(folder.parts) + 1] not in FOLDERS
        }
        for folder in (clone, trained)
    )
    assert there == made
    assert not list(clone.glob("artifacts/policies/*/*"))
    assert light("pull").startswith("0 outputs put in place, 0 files fetched")
    assert "in DVC's cache, 0 files fetched" in light("pull", "HEAD")
    assert git(clone, "status", "--porcelain") == ""


def test_show(clone: Path, light: Command) -> None:
    rollout = table_of(clone, "rollouts", "i0002").to_pylist()[0]
    facts = json.loads(light("show", rollout["rollout_id"], "--json"))
    assert rollout["completion"] in json.dumps(facts, ensure_ascii=False)
    assert rollout["group_id"] in light("show", rollout["group_id"])
    assert "dvc pull artifacts/policies/i0002" in light("show", "i0002")


def test_lineage_status_and_verify(light: Command) -> None:
    said = light("lineage", "i0002")
    assert "i0001" in said and "numeric_answer" in said
    assert "i0002" in light("status")
    verified = light("verify")
    assert (
        "as recorded, " in verified
        and "not on this machine" in verified
        and "artifacts/policies/i0000" in verified
    )


def test_compare_report_and_load(clone: Path, light: Command, without: dict[str, str]) -> None:
    said = light("compare", "i0001", "HEAD:i0002")
    assert "Final evaluation on the same prompts" in said and "heldout" in said
    assert "i0002" in light("report")
    code = "import rollbook; print(rollbook.load('rollouts', join=['prompts', 'scores', 'updates']).height)"
    assert run(clone, "python", "-c", code, variables=without).stdout.split() == ["192"]


def test_rescore(light: Command) -> None:
    said = light("rescore", "exact_match", "--iterations", "i0001")
    assert "i0001: 96 rollouts in 24 groups" in said
    assert "0 that no reward applies to, 0 errors" in said


def test_what_needs_a_policy_says_what_to_pull(
    clone: Path, without: dict[str, str], tmp_path: Path
) -> None:
    refused = run(
        clone, "rollbook", "export", "i0002", str(tmp_path / "out"), check=False, variables=without
    )
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "dvc pull artifacts/policies/i0002" in refused.stderr
