"""The interface of a source: where prompts come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rollbook.core.component import Component

Role = Literal["train", "evaluation"]


class Source(Component):
    """Yields prompts as records.

    Attributes:
        weight: share of this source among the prompts of an iteration, relative to the other sources' weights.
            Default: as many prompts as it has.
    """

    kind: ClassVar[str] = "sources"
    weight: Annotated[float, Field(gt=0)] | None = None

    def records(self, role: Role, split_seed: int) -> Iterator[dict[str, Any]]:
        """Yields one record per prompt, in a fixed order.

        Args:
            role: which side of the split is wanted; a source that makes its own data must keep the sides apart.
            split_seed: decides generated data and splits.

        Returns:
            Records with `messages` (list of `{"role", "content"}`), `reference_answer` (text or None) and
            any further columns of plain JSON values.

        Raises:
            DataError: naming file, line and column.
        """
        raise NotImplementedError
