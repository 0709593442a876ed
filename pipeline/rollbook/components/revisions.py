"""What is taken from a hub is pinned to a commit: a branch such as `main` could change under a run."""

from __future__ import annotations

import re

COMMIT = re.compile("[0-9a-f]{40}")


def refuse_unpinned(name: str, revision: str | None, what: str) -> None:
    """For something that is no folder here.

    Args:
        name: hub id.
        revision: given for it.
        what: it is, such as `model`.

    Raises:
        ValueError: unless the revision is a commit hash of 40 hex digits.
    """
    if not COMMIT.fullmatch(revision or ""):
        raise ValueError(
            f"{name!r} is no folder here, and a {what} of the hub needs `revision`: the commit hash "
            f"of 40 hex digits that its page shows under 'Files and versions' (got {revision!r})"
        )
