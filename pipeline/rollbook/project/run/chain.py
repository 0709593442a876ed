"""A chain: iterations that follow each other from the base policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from rollbook.core.ids import BASE_KEY
from rollbook.project.run.iteration import Iteration
from rollbook.project.run.store import Store


class Chain:
    """The iterations from the first after the base policy up to one.

    Attributes:
        run: that it is part of.
        tip: key of the last iteration; that of the base policy where the chain is empty.
        keys: of its iterations, oldest first, sealed ones too; the base policy's is not among them.
    """

    def __init__(self, run: Store, tip: str) -> None:
        self.run, self.tip = run, tip
        self.keys: Sequence[str] = run.params.chain(tip)

    @cached_property
    def base(self) -> Iteration:
        """The base policy."""
        return Iteration(self.run, BASE_KEY)

    @cached_property
    def iterations(self) -> list[Iteration]:
        """Its iterations, oldest first."""
        return [Iteration(self.run, key) for key in self.keys]

    @cached_property
    def begun(self) -> list[Iteration]:
        """Those of which something is on disk."""
        return [item for item in self.iterations if item.has_begun]

    @property
    def changed(self) -> list[str]:
        """Keys of begun iterations that params.yaml has another recipe for now than they ran with."""
        return [item.key for item in self.begun if item.is_changed]
