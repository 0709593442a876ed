"""What comes out bit by bit where: steps run again under other conditions; writes reports/determinism.md.

`python -m benchmarks determinism` trains a small project and runs its steps again under every condition, half an
hour in all. `--packages` downloads other versions of packages with pip and replays with them too. What was measured is
kept below SCRATCH and not measured again; delete it to start anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.determinism_report import Finding, WholeRun, finding, report
from benchmarks.report import now_and_here
from rollbook.core.ids import BASE_KEY
from rollbook.core.scratch import SCRATCH as PROJECT_SCRATCH
from rollbook.core.yaml import read_yaml
from rollbook.project.plan import load_stage
from rollbook.project.replay.differing import difference
from rollbook.project.replay.environment import environment_changes
from rollbook.project.replay.judging import kind_of
from rollbook.project.replay.stored import dvc_md5
from rollbook.project.replay.verdict import Difference, Outcome
from rollbook.tables.artifacts import read_json, write_json
from rollbook.tables.run_info import read_run_info
from tests.e2e.projects import ROOT, chain, commit, edit_params, git, make_project, repro, run

REPORT = ROOT / "reports" / "determinism.md"
SCRATCH = ROOT / PROJECT_SCRATCH / "determinism"
MEASURED = SCRATCH / "measured"
ITERATIONS = 3
STEPS = (
    "prepare_prompts@i0002",
    "generate_rollouts@i0002",
    "score_rollouts@i0002",
    "measure_logprobs@i0002",
    "compute_advantages@i0002",
    "update_policy@i0001",
    "update_policy@i0002",
    "evaluate_policy@i0002",
)
"""One of every program; two updates: on-policy in 16 steps, and 4 steps twice with a KL term."""
GENERATE, SCORE, MEASURE, EVALUATE = STEPS[1], STEPS[2], STEPS[3], STEPS[7]
UPDATES = STEPS[5:7]
WITH_BASE = ("init_policy@i0000", *STEPS)
SIZES: dict[str, Any] = {
    "data__evaluation": {"heldout": {"name": "arithmetic", "below": 50, "prompts": 64}},
    "policy__base": {"name": "tiny", "warm_start_steps": 40},
    "recipes__grpo__prepare_prompts__prompts_per_iteration": 64,
    "evaluate_policy__samples": 2,
}
WITH_KL = {
    "loss": {"name": "grpo", "kl_coef": 0.04},
    "old_logprobs": "measured",
    "optimizer_steps": 4,
    "epochs": 2,
    "learning_rate": 3.0e-4,
}
"""`update_policy` of the second recipe: off-policy from its second step on, so that log-probs are measured."""
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
NO_AVX = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
ELSEWHERE = {"LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "4242"}
PACKAGES = ("pyarrow==24.0.0", "numpy==2.3.4", "transformers==5.18.0", "pandera==0.34.1")
RUNS: dict[str, Mapping[str, str]] = {
    "another folder, locale, timezone and hash seed": ELSEWHERE,
    "as on a processor with AVX2 only": AVX2,
}
"""Whole runs, with variables of the environment."""
PROBE = """\
import hashlib, torch
torch.manual_seed(0); torch.set_num_threads(1)
a, b = torch.randn(192, 192), torch.randn(192, 192)
for name, result in {
    "product": a @ b,
    "sum": a.sum(0) + a.sum(1),
    "exp and softmax": torch.softmax(a * 3, -1) + torch.exp(a),
    "bfloat16 product": (a.bfloat16() @ b.bfloat16()).float(),
}.items():
    print(name, hashlib.sha256(result.numpy().tobytes()).hexdigest(), sep="\\t")
"""
"""Hashes of a few results of torch."""


@dataclass(frozen=True)
class Condition:
    """Something that is otherwise than when the steps ran first.

    Attributes:
        name: in words.
        steps: that are run again.
        variables: of the environment of `rollbook replay`.
        settings: values of params.yaml, at places such as `runtime__threads`; the stage's program runs with them.
        prepare: makes another copy of the project than a plain one; gets the project and where to put it.
    """

    name: str
    steps: Sequence[str] = STEPS
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Path, Path], None] | None = None


# --- the projects -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing, then writes the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks determinism")
    parser.add_argument("--packages", action="store_true", help="download others with pip")
    options = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    small = _small(SCRATCH / "small")
    found = _measured(small, _conditions())
    runs = [_whole_run(small, name, how) for name, how in RUNS.items()]
    upgraded = [_upgraded(package, options.packages) for package in PACKAGES]
    found += _measured(small, [each for each in upgraded if each])
    text = report(found, runs, _effects(), now_and_here())
    REPORT.write_text(text, encoding="utf-8")
    print(text)


def _conditions() -> list[Condition]:
    """All but other packages."""
    recipes = ("grpo", "with_kl")

    def everywhere(place: str, value: Any) -> dict[str, Any]:
        return {f"recipes__{name}__{place}": value for name in recipes}

    after, rebuilt = (
        (
            "update_policy@i0001",
            "update_policy@i0002",
            "generate_rollouts@i0003",
            "update_policy@i0003",
        ),
        (GENERATE, MEASURE, UPDATES[1]),
    )
    return [
        Condition("again, the same machine", WITH_BASE),
        Condition(
            "another clone, folder, HOME, locale, timezone, hash seed",
            WITH_BASE,
            variables=ELSEWHERE,
            prepare=_cloned,
        ),
        Condition("after `rollbook seal`", after, prepare=_sealed),
        Condition("from a policy made by `seal --rebuild`", rebuilt, prepare=_rebuilt),
        Condition("two threads instead of one", settings={"runtime__threads": 2}),
        Condition(
            "`batch_size` of the engine 512 → 48",
            (GENERATE, EVALUATE),
            settings={
                **everywhere(
                    "generate_rollouts__engine", {"name": "transformers", "batch_size": 48}
                ),
                "evaluate_policy__engine": {"name": "transformers", "batch_size": 48},
            },
        ),
        Condition(
            "`micro_batch_tokens` 16384 → 128",
            (MEASURE, *UPDATES),
            settings=everywhere("update_policy__micro_batch_tokens", 128),
        ),
        Condition(
            "`share_prompts: false`",
            (MEASURE, *UPDATES),
            settings=everywhere("update_policy__share_prompts", False),
        ),
        *(
            Condition(
                f"`scoring_processes` {count}",
                (SCORE,),
                settings={"runtime__scoring_processes": count},
            )
            for count in (0, 2)
        ),
        Condition("as on a processor with AVX2 only", variables=AVX2),
        Condition("as on a processor without AVX", variables=NO_AVX),
    ]


def _small(folder: Path) -> Path:
    """The embedded policy, trained for three iterations, the second with the second recipe; its remote beside it."""
    if not folder.with_suffix(".done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        iterations = chain(ITERATIONS)
        iterations["i0002"]["recipe"] = "with_kl"
        make_project(folder, shrink=False, **SIZES)
        recipe = read_yaml(folder / "params.yaml")["recipes"]["grpo"]
        edit_params(
            folder,
            iterations=iterations,
            recipes__with_kl={**recipe, "update_policy": WITH_KL},
        )
        run(folder, "dvc", "remote", "add", "--default", "store", str(folder.with_name("store")))
        commit(folder, "Two recipes")
        repro(folder)
        run(folder, "dvc", "push")
        commit(folder, "Trained")
        folder.with_suffix(".done").touch()
    return folder


def _copied(project: Path, at: Path) -> None:
    """All of it but its scratch folder; the cache stays one with the project's."""
    left_out = shutil.ignore_patterns("cache", PROJECT_SCRATCH.name)
    shutil.copytree(project, at, symlinks=True, ignore=left_out)
    shutil.copytree(project / ".dvc" / "cache", at / ".dvc" / "cache", copy_function=os.link)


def _cloned(project: Path, at: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(project), str(at)], check=True)
    run(at, "dvc", "pull")


def _sealed(project: Path, at: Path) -> None:
    _copied(project, at)
    run(at, "rollbook", "seal", "i0001-i0002", "--keep", "last")


def _rebuilt(project: Path, at: Path) -> None:
    """Without a remote, so that the rebuilt policy is the only one there is."""
    _copied(project, at)
    run(at, "dvc", "remote", "remove", "store")
    git(at, "add", "--all")
    run(at, "rollbook", "seal", "i0001-i0002", "--keep", "last")
    assert not (at / "artifacts/policies/i0001").exists()
    run(at, "rollbook", "seal", "--rebuild", "i0001")


def _upgraded(package: str, downloaded: bool) -> Condition | None:
    """The project with another version of a package; None if that is not there and may not be downloaded."""
    folder = SCRATCH / "packages" / package
    if not folder.exists():
        if not downloaded:
            print(f"{package}: not measured; --packages downloads it")
            return None
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            package,
        ]
        subprocess.run(command, check=True)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    return Condition(f"package {package}", [*STEPS[:2], UPDATES[1]], variables)


# --- steps --------------------------------------------------------------------------------------------


def _measured(project: Path, conditions: Sequence[Condition]) -> list[Finding]:
    """All steps under all conditions; each condition is written down when it is done."""
    found = []
    for place, condition in enumerate(conditions, 1):
        file = MEASURED / project.name / f"{condition.name.replace('/', '-')}.json"
        if not file.exists():
            print(f"{project.name}: {condition.name} ({place} of {len(conditions)})", flush=True)
            copy = _fresh(project.name)
            (condition.prepare or _copied)(project, copy)
            alone = bool(condition.settings)
            steps = _run_alone(project, copy, condition) if alone else _replayed(copy, condition)
            write_json({"steps": steps}, file)
            shutil.rmtree(copy)
        said = read_json(file)["steps"]
        found += [finding(condition.name, each) for each in said]
    return found


def _fresh(name: str) -> Path:
    """Where a copy of a project may be made."""
    copy = SCRATCH / "copy" / name
    shutil.rmtree(copy, ignore_errors=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    return copy


def _replayed(copy: Path, condition: Condition) -> list[dict[str, Any]]:
    """By `rollbook replay`, in the condition's environment; what it says of every step."""
    variables = dict(condition.variables)
    if condition.prepare is _cloned:
        variables["HOME"] = str(copy.with_name("home"))
        copy.with_name("home").mkdir(exist_ok=True)
    command = ["rollbook", "replay", *condition.steps, "--json", "verdict.json"]
    result = run(copy, *command, check=False, variables=variables)
    if not (copy / "verdict.json").exists():
        raise RuntimeError(f"{condition.name}: {result.stdout}\n{result.stderr}")
    said: list[dict[str, Any]] = read_json(copy / "verdict.json")["steps"]
    return said


def _run_alone(project: Path, copy: Path, condition: Condition) -> list[dict[str, Any]]:
    """By the stages' programs, with settings that a replay would not take; inputs are the project's own."""
    edit_params(copy, **condition.settings, runtime__fork_server=False)
    run(copy, "python", "-P", "-m", "rollbook.stages.check")
    said = []
    for step in condition.steps:
        stage, _, key = step.partition("@")
        iteration = ["--iteration", key] if key != BASE_KEY else []
        run(copy, "python", "-P", "-m", f"rollbook.stages.{stage}", *iteration)
        declared = load_stage(stage)
        paths = [path for path in declared.output_paths(key) if path != declared.run_info_path(key)]
        outputs = [
            {"path": str(path), "comparison": asdict(_compared(project, copy, path))}
            for path in paths
        ]
        then, now = (read_run_info(at / declared.run_info_path(key)) for at in (project, copy))
        around = [asdict(each) for each in environment_changes(then, now)]
        said.append({"step": step, "problem": "", "outputs": outputs, "environment": around})
        for path in declared.output_paths(key):
            _put_back(project / path, copy / path)
    return said


def _compared(then: Path, now: Path, path: Path) -> Difference:
    """An artifact of two projects."""
    if dvc_md5(then / path) == dvc_md5(now / path):
        return Difference(Outcome.IDENTICAL)
    return difference(then / path, now / path, kind_of(path.as_posix()), 0.0)


def _put_back(original: Path, at: Path) -> None:
    if at.is_dir():
        shutil.rmtree(at)
        shutil.copytree(original, at)
    else:
        at.unlink()
        shutil.copy(original, at)


# --- whole runs ---------------------------------------------------------------------------------------


def _whole_run(project: Path, name: str, variables: Mapping[str, str]) -> WholeRun:
    """The whole run once more, from data and base policy on, under a condition."""
    file = MEASURED / "runs" / f"{name}.json"
    if not file.exists():
        print(f"whole run: {name}", flush=True)
        copy = _fresh("run")
        subprocess.run(["git", "clone", "--quiet", str(project), str(copy)], check=True)
        (copy / "dvc.lock").unlink()
        run(copy, "dvc", "repro", variables=variables)
        write_json(asdict(_run_beside(name, project, copy)), file)
        shutil.rmtree(copy)
    return WholeRun(**read_json(file))


def _run_beside(name: str, then: Path, now: Path) -> WholeRun:
    """Two whole runs beside each other."""
    keys = list(chain(ITERATIONS))
    policies = [f"artifacts/policies/{key}" for key in (BASE_KEY, *keys)]
    kinds = ("prompts", "rollouts", "scores", "logprobs", "advantages", "updates", "evaluations")
    tables = [f"artifacts/{kind}/{key}.parquet" for kind in kinds for key in keys]
    same = sum(dvc_md5(then / path) == dvc_md5(now / path) for path in (*policies, *tables))
    others, rows = [], 0
    for key in keys:
        old, new = (
            pl.read_parquet(
                folder / f"artifacts/rollouts/{key}.parquet",
                columns=["rollout_id", "completion_token_ids"],
            )
            for folder in (then, now)
        )
        beside = old.join(new, on="rollout_id", how="left", suffix="_now")
        unlike = beside["completion_token_ids"].ne_missing(beside["completion_token_ids_now"])
        others.append(int(unlike.sum()))
        rows = beside.height
    apart = _compared(then, now, Path(policies[-1])).apart
    evaluated = Path(f"artifacts/metrics/evaluate_policy/{keys[-1]}.json")
    metrics = [read_json(folder / evaluated) for folder in (then, now)]
    greedy = [float(each["eval/heldout/greedy"]) for each in metrics]
    return WholeRun(name, same, len(policies) + len(tables), others, rows, apart, greedy)


# --- the machine --------------------------------------------------------------------------------------


def _effects() -> dict[str, list[str]]:
    """Which of a few results of torch get other bits by each variable alone."""

    def probed(variables: Mapping[str, str]) -> dict[str, str]:
        lines = run(ROOT, sys.executable, "-c", PROBE, variables=variables).stdout.splitlines()
        return dict(line.split("\t") for line in lines)

    plain = probed({})
    found = {}
    for name, value in [*AVX2.items(), *NO_AVX.items()]:
        now = probed({name: value})
        found[f"{name}={value}"] = [what for what in plain if plain[what] != now[what]]
    return found
