"""What a stage checks of the folders it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.core.errors import ArtifactError
from rollbook.project.dependencies import StageSettings
from rollbook.project.stage import Input, Stage
from rollbook.rl.context import Inputs, Outputs
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, write_folder
from tests.unit.settings.test_params import shipped


def _read(hashed: bool) -> Inputs:
    stage = Stage(
        name="looking",
        settings=StageSettings,
        run=lambda *_: Outputs(),
        inputs=(Input("optimizers", key="previous", hashed=hashed),),
    )
    return stage.read("i0002", parse_params(shipped()))


def _write(folder: Path) -> None:
    (folder / "moments").write_text("large")


def test_a_folder_that_changed_is_noticed_unless_it_is_too_large_to_read(project: Path) -> None:
    written = write_folder(_write, "optimizers", "i0001")
    for hashed in (True, False):
        inputs = _read(hashed)
        assert inputs.folders["optimizers"] == path_of("optimizers", "i0001")
        assert inputs.digest("optimizers") == written.content_hash
    (path_of("optimizers", "i0001") / "moments").write_text("changed")
    with pytest.raises(ArtifactError, match="files changed after it was written"):
        _read(hashed=True)
    assert _read(hashed=False).digest("optimizers") == written.content_hash


@pytest.mark.parametrize("hashed", [True, False])
def test_a_missing_or_foreign_folder_is_always_noticed(project: Path, hashed: bool) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        _read(hashed)
    write_folder(_write, "policies", "i0001")
    path_of("optimizers", "i0001").parent.mkdir()
    path_of("policies", "i0001").rename(path_of("optimizers", "i0001"))
    with pytest.raises(ArtifactError, match="holds policies i0001, another kind than optimizers"):
        _read(hashed)


def test_only_the_advantages_read_an_optimizer_without_hashing_it() -> None:
    from rollbook.stages.compute_advantages import STAGE as ADVANTAGES
    from rollbook.stages.update_policy import STAGE as UPDATE

    hashed = {
        stage.name: [item.hashed for item in stage.inputs if item.kind == "optimizers"]
        for stage in (ADVANTAGES, UPDATE)
    }
    assert hashed == {"compute_advantages": [False], "update_policy": [True]}
