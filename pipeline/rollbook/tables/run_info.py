"""What a step recorded of its run, typed: `artifacts/run_info/<stage>/<key>.json`.

run_info is the only artifact that varies between two runs of the same step: times, memory, packages, hardware, commit.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError, VersionError
from rollbook.core.progress import ProgressRecord
from rollbook.tables.artifacts import damaged, read_json
from rollbook.tables.schemas.versions import refusal, upgrade_json

PATCH_LIMIT_BYTES = 200_000
SHOWN_DIGITS = 8
"""Of the hash of a commit."""
CUT = "\n… cut"
"""Stands behind a patch of which only the first bytes are kept. No whole patch ends so: its lines begin otherwise."""


@dataclass(frozen=True)
class GitState:
    """State of the repository that a step ran in.

    Attributes:
        commit: full hash; empty outside of a repository.
        dirty: whether files differed from the commit.
        patch: against the commit, as text; cut above PATCH_LIMIT_BYTES.
        patch_base85: the patch where it is no UTF-8.
        patch_sha256: of the whole patch.
    """

    commit: str = ""
    dirty: bool = False
    patch: str = ""
    patch_base85: str = ""
    patch_sha256: str = ""

    @property
    def shown(self) -> str:
        """The commit, and whether files were changed; empty outside of a repository."""
        return f"{self.commit} with changes" if self.commit and self.dirty else self.commit

    @property
    def patch_bytes(self) -> bytes:
        """The patch; empty if there was none, or none was recorded.

        Raises:
            ArtifactError: if only its first bytes were recorded.
        """
        if self.patch.endswith(CUT):
            raise ArtifactError(
                f"commit {self.commit[:SHOWN_DIGITS]}: only the first {PATCH_LIMIT_BYTES} bytes of the patch against "
                "it were recorded",
                "check out the code it ran with, or replay with --with-code",
            )
        return self.patch.encode() if self.patch else base64.b85decode(self.patch_base85)


@dataclass(frozen=True)
class Environment:
    """Packages, interpreter and machine that a step ran with.

    Attributes:
        packages: version by name, of those that are installed.
        library: SHA-256 over Rollbook's own files, names and contents; empty in runs of an older Rollbook.
        python: version of the interpreter.
        cpu: model name. cpu_count: logical processors.
        gpus: names of those that the step opened.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    library: str = ""
    python: str = ""
    host: str = ""
    platform: str = ""
    cpu: str = ""
    cpu_count: int | None = None
    gpus: Sequence[str] = ()
    git: GitState = field(default_factory=GitState)


@dataclass(frozen=True)
class RunInfo:
    """What one step recorded of its run.

    Attributes:
        version: of the file's layout.
        stage, iteration: which step.
        rescore: name of the re-score, or empty.
        command: that ran it.
        finished: when it ended, ISO 8601 in UTC; empty if unknown.
        seconds: by part of the step; `total` is their sum.
        forked: whether it ran as a fork of the fork server.
        peak_memory_mb: largest resident memory, MiB.
        runtime: `runtime` of params.yaml, and `threads_used`: torch's threads, None without torch.
        settings: resolved settings, as JSON values.
        code: hash of every source file by path. files: of every data file of its components.
        digest: of settings, code and files, as plan.json had it.
        inputs, outputs: content hash by name. Of a policy it is its digest.
        metrics_sha256: of the metrics file; None in runs of an older Rollbook.
        progress: what its progress bars counted.
        more: what only this kind of stage records, such as latencies of a judge.
    """

    version: int = 1
    stage: str = ""
    iteration: str = ""
    rescore: str = ""
    command: str = ""
    finished: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    forked: bool = False
    peak_memory_mb: float | None = None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    metrics_sha256: str | None = None
    progress: Sequence[ProgressRecord] = ()
    warnings: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        """From the start of the program to its last output; 0 if it was not recorded."""
        return self.seconds.get("total", 0.0)

    @property
    def finished_ms(self) -> int:
        """When it ended, milliseconds since 1970."""
        return round(datetime.datetime.fromisoformat(self.finished).timestamp() * 1000)

    @property
    def started_ms(self) -> int:
        """When it began, milliseconds since 1970."""
        return self.finished_ms - round(1000 * self.total_seconds)

    def as_json(self) -> dict[str, Any]:
        """As the file holds it; `more` stands beside the other keys."""
        content = asdict(self)
        return {**content, **content.pop("more")}


NAMES = tuple(each.name for each in fields(RunInfo) if each.name != "more")
TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("stage", "iteration", "rescore", "command", "finished", "digest"), (str,)),
    **dict.fromkeys(("seconds", "runtime", "settings", "code", "files"), (dict,)),
    **dict.fromkeys(("inputs", "outputs", "environment"), (dict,)),
    **dict.fromkeys(("progress", "warnings"), (list,)),
}
"""JSON types of what is read; older versions lack some."""


def read_run_info(path: Path) -> RunInfo:
    """Reads what a step recorded; what an older version did not record has its default.

    Raises:
        ArtifactError: if the file is missing, malformed or not as a step writes it.
        VersionError: if this Rollbook does not read its version.
    """
    return run_info_in(read_json(path), path)


def run_info_in(content: Mapping[str, Any], path: Path) -> RunInfo:
    """The same from the content of the file; `path` is named in errors.

    Raises:
        ArtifactError: if it is not as a step writes it.
    """
    version = content.get("version", 1)
    if refused := refusal("run_info", version):
        raise VersionError(f"{path}: run_info {refused[0]}", refused[1])
    content = upgrade_json(dict(content), "run_info", version)
    for name, types in TYPES.items():
        if name in content and not isinstance(content[name], types):
            raise damaged(
                path, TypeError(f"{name}: {content[name]!r}, expected {types[0].__name__}")
            )
    known = {name: content[name] for name in NAMES if name in content}
    try:
        known["environment"] = _environment(content.get("environment", {}))
        known["progress"] = tuple(_of(ProgressRecord, bar) for bar in content.get("progress", ()))
        if known.get("finished"):
            datetime.datetime.fromisoformat(known["finished"])
        float(known.get("seconds", {}).get("total", 0.0))
    except (TypeError, ValueError, AttributeError) as error:
        raise damaged(path, error) from None
    return RunInfo(**known, more={name: content[name] for name in content if name not in NAMES})


def _environment(content: Mapping[str, Any]) -> Environment:
    git = content.get("git")
    return _of(Environment, {**content, "git": _of(GitState, git or {})})


def _of(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """A record of this kind; keys of a newer version, and what is null and has another default, are left out."""
    names = {each.name: each.default for each in fields(kind)}
    return kind(
        **{
            name: value
            for name, value in content.items()
            if name in names and (value is not None or names[name] is None)
        }
    )
