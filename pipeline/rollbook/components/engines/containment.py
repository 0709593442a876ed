"""Gives a process back as it was: some libraries leave settings, patches and random states behind."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Adds environment variables, keeping those the user has set; afterwards all are as they were before."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def torch_state(threads: int, compiles: bool) -> Iterator[None]:
    """Torch with these threads, free to use fast kernels; afterwards settings and random states are as before.

    Args:
        threads: of operations on the CPU.
        compiles: whether functions marked for `torch.compile` are compiled; if not, they run as they are written.
    """
    import numpy as np
    import torch
    import torch._dynamo.config as dynamo

    set_threads, threads_before = torch.set_num_threads, torch.get_num_threads()
    dtype, disabled = torch.get_default_dtype(), dynamo.disable
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    grad = torch.is_grad_enabled()
    numpy_state, python_state = np.random.get_state(), random.getstate()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    dynamo.disable = disabled or not compiles
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads_before)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        dynamo.disable = disabled
        np.random.set_state(numpy_state)
        random.setstate(python_state)
