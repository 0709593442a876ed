"""A seccomp filter for sandboxed programs: refuses the system calls that reach past a sandbox's limits.

    socket                            host sockets that no network namespace covers, such as vsock
    memfd_create, shmget, …           memory that no limit of address space counts
    unshare, clone, setns, mount, …   namespaces of their own, where files in memory have no limit
    keyctl, bpf, io_uring_setup, …    what outlives a program, or bypasses this filter

Refused calls fail with EPERM; clone3 with ENOSYS, so that the C library falls back to clone, whose flags can be seen.
Numbers: `asm/unistd_64.h` of x86_64, `asm-generic/unistd.h` for aarch64. Format: `linux/filter.h`, `linux/seccomp.h`.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping

from rollbook.core.errors import RewardError

LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NEW_NAMESPACES = 0x7E020080
"""All CLONE_NEW… flags of `clone`, and no other flag."""
CLONE3 = 435
FOREIGN_ABI = 0x40000000
"""Numbers from here on are those of x32, a second table of the same calls."""
SINCE_ONE_TABLE = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 447)
"""Calls numbered alike everywhere: pidfd_send_signal, io_uring_*, the new mount calls, memfd_secret."""


MACHINES: Mapping[str, tuple[int, int, int]] = {
    "x86_64": (0, 0xC000003E, 56),
    "aarch64": (1, 0xC00000B7, 220),
}
"""Column in `REFUSED`, audit architecture and the number of `clone`."""
REFUSED: Mapping[str, tuple[int, int]] = {
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "socket": (41, 198),
    "ptrace": (101, 117),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}


def filter_program() -> bytes:
    """The filter for this machine, as `bwrap --seccomp` reads it.

    Raises:
        RewardError: on a processor whose system calls are not listed here.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise RewardError(
            f"code of a model cannot be run safely on {platform.machine()}; only on {' and '.join(MACHINES)}"
        )
    column, audit, clone = machine
    refused = [*(numbers[column] for numbers in REFUSED.values()), *SINCE_ONE_TABLE]
    fail = FAIL | errno.EPERM
    steps = [
        (LOAD_WORD, 0, 0, ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL),
        (LOAD_WORD, 0, 0, NUMBER),
        (JUMP_IF_AT_LEAST, 0, 1, FOREIGN_ABI),
        (RETURN, 0, 0, fail),
        (JUMP_IF_EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
    ]
    for number in refused:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, fail)]
    steps += [
        (JUMP_IF_EQUAL, 0, 3, clone),
        (LOAD_WORD, 0, 0, FIRST_ARGUMENT),
        (JUMP_IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, fail),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
