"""A real Chromium without a window, one for all tests of pages.

Of the package, not of the session: while playwright runs, its event loop does, and `asyncio.run` of other tests fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import chromium


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; a test opens `browser.new_context(...)` for itself and closes it."""
    with chromium() as started:
        yield started
