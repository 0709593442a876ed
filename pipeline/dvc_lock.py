"""The md5 that DVC recorded for every output, from dvc.lock."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import damaged_text

PIPELINE_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
RESCORES_LOCK_FILE = Path("rescores/dvc.lock")
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
"""What DVC calls the bytes of a file, or of a folder."""
TOP_LEVEL = ("schema:", "stages:", "#")
"""How lines of a lock file begin that are not indented."""


def output_md5s(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """Md5 of every output by path; of a folder it ends in `.dir`. Empty without a lock file.

    Reads DVC's own layout line by line: with 200 iterations a YAML parser would need seconds.

    Raises:
        ConfigError: if it is no lock file, or is cut off within an md5.
    """
    if not lock_file.exists():
        return {}
    found: dict[str, str] = {}
    in_outputs, path = False, ""
    for number, line in enumerate(_text(lock_file).splitlines(), 1):
        text = line.strip()
        if text and not line.startswith((" ", *TOP_LEVEL)):
            raise damaged_text(lock_file, f"line {number} is none of a lock file of DVC")
        if line.startswith("    ") and line[4:5].isalpha():
            in_outputs = text == "outs:"
        elif in_outputs and text.startswith("- path: "):
            path = text.removeprefix("- path: ").strip("'\"")
        elif in_outputs and text.startswith("md5: "):
            found[path] = text.removeprefix("md5: ").strip("'\"")
            if not MD5.fullmatch(found[path]):
                raise damaged_text(lock_file, f"line {number}: {found[path]!r} is no md5")
    return found


def _text(lock_file: Path) -> str:
    """The text of a lock file.

    Raises:
        ConfigError: if it is not text.
    """
    try:
        return lock_file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged_text(lock_file, str(error)) from None
