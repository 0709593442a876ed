"""A policy by its digest, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollbook.tables.artifacts import read_facts, read_folder


@dataclass(frozen=True)
class PolicyLink:
    """A policy that something came from or led to.

    Attributes:
        key: of the iteration that made it; empty if that is not known here.
        digest: of its files.
        place: where it is, in words.
    """

    key: str
    digest: str
    place: str


def recorded_digest(folder: Path) -> str:
    """Digest that a policy folder says it has, wherever it lies.

    Raises:
        ArtifactError: if it is missing, or Rollbook did not write it.
    """
    return read_facts(folder).content_hash


def checked_digest(folder: Path) -> str:
    """The same, once all its bytes were read and give this digest.

    Raises:
        ArtifactError: if it is missing, damaged, changed, or no policy.
    """
    return read_folder(folder, "policies", afresh=True).content_hash
