"""What verification says: something wrong with a file, and how it is mended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Discrepancy:
    """Something that is not as it was recorded.

    Attributes:
        path: of the output, or of the file inside of it.
        what: one sentence about it.
        expected, found: the two things that differ, hashes in full.
        mend: what to type, or empty.
    """

    path: str
    what: str
    expected: str
    found: str
    mend: str

    def as_json(self) -> Mapping[str, str]:
        """As JSON values."""
        return asdict(self)


def restore(path: str, source: str) -> str:
    """How to mend bytes that are as a lock file says, and yet not what belongs there."""
    return f"`git log -p {source}` shows the md5 it had; with that back in place, {checkout(path)}"


def checkout(path: str) -> str:
    """Takes an output from DVC's cache. It is removed first: DVC takes a file of the same time and size for whole."""
    return f"rm -rf {path} && dvc checkout {path}"
