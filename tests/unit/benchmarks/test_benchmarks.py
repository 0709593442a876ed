"""reports/benchmarks.md: sections are measured, and replaced, one by one."""

from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.kills import Run
from benchmarks.kills import section as kills_section
from benchmarks.report import HEAD, merged, stamped
from tests.e2e.kills import NOT_IN_A_STAGE, Kill

SEAMS = stamped("## Seams\n\nslow\n\n| a |\n| --- |\n", "2026-01-01 here")
SCORING = stamped("## Scoring\n\nfast", "2026-01-02 there")


def test_only_the_sections_that_were_measured_are_replaced() -> None:
    report = merged("", [SEAMS, SCORING])
    newer = stamped("## Seams\n\nquicker", "2026-02-01 here")
    assert merged(report, [newer]) == f"{HEAD}\n{newer}\n{SCORING}"
    assert merged(merged(report, [newer]), [SEAMS]) == report
    assert "## Seams\n\nMeasured 2026-01-01 here.\n\nslow\n" in report


def test_new_sections_come_last_and_an_old_head_is_replaced() -> None:
    old = f"# Old head\n\n2025\n\n{SEAMS}"
    assert merged(old, [SCORING]) == f"{HEAD}\n{SEAMS}\n{SCORING}"
    with pytest.raises(ValueError, match="begins with its heading"):
        merged(old, ["no heading"])


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where benchmarks write that need no time."""
    path = tmp_path / "benchmarks.md"
    monkeypatch.setattr(benchmarks, "REPORT", path)
    sections = {"seams": lambda: "## Seams\n\nnew", "scoring": lambda: "## Scoring\n\nnew"}
    monkeypatch.setattr(benchmarks, "SECTIONS", sections)
    return path


def test_sections_are_run_by_name(report: Path) -> None:
    gone = "## Gone\n\nold\n"
    report.write_text(merged("", [gone, SCORING, SEAMS]))
    benchmarks.main(["scoring"])
    text = report.read_text()
    assert gone in text and SEAMS in text and SCORING not in text and "\n\nnew\n" in text
    benchmarks.main([])
    text = report.read_text()
    assert text.count("\n## ") == text.count("\n\nnew\n") == 2
    assert text.index("## Seams") < text.index("## Scoring")


def test_a_name_that_is_none_runs_nothing(report: Path) -> None:
    with pytest.raises(SystemExit, match="did you mean 'scoring'"):
        benchmarks.main(["seams", "scorin"])
    assert not report.exists()


def test_faults_after_kills_are_named() -> None:
    kills = [Kill("stage", "check"), Kill("DVC", "check"), Kill("DVC", NOT_IN_A_STAGE)]
    runs = [
        Run(kills, 9.0, [], "c0ffee", 1),
        Run(kills[:1], 5.0, [], "c0ffee"),
        Run(kills[2:], 5.0, ["run 1: artifacts/x:\n md5 1, undisturbed 2"], "0ddba1"),
    ]
    section = kills_section(runs, undisturbed_seconds=4.0)
    assert (
        "4 kills in 2 runs of c0ffee, 0 faults, 1 mended; 1 kills in 1 runs of 0ddba1, 1 faults"
        in section
    )
    assert "| check | 2 | 1 |" in section and f"| {NOT_IN_A_STAGE} | 0 | 2 |" in section
    assert section.endswith("- 0ddba1, run 1: artifacts/x: md5 1, undisturbed 2")
