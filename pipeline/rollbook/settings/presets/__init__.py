"""Published recipes: `pipeline/rollbook/settings/presets/<name>.yaml` is the whole of one, every value with the place
it comes from.

A file begins with a comment: its source, what it is about, and after `not expressed:` what Rollbook cannot do of it.
It holds no rewards but those that belong to the method; the task's own are yours. `rollbook recipe add` copies it,
comments and all, into params.yaml.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.errors import ConfigError, Problem, nearest
from rollbook.core.yaml import read_yaml

FOLDER = Path(__file__).parent
NOT_EXPRESSED = "not expressed:"
WIDTH = 110


@dataclass(frozen=True)
class Preset:
    """One published recipe.

    Attributes:
        name: of its file.
        title: paper with arXiv number, or library with version.
        summary: what it is about.
        not_expressed: what Rollbook cannot do of it; empty if it can do all.
        text: of the settings, comments kept, the header left out.
        settings: the same, parsed.
    """

    name: str
    title: str
    summary: str
    not_expressed: str
    text: str
    settings: Mapping[str, Any]

    @property
    def header(self) -> list[str]:
        """Comment lines that stand above it in params.yaml."""
        lines = [f"Preset {self.name}: {self.title}."]
        if self.not_expressed:
            lines += textwrap.wrap(f"{NOT_EXPRESSED} {self.not_expressed}", WIDTH)
        return lines


def presets() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read_preset(name: str) -> Preset:
    """The preset in `pipeline/rollbook/settings/presets/<name>.yaml`.

    Raises:
        ConfigError: if there is none of this name; the error lists all.
    """
    if name not in presets():
        problem = Problem("--preset", f"there is no preset {name!r}; {nearest(name, presets())}")
        raise ConfigError([problem], "pipeline/rollbook/settings/presets")
    file = FOLDER / f"{name}.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    end = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    title, *rest = (line.removeprefix("#").strip() for line in lines[:end])
    summary, _, missing = " ".join(rest).partition(NOT_EXPRESSED)
    text = "\n".join(lines[end:]) + "\n"
    return Preset(name, title, summary.strip(), missing.strip(), text, read_yaml(file))
