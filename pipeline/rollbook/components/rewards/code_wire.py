"""How values cross between a program of a model and its tests, which are in different sandboxes.

Only plain data crosses: None, truth values, numbers, texts, bytes, and lists, tuples, sets, dicts and deques of them.
It arrives as exactly these types, so nothing a program does to `==` comes along. A subclass arrives as its base. All
other objects stay where they are and cross as references. This module also runs inside the sandboxes: it imports the
standard library only, and little of that.
"""

from __future__ import annotations

import json
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

MAX_FRAME_BYTES = 1 << 22
"""A longer message is refused before it is read."""
EXACT_IN_JSON = 1 << 53

Refer = Callable[[Any], int]
"""Gives the number of an object that stays behind, or raises TypeError."""


class Gone(BaseException):
    """The other side is no longer there, or says what cannot be understood. No test may catch it as an exception."""


def encode(value: Any, refer: Refer) -> Any:
    """`value` as JSON; `refer` numbers what is no plain data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < EXACT_IN_JSON else {"int": int.__format__(number, "x")}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [float.hex(value.real), float.hex(value.imag)]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list):
        return [encode(item, refer) for item in list.__iter__(value)]
    for kind, tag in ((tuple, "tuple"), (frozenset, "frozenset"), (set, "set"), (deque, "deque")):
        if isinstance(value, kind):
            return {tag: [encode(item, refer) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, refer), encode(v, refer)] for k, v in dict.items(value)]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    name = type(value).__module__, type(value).__name__
    if name == ("decimal", "Decimal"):
        return {"decimal": str(value)}
    if name == ("fractions", "Fraction"):
        return {"fraction": f"{value.numerator}/{value.denominator}"}
    return {"ref": refer(value)}


def decode(data: Any, resolve: Callable[[int], Any]) -> Any:
    """The value that `encode` made `data` of.

    Raises:
        Gone: if `data` is nothing that `encode` returns.
    """
    try:
        return _decoded(data, resolve)
    except (TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
        raise Gone(f"sent a value that cannot be read: {error}") from None


def send(fd: int, message: Any) -> None:
    """Writes one message.

    Raises:
        Gone: if nobody reads, or it is too long.
    """
    try:
        data = json.dumps(message).encode()
    except RecursionError:
        raise Gone("a value is nested too deeply") from None
    if len(data) > MAX_FRAME_BYTES:
        raise Gone(f"a value of {len(data)} bytes is too long")
    data = struct.pack("!I", len(data)) + data
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        raise Gone("stopped") from None


def receive(fd: int, wait: Callable[[], None] = lambda: None) -> Any:
    """Reads one message; calls `wait` before each read, which may raise.

    Raises:
        Gone: at the end, or for what is no message.
    """
    (length,) = struct.unpack("!I", _read(fd, 4, wait))
    if length > MAX_FRAME_BYTES:
        raise Gone(f"sent {length} bytes at once")
    try:
        return json.loads(_read(fd, length, wait))
    except (ValueError, RecursionError):
        raise Gone("sent what is no message") from None


def _decoded(data: Any, resolve: Callable[[int], Any]) -> Any:
    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, list):
        return [_decoded(item, resolve) for item in data]
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} is not used")
    ((name, content),) = data.items()
    if name == "dict":
        return {_decoded(key, resolve): _decoded(value, resolve) for key, value in content}
    containers: dict[str, Callable[[Any], Any]] = {
        "tuple": tuple,
        "set": set,
        "frozenset": frozenset,
        "deque": deque,
    }
    if name in containers:
        return containers[name](_decoded(item, resolve) for item in content)
    scalars: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "complex": lambda parts: complex(*map(float.fromhex, parts)),
        "bytes": bytes.fromhex,
        "range": lambda parts: range(*parts),
        "decimal": _decimal,
        "fraction": _fraction,
        "ref": resolve,
    }
    return scalars[name](content)


def _decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def _fraction(text: str) -> Any:
    from fractions import Fraction

    return Fraction(text)


def _read(fd: int, length: int, wait: Callable[[], None]) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        wait()
        part = os.read(fd, length - len(parts))
        if not part:
            raise Gone("stopped")
        parts += part
    return bytes(parts)
