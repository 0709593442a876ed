"""What a stage function gets and returns: tables, folders, and as much of the world as it may see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollbook.core.progress import Progress
from rollbook.core.runtime import Runtime
from rollbook.tables.artifacts import Facts, FolderWriter


@dataclass(frozen=True)
class Inputs:
    """What a stage function gets to read.

    Attributes:
        tables: by name, checked.
        folders: by name, checked.
        facts: what each says about itself; `facts["policies"].content_hash` is the policy's digest.
    """

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)

    def digest(self, name: str) -> str:
        """Content hash of an input; for a policy, its digest."""
        return self.facts[name].content_hash


@dataclass(frozen=True)
class Outputs:
    """What a stage function returns.

    Attributes:
        tables: by output name.
        folders: functions that fill a folder, by output name.
        metrics: deterministic numbers, flat; NaN allowed (stored as null).
        run_info: what varies: rates, latencies.
    """

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    folders: Mapping[str, FolderWriter] = field(default_factory=dict)
    metrics: Mapping[str, float | int] = field(default_factory=dict)
    run_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """The world, as far as a stage function may see it.

    Attributes:
        key: the iteration at hand (`i0000` for the base policy and for stages that run once).
        runtime: device and threads.
        stage: name of the program.
        digest: of settings, code and files; empty where a stage function is called outside of its program.
    """

    key: str
    runtime: Runtime = field(default_factory=Runtime)
    stage: str = ""
    digest: str = ""
    warnings: list[str] = field(default_factory=list)
    progress_made: list[Progress] = field(default_factory=list)
    when_written: list[Callable[[], None]] = field(default_factory=list)
    """Called once everything that the stage makes is written."""

    def progress(self, total: int, unit: str, rate_unit: str = "") -> Progress:
        """A progress bar; what it counted goes into run_info."""
        bar = Progress(f"{self.stage}@{self.key}", total, unit, rate_unit)
        self.progress_made.append(bar)
        return bar

    def warn(self, message: str) -> None:
        """Tells the user, once, and keeps it in run_info."""
        if message not in self.warnings:
            self.warnings.append(message)
            print(f"{self.stage}@{self.key}: warning: {message}", file=sys.stderr)
