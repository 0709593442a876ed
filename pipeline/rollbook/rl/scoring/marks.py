"""What a scoring process is doing right now, in memory that its parent can read: also after it was killed."""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass

LAYOUT = struct.Struct("qqqqdd")
SIZE = LAYOUT.size


@dataclass(frozen=True)
class Call:
    """A call of a reward.

    Attributes:
        number: of the call, in its process; tells two looks at one call from looks at two.
        reward: its place in the list of rewards; -1 between calls.
        place: of its first row in the chunk.
        rows: that are scored together.
        started: `time.monotonic()`, one clock for all processes of the machine.
        limit: seconds it may take; 0 = no limit.
    """

    number: int = 0
    reward: int = -1
    place: int = 0
    rows: int = 0
    started: float = 0.0
    limit: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than it may."""
        return self.limit > 0 and time.monotonic() - self.started > self.limit


class Mark:
    """The shared memory, seen from either side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._number = 0

    def begin(self, reward: int, place: int, rows: int, limit: float) -> None:
        """Notes a call that starts."""
        self._number += 1
        LAYOUT.pack_into(
            self._memory, 0, self._number, reward, place, rows, time.monotonic(), limit
        )

    def end(self) -> None:
        """Notes that no reward is running."""
        self._number += 1
        LAYOUT.pack_into(self._memory, 0, self._number, -1, 0, 0, 0.0, 0.0)

    def read(self) -> Call:
        """The call of the moment; looks until two looks agree, as the other side may be writing."""
        seen = bytes(self._memory)
        while (again := bytes(self._memory)) != seen:
            seen = again
        return Call(*LAYOUT.unpack(seen)) if any(seen) else Call()

    def close(self) -> None:
        self._memory.close()
