"""Everything that was recorded, held against everything that is stored."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollbook.core.hashing import files_in
from rollbook.core.process import processors
from rollbook.core.progress import Progress
from rollbook.core.text import listed
from rollbook.dvc.running_steps import dvc_is_at_work, paths_in_the_making, running_steps
from rollbook.project.off_lock import RUN_INFO, differs_from
from rollbook.project.plan_file import DECLARED_STAGES
from rollbook.project.run.run import Run
from rollbook.project.verify.contents import Read, read_step
from rollbook.project.verify.finding import Discrepancy
from rollbook.project.verify.links import Ids, adapter_findings, digest_findings
from rollbook.project.verify.lock_files import lock_findings
from rollbook.project.verify.places import StoredOutput, find, misplaced_findings
from rollbook.project.verify.recorded import (
    RecordedOutput,
    RecordedRun,
    RecordedStep,
    read_recorded,
)
from rollbook.project.verify.stored_bytes import HashedFiles, byte_findings
from rollbook.settings.config import Params
from rollbook.tables.artifacts import FOLDERS, ROOT


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        findings: what is wrong.
        notes: what is no fault and worth knowing.
        absent: paths of outputs that are not on this machine, or not whole; pruned ones are not among them.
        steps, outputs: how many were looked at.
        files, size: how many were hashed, and their bytes; 0 if contents were believed.
    """

    findings: Sequence[Discrepancy]
    notes: Sequence[str]
    absent: Sequence[str]
    steps: int
    outputs: int
    files: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "clean": not self.findings,
            "findings": [dict(finding.as_json()) for finding in self.findings],
            "notes": list(self.notes),
            "absent": list(self.absent),
            "steps": self.steps,
            "outputs": self.outputs,
            "files": self.files,
            "bytes": self.size,
        }


def verify(run: Run, fast: bool = False, complete: bool = False) -> Verification:
    """Verifies the run in the current folder.

    Args:
        run: that is verified.
        fast: believe that bytes and contents are what they say, and look only at how artifacts name each other. Only
            run_info, and what then disagrees, is hashed: to say whether the file or its record is the wrong one.
        complete: what is not on this machine is a finding.

    Raises:
        ConfigError: if a lock file, or a file of a sealed part, cannot be read.
        RollbookError: outside of a DVC project.
    """
    params, recorded = run.params, read_recorded(run)
    busy = _busy(recorded)
    steps = [step for step in recorded.steps if step.entry.address not in busy]
    stored = {
        path: find(output) for path, output in recorded.outputs.items() if output.step not in busy
    }
    hashed = None if fast else HashedFiles(stored.values())
    by_path = _by_path(stored, hashed)
    reads = _read(steps, stored, {path for path, found in by_path.items() if found}, hashed)
    findings = [
        *recorded.disagreements,
        *lock_findings(recorded.named),
        *(finding for found in by_path.values() for finding in found),
        *(finding for read in reads for finding in read.findings),
    ]
    linked, stale = _linked(reads, {finding.path for finding in findings}, stored, recorded, params)
    findings += linked
    if fast:
        findings = _with_mends(findings, stored)
    absent = [path for path, each in stored.items() if _is_absent(each)]
    if complete:
        findings += [_missing(stored[path].output) for path in absent]
    since = _made_since(recorded) if findings else set()
    return Verification(
        findings=list(dict.fromkeys(_not_of(since, findings, recorded))),
        notes=[
            *_running(busy | since),
            *_where(stored, complete),
            *(note for read in reads for note in read.notes),
            *_unnamed(reads),
            *_stale(stale),
            *_foreign(recorded),
            *_unrecorded(recorded),
        ],
        absent=absent,
        steps=len(steps),
        outputs=len(stored),
        files=hashed.count if hashed is not None else 0,
        size=hashed.size if hashed is not None else 0,
    )


def _by_path(
    stored: Mapping[str, StoredOutput], hashed: HashedFiles | None
) -> Mapping[str, Sequence[Discrepancy]]:
    """What is wrong with the place and the bytes of every output; of run_info alone where no others are hashed."""
    if hashed is None:
        found = _looked_into([path for path in stored if path.startswith(RUN_INFO)], stored)
    else:
        with Progress("verify", hashed.count, "files", "bytes") as bar:
            hashed.read(bar.update)
        found = _wrong_bytes(stored, hashed, stored)
    return {
        path: [*misplaced_findings(each), *found.get(path, ())] for path, each in stored.items()
    }


def _read(
    steps: Iterable[RecordedStep],
    stored: Mapping[str, StoredOutput],
    damaged: set[str],
    hashed: HashedFiles | None,
) -> list[Read]:
    """What the steps say in their outputs, those aside that are damaged."""
    declared = [step for step in steps if step.entry.stage in DECLARED_STAGES]
    with ThreadPoolExecutor(processors()) as pool:
        return list(pool.map(lambda step: read_step(step, stored, damaged, hashed), declared))


def _linked(
    reads: Sequence[Read],
    wrong: set[str],
    stored: Mapping[str, StoredOutput],
    recorded: RecordedRun,
    params: Params,
) -> tuple[list[Discrepancy], Sequence[str]]:
    """What is wrong with how artifacts name each other, by digest and by id; and steps that are stale."""
    facts = {
        path: found
        for read in reads
        for path, found in read.facts.items()
        if path not in wrong  # what names it would only say it again
    }
    found, stale = digest_findings(reads, facts, recorded, params)
    ids = Ids(stored, facts)
    named = (finding for read in reads for finding in ids.findings(read))
    return [*found, *adapter_findings(reads, stored, facts), *named], stale


def _busy(recorded: RecordedRun) -> set[str]:
    """Addresses of steps that are running, or have just run: what they have written is not in dvc.lock yet."""
    running = {(step.stage, step.key, step.rescore) for step in running_steps()}
    making = paths_in_the_making()
    at_work = dvc_is_at_work()
    return {
        step.entry.address
        for step in recorded.steps
        if (step.entry.stage, step.entry.key, step.entry.rescore) in running
        or making & step.entry.outputs.keys()
        or (at_work and _is_of_another_run(step))
    }


def _is_of_another_run(step: RecordedStep) -> bool:
    """Whether the workspace has another run_info of it than is recorded."""
    outputs = step.entry.outputs.items()
    return any(path.startswith(RUN_INFO) and differs_from(Path(path), md5) for path, md5 in outputs)


def _made_since(before: RecordedRun) -> set[str]:
    """Addresses of steps that DVC has run, or is running, since the record was read."""
    now = read_recorded(Run())
    return _busy(now) | {
        output.step for path, output in before.outputs.items() if now.outputs.get(path) != output
    }


def _not_of(
    steps: set[str], findings: Sequence[Discrepancy], recorded: RecordedRun
) -> list[Discrepancy]:
    """Findings less those about outputs of some steps."""
    about = {path for path, output in recorded.outputs.items() if output.step in steps}
    return [finding for finding in findings if _output_of(finding, recorded.outputs) not in about]


def _output_of(finding: Discrepancy, paths: Container[str]) -> str:
    """The output that a finding is about: itself, or the folder of the file."""
    return next((path for path in _with_parents(finding.path) if path in paths), "")


def _with_parents(path: str) -> list[str]:
    return [path, *(each.as_posix() for each in Path(path).parents)]


def _looked_into(
    paths: Iterable[str], stored: Mapping[str, StoredOutput]
) -> dict[str, list[Discrepancy]]:
    """What is wrong with the bytes of some outputs."""
    chosen = {path: stored[path] for path in paths}
    hashed = HashedFiles(chosen.values())
    hashed.read()
    return _wrong_bytes(chosen, hashed, stored)


def _wrong_bytes(
    chosen: Mapping[str, StoredOutput], hashed: HashedFiles, stored: Mapping[str, StoredOutput]
) -> dict[str, list[Discrepancy]]:
    """The same once they are hashed; bytes that belong to another output of `stored` are told by its name."""
    whose = _paths_by_md5(stored)
    return {path: [*byte_findings(each, hashed, whose)] for path, each in chosen.items()}


def _with_mends(
    findings: Sequence[Discrepancy], stored: Mapping[str, StoredOutput]
) -> list[Discrepancy]:
    """Findings with the mend of the file where its bytes are not as recorded, and not that of the record."""
    about = {finding: _output_of(finding, stored) for finding in findings}
    found = _looked_into(filter(None, about.values()), stored)

    def mended(finding: Discrepancy) -> Discrepancy:
        wrong = found.get(about[finding])
        return replace(finding, mend=wrong[0].mend) if wrong else finding

    return [mended(finding) for finding in findings]


def _missing(output: RecordedOutput) -> Discrepancy:
    is_folder = Path(output.path).parent.name in FOLDERS
    mend = f"dvc pull {output.path}" if is_folder else "rollbook pull"
    return Discrepancy(
        output.path, "is not on this machine, or not whole", output.md5, "nothing", mend
    )


def _paths_by_md5(stored: Mapping[str, StoredOutput]) -> Mapping[str, Sequence[str]]:
    """Outputs and files of folders by their md5."""
    found: dict[str, list[str]] = {}
    for path, each in stored.items():
        for file in each.files:
            found.setdefault(file.md5, []).append(f"{path}/{file.name}" if file.name else path)
    return found


def _is_absent(stored: StoredOutput) -> bool:
    return not stored.is_whole and not stored.output.pruned


def _running(busy: set[str]) -> Iterator[str]:
    if busy:
        yield f"{listed(sorted(busy))}: running now, or not recorded yet, so what it makes is left out"


def _where(stored: Mapping[str, StoredOutput], complete: bool) -> Iterator[str]:
    """Says what lies in only one place or none, by kind; absent ones unless they are findings."""
    pruned = [path for path, each in stored.items() if each.output.pruned and not each.is_whole]
    absent = [path for path, each in stored.items() if _is_absent(each)]
    cached = [path for path, each in stored.items() if each.is_whole and not each.in_workspace]
    lacking = [path for path, each in stored.items() if each.in_workspace and each.lacks_cache]
    if absent and not complete:
        how = "`rollbook pull` gets all but policies, `dvc pull PATH` one"
        yield f"{_count(absent)} not on this machine, and not verified: {listed(absent)}; {how}"
    if pruned:
        yield f"{_count(pruned)} pruned by sealing: {listed(pruned)}; `rollbook seal --rebuild KEY` makes one again"
    if cached:
        yield f"{_count(cached)} only in DVC's cache: {listed(cached)}; `dvc checkout PATH` puts one in its place"
    if lacking:
        yield f"{_count(lacking)} only in the workspace: {listed(lacking)}; `dvc commit` puts them into DVC's cache"


def _count(paths: Sequence[str]) -> str:
    return f"{len(paths)} output is" if len(paths) == 1 else f"{len(paths)} outputs are"


def _unnamed(reads: Sequence[Read]) -> Iterator[str]:
    """Metrics say nothing about themselves."""
    older = [
        read.step.entry.address for read in reads if read.info and read.info.metrics_sha256 is None
    ]
    if older:
        yield f"{listed(older)}: run by an older Rollbook, whose run_info does not name its metrics; their md5 does"


def _stale(addresses: Sequence[str]) -> Iterator[str]:
    if addresses:
        why = (
            "what they read was made again since, is in no lock file, or is another by params.yaml"
        )
        yield f"{listed(addresses)}: {why}; `dvc repro` brings them up to date"


def _foreign(recorded: RecordedRun) -> Iterator[str]:
    if recorded.foreign:
        yield f"{listed(recorded.foreign)}: in a lock file, and in no iteration of params.yaml; not verified"


def _unrecorded(recorded: RecordedRun) -> Iterator[str]:
    """Artifacts that no lock file names, and that commands read all the same: of steps cut off, or of lost entries."""
    if dvc_is_at_work() or not recorded.named:
        return
    found = [path.as_posix() for path in files_in(ROOT) if not path.name.startswith(".")]
    named = recorded.named
    unnamed = [path for path in found if not any(each in named for each in _with_parents(path))]
    if unnamed:
        yield f"{listed(unnamed)}: in no lock file, so not verified; `dvc repro` makes and records what belongs there"
