"""The params.yaml of a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.core.errors import ConfigError
from rollbook.project.replay.settings import with_sealed


@pytest.mark.parametrize("section", ["iterations", "recipes"])
def test_a_section_that_is_a_list_is_an_error_with_its_place(tmp_path: Path, section: str) -> None:
    (tmp_path / "params.yaml").write_text(f"seed: 0\n{section}: [i0001]\n")
    with pytest.raises(ConfigError, match=f"params.yaml: 1 problem\n  - {section}: is a list"):
        with_sealed(tmp_path, "i0001")


def test_sections_that_are_left_out_are_empty(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: 0\niterations:\n")
    found = with_sealed(tmp_path, "i0001")
    assert (found["recipes"], found["iterations"]) == ({}, {})
