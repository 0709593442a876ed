"""Real runs: a healthy one, of which the doctor says nothing, and such that one setting has spoiled."""

import json
from pathlib import Path

import pytest

from rollbook.views.doctor.diagnosis import diagnosis_of
from tests.doctor.spoiled import HEALTHY, SPOILED, make_bases, make_run, make_spoiled, settings
from tests.in_process import run_of


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the base policies; look, do not touch."""
    folder = tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_bases(folder)
    return folder


def test_a_healthy_run_has_no_findings(
    bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    params = settings({}, HEALTHY)
    make_run(bases, "unsure", params, tmp_path / "run")
    found = diagnosis_of(run_of(params))
    assert len(found.iterations) == HEALTHY
    assert [str(each) for each in found.findings] == []


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_run_is_found_out(
    name: str, bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = SPOILED[name]
    found = diagnosis_of(make_spoiled(bases, run, tmp_path / "run"))
    by_check = {each.check: each for each in found.findings}
    assert set(run.checks) <= by_check.keys()
    for check in run.checks:
        finding = by_check[check]
        assert finding.evidence
        assert finding.iterations
        assert finding.change.setting
        assert finding.change.suggested != finding.change.now
        assert finding.change.suggested == run.suggested.get(check, finding.change.suggested)
    json.dumps(found.to_dict(), allow_nan=False)
