"""The md5 that DVC recorded for every output, from dvc.lock."""

from __future__ import annotations

from pathlib import Path

PIPELINE_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
RESCORES_LOCK_FILE = Path("rescores/dvc.lock")


def output_md5s(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """Md5 of every output by path; of a folder it ends in `.dir`. Empty without a lock file.

    Reads DVC's own layout line by line: with 200 iterations a YAML parser would need seconds.
    """
    if not lock_file.exists():
        return {}
    found: dict[str, str] = {}
    in_outputs, path = False, ""
    for line in lock_file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if line.startswith("    ") and line[4:5].isalpha():
            in_outputs = text == "outs:"
        elif in_outputs and text.startswith("- path: "):
            path = text.removeprefix("- path: ").strip("'\"")
        elif in_outputs and text.startswith("md5: "):
            found[path] = text.removeprefix("md5: ").strip("'\"")
    return found
