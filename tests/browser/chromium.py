"""Starts the Chromium of this machine: Debian's, not one that playwright downloads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # root, as CI often is, may not use it; only pages made here are opened
    "--disable-dev-shm-usage",  # containers give /dev/shm 64 MB
    "--font-render-hinting=none",
]


def program() -> str:
    """Path of the browser.

    Raises:
        AssertionError: if there is none.
    """
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    assert found, "the tests of pages need Chromium: apt-get install chromium"
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser without a window; it makes no requests of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
