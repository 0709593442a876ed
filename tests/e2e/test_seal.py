"""Sealing through the real `dvc repro`: training goes on as if nothing were sealed, and what was pruned comes back."""

import json
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.e2e.projects import output_hashes, repro, run, stages_run

pytestmark = pytest.mark.e2e
PRUNED = tuple(f"artifacts/{kind}/i0001" for kind in ("policies", "optimizers", "values"))


def _hashes(folder: Path) -> dict[str, str]:
    """md5 of every output that DVC keeps, sealed or not, but run_info."""
    sealed = [
        out
        for file in sorted(folder.glob("sealed/*.dvc"))
        for out in YAML(typ="safe").load(file.read_text())["outs"]
        if "run_info" not in out["path"]
    ]
    return {**output_hashes(folder), **{out["path"]: out["md5"] for out in sealed}}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for place in PRUNED
        for file in sorted((folder / place).rglob("*"))
        if file.is_file()
    }


def test_a_run_sealed_half_way_ends_with_the_same_bytes_as_one_that_was_not(
    trained: Path, tmp_path: Path
) -> None:
    whole, sealed = tmp_path / "whole", tmp_path / "sealed"
    for folder in (whole, sealed):
        shutil.copytree(trained, folder, symlinks=True)

    run(sealed, "rollbook", "seal", "i0001-i0002")
    assert not any((sealed / place).exists() for place in PRUNED)
    assert "@i0001:" not in (sealed / "dvc.lock").read_text()  # `report` lists what params.yaml had
    assert stages_run(repro(sealed)) == ["check", "report"]
    assert stages_run(repro(sealed)) == ["check"]
    assert (sealed / "reports/curves.csv").read_bytes() == (
        whole / "reports/curves.csv"
    ).read_bytes()

    for folder in (whole, sealed):
        run(folder, "rollbook", "iterate", "3")
        ran = stages_run(repro(folder))
        assert all(name in ("check", "report") or name.endswith("@i0003") for name in ran), ran
    expected = _hashes(whole)
    assert _hashes(sealed) == {path: md5 for path, md5 in expected.items() if path not in PRUNED}

    rescored = run(sealed, "rollbook", "rescore", "exact_match", "--iterations", "i0001-i0002")
    assert "i0001: 96 rollouts" in rescored.stdout
    assert "i0001" in run(sealed, "rollbook", "report").stdout

    run(sealed, "dvc", "gc", "--workspace", "--force")
    shutil.rmtree(sealed / "artifacts")
    run(sealed, "dvc", "checkout")
    assert stages_run(repro(sealed)) == ["check"]

    # An update that gives another policy puts nothing in place.
    info = sealed / "artifacts/run_info/update_policy/i0001.json"
    text = info.read_text()
    changed = json.loads(text)
    changed["settings"]["update"]["learning_rate"] *= 2
    info.unlink()
    info.write_text(json.dumps(changed))
    refused = run(sealed, "rollbook", "seal", "--rebuild", "i0001", check=False)
    assert refused.returncode == 1 and "made other policies than then" in refused.stderr
    assert not any((sealed / place).exists() for place in PRUNED)
    info.write_text(text)

    run(sealed, "rollbook", "seal", "--rebuild", "i0001")
    assert _bytes(sealed) == _bytes(whole) != {}
    assert _hashes(sealed) == expected
    run(sealed, "rollbook", "train-from", "i0001", "--recipe", "grpo")
