"""torch, transformers and MLflow, imported with what is needed of them alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

from rollbook.core.lean_imports import without

NOT_NEEDED_BY_TRANSFORMERS = ("sklearn", "scipy")
"""Optional packages that `transformers` imports for assisted generation and object detection, 1.3 s of start-up."""
CUBLAS_WORKSPACE = ":4096:8"
"""Without a fixed workspace cuBLAS refuses to run under deterministic algorithms."""
OMP_WAITING = "PASSIVE"
"""Threads that spin while they wait make small models several times slower on a machine that does other work too."""


def import_torch() -> None:
    """Imports torch and transformers, as far as all policies need them, and computes nothing yet.

    Raises:
        ModuleNotFoundError: if they are not installed.
    """
    set_environment()
    importlib.import_module("torch._inductor.config")  # wanted by use_deterministic_algorithms
    with lean_transformers():
        importlib.import_module("transformers.models.auto.modeling_auto")


def set_environment() -> None:
    """What libraries read once, when they are loaded."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    os.environ.setdefault("OMP_WAIT_POLICY", OMP_WAITING)


@contextlib.contextmanager
def lean_transformers() -> Iterator[None]:
    """While transformers is imported, packages it does not need here look as if they were not installed."""
    hidden = [name for name in NOT_NEEDED_BY_TRANSFORMERS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def import_mlflow() -> None:
    """Imports what of MLflow a store on disk needs, and opens nothing yet."""
    with without("pandas", "polars"):  # mlflow does without them, and is imported a second sooner
        for name in ("tracking", "tracing.client", "store.tracking.sqlalchemy_store"):
            importlib.import_module(f"mlflow.{name}")
