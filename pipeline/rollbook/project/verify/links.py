"""What stored artifacts say about each other: the digests of what each was made from, and the same ids in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rollbook.components.policies.adapters import BASE_FILE
from rollbook.core.errors import ArtifactError
from rollbook.core.hashing import short
from rollbook.core.ids import BASE_KEY
from rollbook.project.run.currency import input_changed
from rollbook.project.run.stored import StoredTable
from rollbook.project.verify.contents import Read
from rollbook.project.verify.finding import Discrepancy, restore
from rollbook.project.verify.places import StoredOutput
from rollbook.project.verify.recorded import RecordedRun
from rollbook.settings.config import Params
from rollbook.tables.artifacts import Facts, is_table, path_of, read_json
from rollbook.tables.run_info import RunInfo

SAME_ROLLOUTS = ("scores", "advantages", "updates")
"""Tables with a row for each rollout of their iteration."""
MADE_BY = ("rollouts", "evaluations")
"""Tables that name the policy that made them, in a column."""


def digest_findings(
    reads: Sequence[Read], facts: Mapping[str, Facts], recorded: RecordedRun, params: Params
) -> tuple[list[Discrepancy], list[str]]:
    """Steps that recorded other inputs than what now lies where they read them.

    Args:
        reads: all steps.
        facts: of all artifacts that are not known to be wrong, by path.
        recorded: what DVC recorded.
        params: of the project.

    Returns:
        What does not agree; and the addresses of steps that DVC would run again, since by the lock file what they read
        was made again: of those nothing can be said.
    """
    md5s = {path: output.md5 for path, output in recorded.outputs.items()}
    readers: dict[tuple[str, str], list[str]] = {}
    stale: dict[str, None] = {}
    for read in reads:
        entry = read.step.entry
        for item in read.stage.inputs:
            if read.info is None or not item.was_read(read.info.inputs):
                continue
            path = item.path(entry.key, params).as_posix()
            if path not in md5s or input_changed(entry, path, md5s):
                stale[entry.address] = None
                continue
            then = read.info.inputs.get(item.label, "")
            if path in facts and facts[path].content_hash != then:
                readers.setdefault((path, then), []).append(entry.address)
    findings = []
    for (path, then), addresses in readers.items():
        now = facts[path].content_hash
        what = (
            f"is not what {', '.join(addresses)} read: {short(now)}, and recorded is {short(then)}"
        )
        mend = restore(path, recorded.outputs[path].source)
        findings.append(Discrepancy(path, what, then, now, mend))
    return findings, list(stale)


class _UnreadableError(Exception):
    """A table that cannot be looked into; carries what is said of it."""

    def __init__(self, finding: Discrepancy) -> None:
        super().__init__(finding.what)
        self.finding = finding


class Ids:
    """Columns of stored tables, read once, and what they say of each other."""

    def __init__(self, stored: Mapping[str, StoredOutput], facts: Mapping[str, Facts]) -> None:
        """Only tables with facts are looked at: the others are missing, or known to be wrong."""
        self._stored = stored
        self._facts = facts

    def findings(self, read: Read) -> Iterator[Discrepancy]:
        """What is wrong in the tables that a step made."""
        for item in read.stage.outputs:
            path = item.path(read.step.entry.key).as_posix()
            if path not in self._facts:
                continue
            try:
                yield from self._of_output(read, item.kind, path)
            except _UnreadableError as error:
                yield error.finding

    def _of_output(self, read: Read, kind: str, path: str) -> Iterator[Discrepancy]:
        """What is wrong in one of the tables of a step."""
        key, family = read.step.entry.key, kind.partition("/")[0]
        rollouts, prompts = (path_of(each, key).as_posix() for each in ("rollouts", "prompts"))
        if is_table(kind) and kind != "data":
            yield from self._iteration(read, path)
        if kind in MADE_BY and read.info:
            yield from self._policy(read.info, read, path)
        if family in (*SAME_ROLLOUTS, "rescores") or (family == "logprobs" and self._rows(path)):
            yield from self._same(read, path, rollouts, "rollout_id")
        if family == "rollouts":
            yield from self._same(read, path, prompts, "group_id")
        if family == "pairs":
            for name in ("chosen_id", "rejected_id"):
                yield from self._among(read, path, rollouts, name, "rollout_id")
        if family in ("prompts", "evaluations") and read.info:
            data = path_of("data", "train" if family == "prompts" else "evaluation").as_posix()
            made_from = self._facts.get(data)
            if made_from and made_from.content_hash == read.info.inputs.get("data"):
                yield from self._among(read, path, data, "prompt_id")
        if family == "history" and key != BASE_KEY:
            yield from self._among(read, prompts, path, "prompt_id")

    def _iteration(self, read: Read, path: str) -> Iterator[Discrepancy]:
        key = read.step.entry.key
        found = pc.unique(self._column(path, "iteration")).to_pylist()
        if wrong := [str(each) for each in found if each != key]:
            what = f"holds rows of iteration {', '.join(wrong[:3])}"
            yield Discrepancy(path, what, key, wrong[0], restore(path, read.step.source))

    def _policy(self, info: RunInfo, read: Read, path: str) -> Iterator[Discrepancy]:
        digest = info.inputs["policies"]
        found = pc.unique(self._column(path, "policy_digest")).to_pylist()
        if wrong := [str(each) for each in found if each != digest]:
            what = (
                f"holds rows of policy {short(wrong[0])}, and its step read policy {short(digest)}"
            )
            yield Discrepancy(path, what, digest, wrong[0], restore(path, read.step.source))

    def _same(self, read: Read, path: str, other: str, name: str) -> Iterator[Discrepancy]:
        """Both tables hold the same ids."""
        yield from self._among(read, path, other, name)
        yield from self._among(read, other, path, name)

    def _among(
        self, read: Read, path: str, other: str, name: str, there: str = ""
    ) -> Iterator[Discrepancy]:
        """Ids of one table that another one lacks, where they stand in the column `there`, else in the same."""
        if path not in self._facts or other not in self._facts:
            return
        mine, theirs = self._column(path, name), self._column(other, there or name)
        if mine.equals(theirs):
            return
        unknown = mine.filter(pc.invert(pc.is_in(mine, value_set=theirs.combine_chunks())))
        if len(unknown):
            what = f"has {len(unknown)} of {len(mine)} {name}s that {other} lacks, such as {unknown[0]}"
            yield Discrepancy(
                path,
                what,
                f"{there or name}s of {other}",
                str(unknown[0]),
                restore(path, read.step.source),
            )

    def _rows(self, path: str) -> int:
        return len(self._column(path, "rollout_id"))

    def _column(self, path: str, name: str) -> pa.ChunkedArray:
        """A column of ids.

        Raises:
            _UnreadableError: if there is none; where bytes are believed, nobody has looked yet.
        """
        file, facts = self._stored[path].content, self._facts[path]
        if file is None:
            raise self._unreadable(path, "cannot be read: it is no file")
        try:
            table = StoredTable(facts.kind, facts.key, Path(path), file)
            if name in table.names and not table.is_nested(name):
                column = table.column(name)
                if pa.types.is_string(column.type):
                    return column
        except ArtifactError as error:
            said = error.message.removeprefix(f"{path}: ")
            raise self._unreadable(path, f"cannot be read: {said}") from None
        raise self._unreadable(path, f"lacks the column {name!r}, or it holds no texts")

    def _unreadable(self, path: str, what: str) -> _UnreadableError:
        mend = restore(path, self._stored[path].output.source)
        return _UnreadableError(Discrepancy(path, what, "a table of its kind", "", mend))


def adapter_findings(
    reads: Sequence[Read], stored: Mapping[str, StoredOutput], facts: Mapping[str, Facts]
) -> Iterator[Discrepancy]:
    """Adapters that name another base than the policy that lies where they say."""
    for read in reads:
        path = path_of("policies", read.step.entry.key).as_posix()
        if path not in read.facts or BASE_FILE not in stored[path].members:
            continue
        try:
            named = read_json(stored[path].members[BASE_FILE])
        except ArtifactError as error:
            mend = restore(path, read.step.source)
            yield Discrepancy(f"{path}/{BASE_FILE}", error.message, "an adapter's base", "", mend)
            continue
        base, digest = path_of("policies", str(named.get("key"))), str(named.get("digest"))
        found = facts.get(base.as_posix())
        if found is not None and found.content_hash != digest:
            now = found.content_hash
            what = f"is an adapter on policy {short(digest)}, and {base} is {short(now)}"
            mend = restore(base.as_posix(), read.step.source)
            yield Discrepancy(path, what, digest, now, mend)
