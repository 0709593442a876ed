"""`make gpu-check` on processors: the same script and stages as on a GPU, with a smaller policy.

vLLM is left out: it takes half a minute to start, and its real engine is tested in test_engines.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gpu import checks
from tests.gpu.__main__ import main
from tests.gpu.checks import CHECKS, found
from tests.gpu.findings import Finding, at_least, at_most, same

WHOLE = {"float_iterations", "gradients", "generation", "bfloat_iterations", "lora_iterations"}
NOT_A_NUMBER = float("nan")


def test_everything_agrees_on_processors(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--device", "cpu", "--without", "vllm"])
    printed = capsys.readouterr().out
    lines = printed.partition("\n\n")[0].splitlines()
    verdicts = [line.split()[0] for line in lines]
    assert code == 0, printed
    assert {check.__name__ for check in CHECKS} == WHOLE | {"vllm", "memory"}
    assert verdicts.count("skipped") == 1 and set(verdicts) == {"ok", "skipped"}
    assert len(verdicts) >= 18
    assert "skipped GPU memory: there is none on cpu" in lines
    for recipe in ("float", "bfloat", "lora"):
        for phase in ("generation", "measuring", "update"):
            assert f"| {recipe} | {phase} |" in printed


def test_one_failure_is_the_exit_code_and_the_other_checks_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(project: Any) -> Iterator[Finding]:
        yield at_most("first", 0.5, 1.0)
        raise RuntimeError("no kernel\nfor this")

    def fine(project: Any) -> Iterator[Finding]:
        yield same("last", True)

    findings = list(found(None, (broken, fine)))  # type: ignore[arg-type]
    assert [str(each) for each in findings] == [
        "ok      first: 0.5 (allowed: at most 1)",
        "FAILED  broken: RuntimeError: no kernel for this",
        "ok      last: equal (allowed: equal)",
    ]
    assert "no kernel" in capsys.readouterr().err
    monkeypatch.setattr("tests.gpu.__main__.CHECKS", (broken,))
    assert main(["--device", "cpu"]) == 1


@pytest.mark.parametrize(
    "finding",
    [
        at_most("", 2.0, 1.0),
        at_most("", NOT_A_NUMBER, 1.0),
        at_least("", 0.5, 0.9),
        at_least("", NOT_A_NUMBER, 0.9),
        same("", False),
    ],
)
def test_what_is_not_allowed_fails(finding: Finding) -> None:
    assert finding.verdict == "FAILED"


def test_a_difference_is_relative_to_what_it_is_compared_with() -> None:
    import torch

    whole = {"a": torch.tensor([3.0]), "b": torch.tensor([0.0, 4.0])}
    other = {"a": torch.tensor([3.0]), "b": torch.tensor([0.5, 4.0])}
    assert checks._apart(other, whole) == pytest.approx(0.1)
    assert checks._apart(whole, whole) == 0


@pytest.mark.parametrize("device", ["tpu", "cuda:9"])
def test_a_device_that_is_not_here_is_said(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is one")
    try:
        code = main(["--device", device])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    assert code
    assert "cpu" in capsys.readouterr().err
