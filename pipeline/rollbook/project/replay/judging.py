"""Compares what a replay made with what is stored: what was recorded, and every copy that is not that any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollbook.core.errors import ArtifactError
from rollbook.dvc.lock import Entry
from rollbook.project.replay.differing import difference, file_difference
from rollbook.project.replay.steps import stage_of, was_read
from rollbook.project.replay.stored import LISTING, AlteredCopy, StoredArtifacts, dvc_md5
from rollbook.project.replay.verdict import Difference, Outcome, OutputVerdict, Tolerance, worst
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import FOLDERS, ROOT
from rollbook.tables.run_info import RunInfo


class Judge:
    """Judges the outputs of one replay.

    Args:
        stored: where recorded artifacts come from.
        folder: that the replay ran in.
        recorded: folder for recorded artifacts that are looked into.
    """

    def __init__(self, stored: StoredArtifacts, folder: Path, recorded: Path) -> None:
        self._stored = stored
        self._folder = folder
        self._recorded = recorded

    def outputs(self, entry: Entry, info: RunInfo, tolerance: Tolerance) -> list[OutputVerdict]:
        """A verdict on everything the step makes, but its run_info.

        Args:
            entry: the step.
            info: its run_info.
            tolerance: of its numbers.
        """
        left_out = stage_of(entry).run_info_path(entry.key).as_posix()
        return [
            self._output(path, md5, _content_hash(entry, info, path), tolerance)
            for path, md5 in sorted(entry.outputs.items())
            if path != left_out
        ]

    def altered_inputs(self, entry: Entry, info: RunInfo) -> Iterator[str]:
        """Stored copies of what the step read that are not what it read, and how they differ."""
        for path, md5 in entry.inputs.items():
            if not was_read(path, entry, info):
                continue
            for copy in self._stored.altered(path, md5):
                how = _copy_difference(path, copy, self._folder / path)
                yield f"{path}: {copy.where} holds something else than was read: {how.text}"

    def _output(self, path: str, md5: str, content: str, tolerance: Tolerance) -> OutputVerdict:
        made = self._folder / path
        if not made.exists():
            gone = Difference(Outcome.DIFFERENT, "the replay did not make it")
            return OutputVerdict(path, md5, "", gone)
        replayed = dvc_md5(made)
        found, reference = Difference(Outcome.IDENTICAL), made
        if replayed != md5:
            found, reference = self._unlike(path, md5, content, tolerance)
        for copy in self._stored.altered(path, md5):
            how = _copy_difference(path, copy, reference)
            text = f"{copy.where} holds something else than was recorded: {how.text}"
            if replayed == md5 and not found.text:
                text = f"the replay made what was recorded, but {text}; `rollbook verify` says what restores it"
            found = Difference(
                worst((found.outcome, how.outcome)),
                "; ".join(filter(None, (found.text, text))),
                {**found.facts, "altered": {copy.where: how.facts or how.text}},
            )
        return OutputVerdict(path, md5, replayed, found)

    def _unlike(
        self, path: str, md5: str, content: str, tolerance: Tolerance
    ) -> tuple[Difference, Path]:
        """How an output with other bytes compares to the recorded one, and the file that copies are held against."""
        made, was, kind = self._folder / path, self._recorded / path, kind_of(path)
        try:
            if not was.exists():
                self._stored.put(path, md5, was)
        except ArtifactError as error:
            facts = Run(self._folder).facts(kind, Path(path).stem) if content else None
            if facts is not None and facts.content_hash == content:
                text = "the recorded bytes are not within reach; their content hash is the same"
                return Difference(Outcome.SAME_CONTENT, text), made
            text = f"it came out with md5 {dvc_md5(made)}, and cannot be compared: {error.message}"
            return Difference(Outcome.NOT_REPLAYED, text), made
        return difference(was, made, kind, limit_of(kind, tolerance)), was


def kind_of(path: str) -> str:
    """The kind of the artifact that belongs at a path: a table or folder, or numbers."""
    parent = Path(path).parent.relative_to(ROOT).as_posix()
    return "numbers" if path.endswith(".json") else parent


def limit_of(kind: str, tolerance: Tolerance) -> float:
    """How far the numbers of a kind of artifact may be apart."""
    return tolerance.weights if kind in FOLDERS else tolerance.numbers


def _content_hash(entry: Entry, info: RunInfo, path: str) -> str:
    """The content hash of an output that its step recorded; empty for numbers, which have none."""
    labels = {item.path(entry.key).as_posix(): item.label for item in stage_of(entry).outputs}
    return info.outputs.get(labels.get(path, ""), "")


def _copy_difference(path: str, copy: AlteredCopy, reference: Path) -> Difference:
    """How an altered copy compares to what it should be; always some difference."""
    if copy.name == LISTING:
        return Difference(Outcome.DIFFERENT, f"{LISTING} was changed")
    if copy.name and not (reference / copy.name).exists():
        return Difference(Outcome.DIFFERENT, f"{copy.name} was changed")
    if copy.name:
        try:
            found = file_difference(copy.name, reference / copy.name, copy.at, 0.0)
        except ArtifactError as error:
            return Difference(Outcome.DIFFERENT, error.message)
        return Difference(found.outcome, f"{copy.name}: {found.text}", found.facts)
    return difference(reference, copy.at, kind_of(path), 0.0)
