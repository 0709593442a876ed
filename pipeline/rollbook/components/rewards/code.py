"""code: does the code in a completion compile, run, pass its tests, and please a linter?

The code is the last closed fenced block (untagged or tagged as Python) behind the last `</think>`; a thought that was
opened and not closed has none. It runs under bubblewrap, see `rollbook.components.sandbox`, with Python's standard
library and nothing else. Where bubblewrap is missing the row is an error; it is never run without.

Tests come with the data, in the shapes of `rollbook.components.rewards.code_cases`. A program never meets them: what a
test expects stays in another sandbox, or in this process where only output is compared. Programs answer calls with
plain data, see `rollbook.components.rewards.code_tests`. So ending early, patching `==` or `assert`, printing verdicts
and looking for expected values gain nothing. Each test gets a fresh process. Tests that assert nothing (`assert True`
is nothing), or nothing about the program, are an error of the row.

The reward is the mean of the parts below, weighted; with the default weights it is the tests alone:

    compile_weight  it is Python
    run_weight      it runs to its end without an error, in each test that was reached
    tests_weight    all tests pass, or the share that does (`credit: share`)
    lint_weight     ruff has nothing to say about `lint_rules`, `# noqa` not heard; needs `pip install ruff`

Code that does nothing compiles, runs and is clean: keep those weights small. No code block is 0. Prompts without tests
get no reward as long as `tests_weight` is not 0. Logged: `<label>_tests_passed`, `<label>_tests_total` and
`<label>_outcome`, which is one of

    passed, failed, timeout, too much output, does not run, does not compile, no code, ran (without tests)
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollbook.components.rewards import code_program, code_tests, code_wire
from rollbook.components.rewards.answers import behind_thought
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.code_blocks import last_block
from rollbook.components.rewards.code_cases import Cases, cases_of, same_output
from rollbook.components.sandbox import LIBRARY, Job, Limits, Outcome, run
from rollbook.core.errors import RewardError

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]

SIDES = {
    f"{LIBRARY}/{module.__name__.replace('.', '/')}.py": Path(str(module.__file__))
    for module in (code_program, code_tests, code_wire)
}
PROGRAM_SIDE, TESTS_SIDE, _ = SIDES
PROGRAM = "/program.py"
CASES = "/cases.json"
RUFF = "/ruff"
SIGNALS_OF_CPU_LIMIT = (128 + 9, 128 + 24)
LINT_SECONDS = 10.0
WALL_PER_CPU = 4.0
"""A program that loops is stopped by its processor time, and the next test still runs. Only one that sleeps gets here:
it cannot be stopped alone, so the tests behind it do not pass."""


@dataclass(frozen=True)
class _Verdict:
    """What is known of a program; `passed` and `total` count tests."""

    compiled: bool
    ran: bool
    outcome: str
    passed: int = 0
    total: int = 0


class Code(Reward):
    """Runs code and its tests.

    Attributes:
        tests_column: the data's column with the tests.
        entry_point_column: the column with the name of the function that is asked for, if there is one.
        setup_column: the column with code that runs before each test, if there is one.
        credit: what `tests_weight` is multiplied by: 1 if all tests pass, or the share that does.
        compile_weight: share of the reward for being Python; the sum of the four weights counts as 1.
        run_weight: share for running without an error.
        tests_weight: share for the tests.
        lint_weight: share for being clean under ruff.
        lint_rules: rules and groups of ruff.
        fenced: the code is the last fenced block; else it is all clean text behind the thought.
        seconds: of processor time for each test; a program that sleeps is stopped after four times as long.
        row_seconds: for all tests of a completion; those that are not reached do not pass.
        memory_mb: of address space for each of at most 8 processes.
    """

    tests_column: str = "tests"
    entry_point_column: str = "entry_point"
    setup_column: str = "setup"
    credit: Literal["all", "share"] = "all"
    compile_weight: Share = 0.0
    run_weight: Share = 0.0
    tests_weight: Share = 1.0
    lint_weight: Share = 0.0
    lint_rules: tuple[str, ...] = ("E9", "F")
    fenced: bool = True
    seconds: PositiveInt = 5
    row_seconds: PositiveFloat = 60.0
    memory_mb: Annotated[int, Field(ge=64)] = 512

    @model_validator(mode="after")
    def _some_weight(self) -> Code:
        if not self._weights():
            raise ValueError("all weights are 0, so there is nothing to reward; set tests_weight")
        return self

    def __call__(self, row: RewardInput) -> RewardResult:
        tests = row.columns.get(self.tests_column)
        cases = Cases()
        if tests is not None:
            columns = (row.columns.get(n) for n in (self.entry_point_column, self.setup_column))
            cases = cases_of(tests, *columns)
        elif self.tests_weight:
            return RewardResult(None)
        text = behind_thought(row.text, row.prompt)
        code = last_block(text) if self.fenced else text
        if code is None or not code.strip():
            return self._result(_Verdict(False, False, "no code", 0, cases.total), 0.0)
        program = code.encode(errors="replace")
        verdict = self._judged(program, cases)
        clean = bool(self.lint_weight) and verdict.compiled and self._is_clean(program)
        return self._result(verdict, float(clean))

    def _weights(self) -> float:
        return self.compile_weight + self.run_weight + self.tests_weight + self.lint_weight

    def _result(self, verdict: _Verdict, clean: float) -> RewardResult:
        share = verdict.passed / verdict.total if verdict.total else 0.0
        parts = (
            self.compile_weight * verdict.compiled
            + self.run_weight * verdict.ran
            + self.tests_weight * (share if self.credit == "share" else float(share == 1.0))
            + self.lint_weight * clean
        )
        label = self.title
        return RewardResult(
            parts / self._weights(),
            log={
                f"{label}_tests_passed": verdict.passed,
                f"{label}_tests_total": verdict.total,
                f"{label}_outcome": verdict.outcome,
            },
        )

    def _limits(self, seconds: float) -> Limits:
        return Limits(seconds=seconds, cpu_seconds=max(1, round(seconds)), memory_mb=self.memory_mb)

    def _judged(self, program: bytes, cases: Cases) -> _Verdict:
        if cases.tests:
            return self._tested(program, cases)
        return self._compared(program, cases.pairs)

    def _compared(self, program: bytes, pairs: Sequence[tuple[str, str]]) -> _Verdict:
        """Runs a script once for each input, or once without any if there are no tests."""
        job = Job([PROGRAM_SIDE, "run", PROGRAM], files={PROGRAM: program}, host_files=SIDES)
        end = time.monotonic() + self.row_seconds
        passed, outcome, ran = 0, "passed" if pairs else "ran", True
        for given, expected in pairs or [("", "")]:
            left = end - time.monotonic()
            if left <= 0:
                outcome = "timeout"
                break
            limits = Limits(
                seconds=min(left, WALL_PER_CPU * self.seconds),
                cpu_seconds=self.seconds,
                memory_mb=self.memory_mb,
            )
            ended = run(Job(job.argv, given.encode(), job.files, job.host_files), limits)
            if ended.exit_code == code_program.NOT_COMPILED:
                return _Verdict(False, False, "does not compile", 0, len(pairs))
            ran = ran and ended.exit_code == 0
            right = ended.exit_code == 0 and same_output(ended.stdout, expected)
            passed += bool(pairs) and right
            if ended.exit_code != 0:
                outcome = _how(ended)
            elif pairs and not right and outcome == "passed":
                outcome = "failed"
        return _Verdict(True, ran, outcome, passed, len(pairs))

    def _tested(self, program: bytes, cases: Cases) -> _Verdict:
        """Runs a program in one sandbox and its tests in another."""
        told = json.dumps(
            {"tests": cases.tests, "entry_point": cases.entry_point, "setup": cases.setup}
        )
        replies, to_replies = os.pipe()
        requests, to_requests = os.pipe()
        answers = [*map(str, (requests, to_replies, self.seconds))]
        asks = [*map(str, (replies, to_requests, WALL_PER_CPU * self.seconds))]
        ended = run(
            Job(
                [TESTS_SIDE, CASES, *asks],
                files={CASES: told.encode()},
                host_files=SIDES,
                pipes=(replies, to_requests),
            ),
            self._limits(self.row_seconds),
            beside=[
                Job(
                    [PROGRAM_SIDE, "serve", PROGRAM, *answers],
                    files={PROGRAM: program},
                    host_files=SIDES,
                    pipes=(requests, to_replies),
                )
            ],
        )
        said = [json.loads(line) for line in ended.stdout.split(b"\n")[:-1]]  # the last may be cut
        if fault := next((line["fault"] for line in said if "fault" in line), None):
            raise RewardError(f"the tests are broken: {fault}")
        if failed := next((line["not_started"] for line in said if "not_started" in line), None):
            raise RewardError(f"{failed}", "give it more `memory_mb`")
        if not any("loaded" in line for line in said):
            reason = "took too long" if ended.timed_out else ended.stderr.decode(errors="replace")
            reason = reason.strip() or "the code itself ended them"
            raise RewardError(f"the tests could not be loaded: {reason.strip()[-200:]}")
        if not any(line.get("compiled") for line in said):
            return _Verdict(False, False, "does not compile", 0, cases.total)
        ran = [line["ran"] for line in said if "ran" in line]
        verdicts = [line for line in said if "passed" in line]
        passed = sum(line["passed"] for line in verdicts)
        outcome = "passed" if passed == cases.total else "failed"
        if ended.timed_out or any("OutOfTime" in line["why"] for line in verdicts):
            outcome = "timeout"
        elif not any(ran):
            outcome = "does not run"
        return _Verdict(True, bool(ran) and all(ran), outcome, passed, cases.total)

    def _is_clean(self, program: bytes) -> bool:
        arguments = (
            *("check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet"),
            *("--select", ",".join(self.lint_rules), "--output-format", "concise", "-"),
        )
        ended = run(
            Job([RUFF, *arguments], program, host_files={RUFF: linter()}),
            Limits(seconds=LINT_SECONDS, memory_mb=max(2048, self.memory_mb)),
        )
        if ended.exit_code not in (0, 1) and not (ended.timed_out or ended.too_much_output):
            raise RewardError(
                f"ruff failed: {ended.stderr.decode(errors='replace').strip()[-200:]}"
            )
        return ended.exit_code == 0


@cache
def linter() -> Path:
    """The program `ruff`, of this environment first.

    Raises:
        RewardError: if it is not installed.
    """
    places = os.pathsep.join((sysconfig.get_path("scripts"), str(Path(sys.executable).parent)))
    found = shutil.which("ruff", path=places) or shutil.which("ruff")
    if found is None:
        raise RewardError(
            "lint_weight needs ruff, which is missing", "`pip install ruff`, or set lint_weight: 0"
        )
    return Path(found).resolve()


def _how(ended: Outcome) -> str:
    if ended.too_much_output:
        return "too much output"
    if ended.timed_out or ended.exit_code in SIGNALS_OF_CPU_LIMIT:
        return "timeout"
    return "does not run"
