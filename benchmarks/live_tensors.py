"""How many bytes of tensors are alive while something runs: what a device would have to hold, without its allocator."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the storage of every tensor that an operation reads or makes, until it is freed.

    A storage is counted once, however many tensors look at it. What a kernel takes for itself and gives back within one
    operation is not seen.

    Attributes:
        alive: bytes now.
        peak: most bytes at the end of any operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        for each in tree_leaves((args, given, made)):
            if isinstance(each, Tensor):
                self._count(each.untyped_storage())
        self.peak = max(self.peak, self.alive)
        return made

    def _count(self, storage: UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place in self._known:
            return

        def freed(_: object) -> None:
            del self._known[place]
            self.alive -= size

        self._known[place] = weakref.ref(storage, freed)
        self.alive += size
