"""Moved to `pipeline.run.revisions`; goes with the last module that imports it from here."""

from pipeline.run.revisions import Extracted, commit_of, extract, revision_of
from pipeline.run.run import Run as Revision
from pipeline.run.store import WORKSPACE

__all__ = ["WORKSPACE", "Extracted", "Revision", "commit_of", "extract", "revision_of"]
