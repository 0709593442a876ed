"""A policy by its digest, and where it is."""

from __future__ import annotations

from dataclasses import dataclass


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
