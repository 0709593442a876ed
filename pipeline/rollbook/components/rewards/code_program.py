"""The side of a model's program; runs inside its sandbox, where nothing is trusted.

    run PROGRAM               as a script: exit code 0, or NOT_COMPILED, or what the program ends with
    serve PROGRAM IN OUT N    as a library: for each test a fresh process loads it and answers calls, with N seconds of
                              processor time

All that a program can forge here are the values it returns, which is what it is asked for anyway.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import types
from typing import Any

from rollbook.components.rewards.code_wire import Gone, decode, encode, receive, send

NOT_COMPILED = 65
OUT_OF_TIME = (-signal.SIGKILL, -signal.SIGXCPU)
"""How a process ends that has used up its processor time."""
MAX_ITEMS = 100_000
"""How many items of an iterator are sent; an endless one ends there."""


def main(arguments: list[str]) -> None:
    """What the sandbox starts."""
    task, path, *rest = arguments
    if task == "run":
        run_script(path)
    else:
        serve(path, *map(int, rest))


def compiled(path: str) -> types.CodeType | None:
    """The program, or None if it is none."""
    with open(path, encoding="utf-8-sig") as stream:  # noqa: PTH123 - pathlib takes a third of the start-up time
        source = stream.read()
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def run_script(path: str) -> None:
    """Runs a program as `python file` would."""
    code = compiled(path)
    if code is None:
        sys.exit(NOT_COMPILED)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    sys.modules["__main__"] = main_module
    sys.argv = [path]
    exec(code, main_module.__dict__)


def serve(path: str, requests: int, replies: int, cpu_seconds: int) -> None:
    """Answers tests until nobody asks any more."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    cpu_seconds = min(cpu_seconds, most)  # the kernel refuses more
    try:
        send(replies, {"ready": True})
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, most))
        code = compiled(path)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        send(replies, {"compiled": code is not None})
        while code is not None:
            if receive(requests) != {"begin": True}:
                continue  # meant for a process that is gone
            child = os.fork()
            if child == 0:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
                _answer(code, path, requests, replies)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            send(
                replies,
                {"end": True, "out_of_time": os.waitstatus_to_exitcode(status) in OUT_OF_TIME},
            )
    except Gone:
        pass


def _answer(code: types.CodeType, path: str, requests: int, replies: int) -> None:
    """Loads the program and answers the calls of one test."""
    module = types.ModuleType("solution")
    module.__file__ = path
    sys.modules["solution"] = module
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        send(replies, {"ran": False, "why": f"{type(error).__name__}: {error}"[:200]})
        return
    send(replies, {"ran": True})
    kept: list[Any] = []
    while (request := receive(requests)) != {"end": True}:
        try:
            result = {"value": encode(_did(request, module, kept), lambda item: _keep(kept, item))}
            send(replies, result)
        except Gone as error:
            send(replies, {"raised": "ValueError", "why": str(error)})
        except BaseException as error:
            send(replies, {"raised": _public_name(error), "why": _text(error)})


def _did(request: dict[str, Any], module: types.ModuleType, kept: list[Any]) -> Any:
    def own(data: Any) -> Any:
        return decode(data, lambda place: kept[place])

    if "name" in request:
        try:
            return vars(module)[request["name"]]
        except KeyError:
            raise NameError(f"name {request['name']!r} is not defined") from None
    target = kept[request["of"]]
    if "call" in request:
        positional, named = request["call"]
        return target(*map(own, positional), **{name: own(value) for name, value in named})
    if "attribute" in request:
        return getattr(target, request["attribute"])
    if "item" in request:
        return target[own(request["item"])]
    if "length" in request:
        return len(target)
    return [item for item, _ in zip(target, range(MAX_ITEMS), strict=False)]


def _keep(kept: list[Any], item: Any) -> int:
    kept.append(item)
    return len(kept) - 1


def _public_name(error: BaseException) -> str:
    """Name of the built-in exception that `error` is, or is nearest to."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
