"""The side of the tests; runs in a sandbox of its own, which a model's program cannot reach.

    tests CASES IN OUT SECONDS

Test code runs here as it is. Names that it neither makes nor imports are the program's, except those of Python and of
its modules. They are proxies: a call of one is sent to the program's sandbox, and plain data comes back. So expected
values never leave this side, comparing happens here, and the program can neither end, patch nor read the tests.
Arguments are copies: a program that changes them in place changes its own.

What happened is written as one line of JSON each: `loaded` once the test code is ready, or `fault` if the test code
itself is broken, `compiled`, `ran`, and one `passed` per test.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import json
import math
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

from rollbook.components.rewards.code_wire import Gone, decode, encode, receive, send


class Unsendable(BaseException):
    """A test gives the program something that is no plain data: a fault of the tests."""


class OutOfTime(Gone):
    """The program took too long."""


class NotStartedError(Exception):
    """The other side failed before it looked at the program."""


class OtherError(Exception):
    """What the program raised, where it is no exception that a test could expect."""


UNEXPECTED = (StopIteration, StopAsyncIteration)
"""Exceptions of a program that are no answer: they would end a loop of the test, such as `all(map(…))`."""


FOREIGN = frozenset({"np", "numpy", "pandas", "scipy", "torch", "pytest"})
"""Names that test code uses for libraries, also where it forgets to import them."""


class Remote:
    """Something of the program's side that is no plain data. It equals only itself, and is neither true nor false."""

    __slots__ = ("_number", "_program")

    def __init__(self, program: Program, number: int) -> None:
        self._program = program
        self._number = number

    def __call__(self, *positional: Any, **named: Any) -> Any:
        sent = self._program.sendable
        call = [[sent(value) for value in positional], [[k, sent(v)] for k, v in named.items()]]
        return self._program.ask(of=self._number, call=call)

    def __getattr__(self, name: str) -> Any:
        return self._program.ask(of=self._number, attribute=name)

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask(of=self._number, item=self._program.sendable(key))

    def __len__(self) -> int:
        length = self._program.ask(of=self._number, length=True)
        if type(length) is not int or length < 0:
            raise Gone("has no length")
        return length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._program.ask(of=self._number, items=True))

    def __bool__(self) -> bool:
        raise TypeError("this object of the program is neither true nor false")


class Program:
    """The other side, for one test after the other."""

    def __init__(self, replies: int, requests: int, seconds: float) -> None:
        self.replies = replies
        self.requests = requests
        self.seconds = seconds
        self.deadline = 0.0
        self.running = False
        self.broken: BaseException | None = None

    def compiled(self) -> bool:
        """Whether it is a program at all.

        Raises:
            NotStartedError: if that is not for the program to answer for.
        """
        self.deadline = math.inf  # its sandbox may be slow to start
        try:
            ready = self._reply().get("ready")
        except Gone:
            ready = None
        if ready is not True:
            raise NotStartedError("the side of the program ended before it looked at the program")
        return self._reply().get("compiled") is True

    def begin(self) -> bool:
        """Loads it afresh; whether that worked."""
        self.deadline = time.monotonic() + self.seconds
        self.broken = None
        send(self.requests, {"begin": True})
        self.running = True
        return self._reply().get("ran") is True

    def finish(self) -> None:
        """Ends the test on the other side."""
        if self.running:
            send(self.requests, {"end": True})
        while self.running:
            self._reply()

    def ask(self, **request: Any) -> Any:
        """What the program answers; raises what it raises."""
        try:
            send(self.requests, request)
            reply = self._reply()
            if "raised" not in reply:
                return decode(reply.get("value"), lambda number: Remote(self, int(number)))
        except Gone as error:
            self.broken = error  # a bare `except` in a test must not hide it
            raise
        raise _error(str(reply["raised"]), str(reply.get("why")))

    def sendable(self, value: Any) -> Any:
        """An argument as it is sent."""
        return encode(value, self._refer)

    def _refer(self, value: Any) -> int:
        if type(value) is Remote:
            return value._number
        self.broken = Unsendable(
            f"a test gives the program a {type(value).__name__}, which is no plain data"
        )
        raise self.broken

    def _reply(self) -> dict[str, Any]:
        reply = receive(self.replies, self._wait)
        if not isinstance(reply, dict):
            raise Gone("sent what is no message")
        if reply.get("end"):
            self.running = False
            raise (
                OutOfTime("took too long") if reply.get("out_of_time") else Gone("ended by itself")
            )
        return reply

    def _wait(self) -> None:
        left = self.deadline - time.monotonic()
        timeout = None if math.isinf(left) else left
        if left <= 0 or not select.select([self.replies], [], [], timeout)[0]:
            raise OutOfTime("took too long")


def _error(name: str, why: str) -> Exception:
    """What a program raised, as an exception of the tests' side."""
    kind: Any = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in UNEXPECTED:
        try:
            error: Exception = kind(why)
            return error
        except (
            TypeError
        ):  # some take more than a text; the TypeError must not look like the program's
            pass
    return OtherError(why)


def says_something(node: ast.Assert) -> bool:
    """Whether an assertion could fail: not `assert True`, nor `assert (x, "message")`."""
    if isinstance(node.test, ast.Constant):
        return not node.test.value
    return not (isinstance(node.test, ast.Tuple) and node.test.elts)


class Counted(ast.NodeTransformer):
    """Counts the assertions that are reached."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        counting = ast.parse("__reached__()").body
        return [ast.copy_location(statement, node) for statement in counting] + [node]


def main(arguments: list[str]) -> None:
    """What the sandbox starts."""
    path, replies, requests, seconds = arguments
    verdicts = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what test code prints is no verdict

    def say(**verdict: Any) -> None:
        os.write(verdicts, (json.dumps(verdict) + "\n").encode())

    with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib takes a third of the start-up time
        cases = json.load(stream)
    try:
        tests = [_prepared(test, cases) for test in cases["tests"]]
        _namespace(cases)
    except BaseException as error:
        say(fault=f"{type(error).__name__}: {error}")
        return
    say(loaded=True)
    program = Program(int(replies), int(requests), float(seconds))
    try:
        compiled = program.compiled()
    except Gone:
        compiled = False
    except NotStartedError as error:
        say(not_started=str(error))
        return
    say(compiled=compiled)
    if not compiled:
        return
    for test in tests:
        try:
            say(**_verdict(test, cases, program, say))
        except Unsendable as error:
            say(fault=str(error))
            return
        try:
            program.finish()
        except Gone:
            if (
                program.running
            ):  # it cannot be stopped from here, so there is no fresh one for the next test
                return


def _prepared(test: Any, cases: dict[str, Any]) -> Any:
    """A test with its code compiled.

    Raises:
        ValueError: if it asserts nothing; then every program would pass.
    """
    if isinstance(test, dict):
        return test
    tree = ast.parse(test)
    if not any(isinstance(node, ast.Assert) and says_something(node) for node in ast.walk(tree)):
        raise ValueError(f"asserts nothing: {test.strip()[:80]!r}")
    for node in ast.walk(tree):
        for name in _imported(node):
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(
                    f"no module {name!r}; tests have Python's standard library only"
                )
    names = _free_names(ast.parse(cases["setup"]), tree)
    if foreign := sorted(FOREIGN.intersection(names)):
        # Taken from the program, it would be the program that compares.
        raise ModuleNotFoundError(
            f"no module {foreign[0]!r}; tests have Python's standard library only"
        )
    if all(names.values()) and not cases["entry_point"]:
        raise ValueError(f"uses nothing of the program: {test.strip()[:80]!r}")
    tree = ast.fix_missing_locations(Counted().visit(tree))
    return {"code": compile(tree, "<tests>", "exec"), "names": names}


def _imported(node: ast.AST) -> list[str]:
    """Names of the packages that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [str(node.module).partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def _free_names(*trees: ast.Module) -> dict[str, bool]:
    """Names that code uses and does not make, in order, and whether each is used like a module of Python."""
    made: set[str] = set(dir(builtins))
    used: dict[str, bool] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used.setdefault(node.id, False)
            else:
                made.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            used[name] = used.get(name, False) or name in sys.stdlib_module_names
    return {name: module for name, module in used.items() if name not in made}


def _namespace(cases: dict[str, Any]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(compile(cases["setup"], "<setup>", "exec"), namespace)
    return namespace


def _verdict(test: Any, cases: dict[str, Any], program: Program, say: Any) -> dict[str, Any]:
    try:
        if not program.begin():
            say(ran=False)
            return {"passed": False, "why": "does not run"}
        say(ran=True)
        passed = _called(test, cases, program) if "code" not in test else _ran(test, cases, program)
        if program.broken is not None:
            raise program.broken
        return {"passed": passed, "why": "" if passed else "another value"}
    except Unsendable:
        raise
    except BaseException as error:
        if isinstance(program.broken, Unsendable):
            raise program.broken from None
        return {"passed": False, "why": f"{type(error).__name__}: {error}"[:200]}


def _called(test: Any, cases: dict[str, Any], program: Program) -> bool:
    """Whether the function returns the expected value."""
    entry = cases["entry_point"]
    try:
        function = program.ask(name=entry)
    except NameError:
        function = getattr(program.ask(name="Solution")(), entry)
    return same(function(*test["arguments"]), test["expected"])


def _ran(test: Any, cases: dict[str, Any], program: Program) -> bool:
    """Whether test code runs through, and asserts something."""
    reached: list[None] = []
    namespace = _namespace(cases)
    namespace["__reached__"] = lambda: reached.append(None)
    entry = cases["entry_point"]
    for name, module in test["names"].items():
        if module:
            namespace[name] = importlib.import_module(name)
        else:
            try:
                namespace[name] = program.ask(name=name)
            except NameError:
                continue  # using it is an error of the test, as it would be anywhere
    exec(test["code"], namespace)
    check = namespace.get("check")
    if entry and callable(check) and type(check) is not Remote:
        check(program.ask(name=entry))
    return bool(reached)


def same(value: Any, expected: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 but not true, and a tuple is a list."""
    if isinstance(value, (list, tuple)) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        # JSON knows only texts as keys.
        plain = {
            key if isinstance(key, str) else json.dumps(key): item for key, item in value.items()
        }
        return plain.keys() == expected.keys() and all(
            same(plain[key], expected[key]) for key in expected
        )
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return bool(value == expected)


if __name__ == "__main__":
    main(sys.argv[1:])
