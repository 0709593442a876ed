"""What DVC recorded of this project: the finished steps of dvc.lock, of rescores/dvc.lock and of sealed parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.core.ids import BASE_KEY
from rollbook.core.yaml import read_yaml
from rollbook.dvc.lock import LOCK_FILE, PIPELINE_FILE, RESCORES_LOCK_FILE, Entry
from rollbook.project.run.run import Run
from rollbook.project.verify.finding import Discrepancy
from rollbook.settings.config import Params
from rollbook.settings.sealed import files_of
from rollbook.tables.artifacts import FOLDERS, path_of


@dataclass(frozen=True)
class RecordedOutput:
    """One output of a finished step.

    Attributes:
        path: relative to the project.
        md5: of its bytes; of a folder that of its listing, with `.dir`.
        step: address of the step that made it.
        source: file that says so.
        cached: whether DVC keeps it in its cache.
        sealed: whether its iteration is sealed, so that no step makes it again.
        pruned: whether sealing removed it.
    """

    path: str
    md5: str
    step: str
    source: str
    cached: bool = True
    sealed: bool = False
    pruned: bool = False

    @property
    def owner(self) -> str:
        """What `dvc commit` and `dvc repro` call the thing that has this output."""
        if self.sealed:
            return Path(self.source).with_suffix(".dvc").as_posix()
        folder = Path(self.source).parent
        return self.step if folder == Path() else f"{folder / PIPELINE_FILE}:{self.step}"


@dataclass(frozen=True)
class RecordedStep:
    """A finished step with the file that says so."""

    entry: Entry
    source: str
    sealed: bool = False


@dataclass(frozen=True)
class RecordedRun:
    """Everything that is to be verified.

    Attributes:
        steps: finished steps of params.yaml's and sealed iterations.
        outputs: theirs, by path.
        foreign: addresses in lock files that belong to no iteration of params.yaml.
        named: paths of all outputs that any of these files names.
        disagreements: between the files of sealed parts.
    """

    steps: Sequence[RecordedStep]
    outputs: Mapping[str, RecordedOutput]
    foreign: Sequence[str]
    named: Collection[str]
    disagreements: Sequence[Discrepancy]


def read_recorded(run: Run) -> RecordedRun:
    """What is recorded now.

    Raises:
        ConfigError: if one of the files cannot be read.
    """
    params = run.params
    steps, foreign = [], []
    named: set[str] = set()
    for file, entries in ((LOCK_FILE, run.entries), (RESCORES_LOCK_FILE, run.rescore_entries)):
        for entry in entries:
            named.update(entry.outputs)
            if _belongs(entry, params):
                steps.append(RecordedStep(entry, str(file)))
            else:
                foreign.append(entry.address)
    disagreements: list[Discrepancy] = []
    outputs: dict[str, RecordedOutput] = {}
    for part, entries in run.sealed_parts.items():
        _, locked, listed = files_of(part)
        steps += [RecordedStep(entry, str(locked), sealed=True) for entry in entries]
        gone = _pruned(params, part)
        disagreements += _disagreements(entries, str(locked), listed, gone)
        outputs |= {
            path: RecordedOutput(path, md5, entry.address, str(locked), True, True, path in gone)
            for entry in entries
            for path, md5 in entry.outputs.items()
        }
    uncached = _uncached()
    outputs |= {
        path: RecordedOutput(path, md5, step.entry.address, step.source, path not in uncached)
        for step in steps
        if not step.sealed
        for path, md5 in step.entry.outputs.items()
    }
    return RecordedRun(steps, outputs, foreign, named | outputs.keys(), disagreements)


def _belongs(entry: Entry, params: Params) -> bool:
    """Whether it is a step of this params.yaml; entries of iterations that left it stay in dvc.lock."""
    if entry.rescore and entry.rescore not in params.rescores:
        return False
    return entry.key == BASE_KEY or entry.key in params.iterations


def _pruned(params: Params, part: str) -> set[str]:
    """Paths of the policies, optimizer states and critics that sealing removed."""
    gone = [key for key, item in params.sealed.items() if item.part == part and not item.kept]
    return {path_of(kind, key).as_posix() for key in gone for kind in FOLDERS}


def _disagreements(
    entries: Sequence[Entry], locked: str, listed: Path, pruned: set[str]
) -> Iterator[Discrepancy]:
    """Outputs that DVC keeps in another version than the one that was sealed."""
    kept = {item["path"]: item["md5"] for item in read_yaml(listed).get("outs") or []}
    for entry in entries:
        for path, md5 in entry.outputs.items():
            found = kept.get(path, "nothing")
            if found != md5 and not (path in pruned and path not in kept):
                yield Discrepancy(
                    path,
                    f"{listed} keeps {found}, and {locked} says that {md5} was sealed",
                    md5,
                    found,
                    f"git checkout {listed} {locked}",
                )


def _uncached() -> set[str]:
    """Outputs that dvc.yaml keeps out of DVC's cache: they are in git."""
    if not PIPELINE_FILE.exists():
        return set()
    found: set[str] = set()
    for stage in read_yaml(PIPELINE_FILE)["stages"].values():
        declared: Mapping[str, Any] = stage.get("do", stage)
        for section in ("outs", "metrics", "plots"):
            for item in declared.get(section) or []:
                if isinstance(item, Mapping):
                    found |= {path for path, how in item.items() if how.get("cache") is False}
    return found
