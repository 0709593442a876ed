"""dvc.yaml is written by hand; it must say exactly what the stages declare."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rollbook.core.ids import BASE_KEY
from rollbook.project.plan import load_stage, make_plan
from rollbook.project.plan_file import (
    ITERATION_STAGES,
    ONCE_STAGES,
    REPORT,
    RESCORE_STAGE,
    planned_digest,
)
from rollbook.settings.config import Params
from rollbook.settings.params import parse_params
from tests.unit.settings.test_params import shipped

ROOT = Path(__file__).parents[2]
STAGES: dict[str, Any] = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
RESCORES: dict[str, Any] = YAML(typ="safe").load((ROOT / "rescores" / "dvc.yaml").read_text())
PROGRAMS = sorted(path.stem for path in (ROOT / "stages").glob("*.py") if path.stem != "__init__")


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def params() -> Params:
    return parse_params(shipped())


def _resolved(text: str, key: str, params: Params) -> str:
    values = {"key": key}
    if key in params.iterations:
        item = params.iterations[key]
        values |= {"item.previous": item.previous, "item.reference": item.reference}
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    assert "${" not in text, text
    return text


def _steps(params: Params) -> list[tuple[str, str, str, dict[str, Any]]]:
    """(name in dvc.yaml, program, key, what dvc.yaml says) of every stage that has a declaration."""
    steps = [(name, name, "i0000", STAGES[name]) for name in ONCE_STAGES]
    steps.append(("evaluate_base", "evaluate_policy", "i0000", STAGES["evaluate_base"]))
    for key in ("i0001", "i0003"):
        steps += [(name, name, key, STAGES[name]["do"]) for name in ITERATION_STAGES]
    return steps


def test_inputs_outputs_parameters_and_command(params: Params) -> None:
    for name, program, key, said in _steps(params):
        stage = load_stage(program)
        assert stage.name == program

        def written(section: str, said: dict[str, Any] = said, key: str = key) -> list[str]:
            return sorted(_resolved(path, key, params) for path in said.get(section, []))

        inputs = sorted({str(path) for path in stage.input_paths(key, params)})
        assert sorted(set(written("deps"))) == inputs, f"{name}@{key}: deps"
        assert written("outs") == sorted(map(str, stage.output_paths(key))), f"{name}@{key}: outs"
        digest = program if program in ONCE_STAGES else f"{key}.{program}"
        [planned] = said["params"]
        assert [_resolved(place, key, params) for place in planned["artifacts/plan.json"]] == [
            digest
        ]
        command = f"exec python -P -m rollbook.stages.{program}" + (
            "" if program in ONCE_STAGES else f" --iteration {key}"
        )
        assert _resolved(said["cmd"], key, params) == command


def test_the_report_depends_on_its_code_through_the_plan(params: Params) -> None:
    said = STAGES["report"]
    assert said["cmd"] == f"exec python -P -m rollbook.stages.{REPORT}"
    assert said["params"] == ["iterations", {"artifacts/plan.json": [REPORT]}]
    assert planned_digest(make_plan(params), REPORT, BASE_KEY)


def test_no_step_depends_on_code_by_path() -> None:
    """A project elsewhere has these files, and none of the library's."""
    for name, said in {**STAGES, **RESCORES["stages"]}.items():
        inputs = said.get("do", said).get("deps", [])
        assert all(path.startswith("artifacts/") for path in inputs), name


def test_every_program_is_in_dvc_yaml_and_the_other_way_round() -> None:
    named = {name for name in STAGES if name != "evaluate_base"} | set(RESCORES["stages"])
    assert sorted(named) == PROGRAMS


def test_re_scoring_says_what_its_stage_declares(params: Params) -> None:
    said, key = RESCORES["stages"][RESCORE_STAGE], "i0003"
    stage = load_stage(RESCORE_STAGE).for_rescore("strict")

    def written(entries: list[str]) -> list[str]:
        items = {"${item.rescore}": "strict", "${item.iteration}": key}
        for mark, value in items.items():
            entries = [entry.replace(mark, value) for entry in entries]
        return sorted(entries)

    assert written(said["deps"]) == sorted(map(str, stage.input_paths(key, params)))
    assert written(said["outs"]) == sorted(map(str, stage.output_paths(key)))
    assert written(said["params"][0]["artifacts/plan.json"]) == [f"rescores.strict.{key}"]
    command = (
        f"exec python -P -m rollbook.stages.{RESCORE_STAGE} --rescore strict --iteration {key}"
    )
    assert written([said["cmd"]]) == [command]
    assert (said["wdir"], said["matrix"]["iteration"]) == ("..", "${iterations}")


def test_no_step_of_the_chain_depends_on_a_re_score() -> None:
    """Else `dvc repro` would re-score, and a re-score could make a step of the training run again."""
    chain = {path for said in STAGES.values() for path in said.get("do", said).get("deps", [])}
    for path in RESCORES["stages"][RESCORE_STAGE]["outs"]:
        assert not [folder for folder in chain if path.startswith(f"{folder}/")], path


def test_no_output_but_the_report_is_uncached() -> None:
    """dvc.lock can only be rebuilt from the run cache if every output is cached."""
    for name, said in STAGES.items():
        outputs = said.get("do", said).get("outs", [])
        assert name == "report" or all(isinstance(path, str) for path in outputs), name


def test_an_iteration_is_tracked_before_the_next_begins() -> None:
    """DVC walks depth-first in the order of declaration, so the last step of an iteration stands first."""
    order = [name for name in STAGES if name in ("track_iteration", *ITERATION_STAGES)]
    assert order[0] == "track_iteration"
    assert order[1:] == list(reversed(ITERATION_STAGES))
