"""Moved to `rollbook.project.run.revisions`; goes with the last module that imports it from here."""

from rollbook.project.run.revisions import Extracted, commit_of, extract, revision_of
from rollbook.project.run.run import Run as Revision
from rollbook.project.run.store import WORKSPACE

__all__ = ["WORKSPACE", "Extracted", "Revision", "commit_of", "extract", "revision_of"]
