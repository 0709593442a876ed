"""What each stored artifact says about itself: kind, key, schema, content hash; and whether its step says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.core.errors import ArtifactError, VersionError
from rollbook.core.hashing import FACTS_FILE, digest_of_files, sha256_of, short
from rollbook.project.plan import load_stage
from rollbook.project.run.stored import StoredTable
from rollbook.project.stage import Output as DeclaredOutput
from rollbook.project.stage import Stage
from rollbook.project.verify.finding import Discrepancy, restore
from rollbook.project.verify.places import StoredOutput
from rollbook.project.verify.recorded import RecordedStep
from rollbook.project.verify.stored_bytes import HashedFiles
from rollbook.tables.artifacts import FOLDERS, Facts, parse_facts, path_of, refuse_other
from rollbook.tables.run_info import RunInfo, read_run_info


@dataclass(frozen=True)
class Read:
    """What could be read of a step.

    Attributes:
        step: as recorded.
        stage: its declaration.
        info: its run_info; None if it is not here or cannot be trusted.
        facts: what its outputs say about themselves, by path.
        findings: what does not agree.
        notes: what is no fault and worth knowing.
    """

    step: RecordedStep
    stage: Stage[Any]
    info: RunInfo | None = None
    facts: Mapping[str, Facts] = field(default_factory=dict)
    findings: list[Discrepancy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_step(
    step: RecordedStep,
    stored: Mapping[str, StoredOutput],
    damaged: set[str],
    hashed: HashedFiles | None,
) -> Read:
    """Reads the outputs of a step.

    Args:
        step: a finished one that has a declaration.
        stored: outputs by path.
        damaged: paths whose bytes are known to be wrong; they are left out.
        hashed: hashes of all files; None: contents are believed to be what they say.
    """
    entry = step.entry
    stage = load_stage(entry.stage)
    if entry.rescore:
        stage = stage.for_rescore(entry.rescore)
    findings: list[Discrepancy] = []
    notes: list[str] = []
    wanted = {path.as_posix() for path in stage.output_paths(entry.key)}
    if missing := sorted(wanted - entry.outputs.keys()):
        notes.append(
            f"{', '.join(missing)}: {entry.address} makes it, and {step.source} lists no such output"
        )
    usable = {
        path: stored[path]
        for path in sorted(wanted & entry.outputs.keys())
        if path not in damaged and stored[path].is_whole
    }
    info = _info(step, stage, usable, findings, notes)
    facts: dict[str, Facts] = {}
    for item in stage.outputs:
        path = item.path(entry.key).as_posix()
        if path not in usable:
            continue
        try:
            facts[path] = _facts(item, usable[path], hashed)
        except ArtifactError as error:
            findings.append(_unreadable(path, error, step))
            continue
        findings += _against_info(item, facts[path], path, info, step)
    findings += _metrics(stage.metrics_path(entry.key).as_posix(), usable, info, step)
    return Read(step, stage, info, facts, findings, notes)


def _info(
    step: RecordedStep,
    stage: Stage[Any],
    usable: Mapping[str, StoredOutput],
    findings: list[Discrepancy],
    notes: list[str],
) -> RunInfo | None:
    """The step's run_info, if it is here and that of this step."""
    path = stage.run_info_path(step.entry.key).as_posix()
    file = usable[path].content if path in usable else None
    if file is None:
        return None
    try:
        info = read_run_info(file)
    except ArtifactError as error:
        findings.append(_unreadable(path, error, step))
        return None
    whose = f"{info.stage}@{info.iteration}"
    expected = f"{stage.name}@{step.entry.key}"
    if whose != expected or (stage.rescore and f"--rescore {stage.rescore}" not in info.command):
        what = f"is the run_info of {whose}, and should be that of {stage.label(step.entry.key)}"
        findings.append(Discrepancy(path, what, expected, whose, restore(path, step.source)))
        return None
    if step.entry.digest not in (None, info.digest):
        notes.append(
            f"{step.entry.address} ran with settings and code {short(info.digest)}, {step.source} says "
            f"{short(str(step.entry.digest))}: `dvc commit` took the result over without running it again"
        )
    return info


def _facts(item: DeclaredOutput, stored: StoredOutput, hashed: HashedFiles | None) -> Facts:
    """What an artifact says about itself; that its content is what it says is checked unless `hashed` is None.

    Raises:
        ArtifactError: if it is damaged, or another artifact.
    """
    path = Path(stored.output.path)
    if item.kind in FOLDERS:
        return _folder_facts(item.kind, path, stored.members, hashed)
    file = stored.content
    if file is None:
        raise ArtifactError(f"{path}: is no file")
    table = StoredTable(item.kind, path.stem, path, file)
    if hashed is not None:
        table.checked()
    return table.facts


def _folder_facts(
    kind: str, path: Path, members: Mapping[str, Path], hashed: HashedFiles | None
) -> Facts:
    try:
        facts = parse_facts(members[FACTS_FILE].read_bytes())
    except (OSError, LookupError, ValueError):
        raise ArtifactError(f"{path}: {FACTS_FILE} is missing or damaged") from None
    refuse_other(facts, kind, path)
    if hashed is not None:
        found = digest_of_files({name: hashed[file].sha256 for name, file in members.items()})
        if found != facts.content_hash:
            raise ArtifactError(
                f"{path}: its files have digest {short(found)}, and {FACTS_FILE} says {short(facts.content_hash)}"
            )
    return facts


def _against_info(
    item: DeclaredOutput, facts: Facts, path: str, info: RunInfo | None, step: RecordedStep
) -> Iterator[Discrepancy]:
    """Where an artifact and the run_info of the step that made it say different things."""
    if info is None:
        return
    pairs = [("its content hash", facts.content_hash, info.outputs.get(item.label, ""))]
    pairs += [
        (f"the {name} it was made from", found, info.inputs.get(name, ""))
        for name, found in facts.inputs.items()
    ]
    pairs.append(("its settings and code", facts.settings, info.digest))
    for what, found, expected in pairs:
        if found != expected:
            run_info = path_of(f"run_info/{step.entry.stage}", step.entry.key)
            yield Discrepancy(
                path,
                f"is not what {step.entry.address} made: {what} is {short(found)}, its run_info says {short(expected)}",
                expected,
                found,
                f"{restore(path, step.source)}; if {run_info} is the wrong one, the same for it",
            )
            return


def _unreadable(path: str, error: ArtifactError, step: RecordedStep) -> Discrepancy:
    """What an artifact's own reader says of it. Of a table of another version DVC's cache holds the same."""
    what = error.message.removeprefix(f"{path}: ")
    mend = error.hint if isinstance(error, VersionError) else restore(path, step.source)
    return Discrepancy(path, what, "what it says it is", "", mend)


def _metrics(
    path: str, usable: Mapping[str, StoredOutput], info: RunInfo | None, step: RecordedStep
) -> Iterator[Discrepancy]:
    """Metrics say nothing about themselves, so the run_info names their bytes (that of older runs does not)."""
    expected = info.metrics_sha256 if info else None
    file = usable[path].content if path in usable else None
    if expected is None or file is None:
        return
    if (found := sha256_of(file)) != expected:
        said = f"its SHA-256 is {short(found)}, its run_info says {short(expected)}"
        what = f"is not what {step.entry.address} made: {said}"
        yield Discrepancy(path, what, expected, found, restore(path, step.source))
