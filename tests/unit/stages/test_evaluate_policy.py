import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollbook.core.errors import PolicyError, RewardError
from rollbook.core.ids import prompt_id_of, seed_of
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.config import EvaluatePolicy
from rollbook.settings.params import parse_params
from rollbook.stages.evaluate_policy import STAGE, Settings, evaluate_policy
from rollbook.tables.artifacts import path_of, write_folder, write_table
from tests.builders import table
from tests.unit.components.engines.models import RUNTIME, save_llama

SAMPLES = 3
SETS = {"heldout": ["1+2=", "3+4="], "other": ["1+2=", "7+8="]}


def _data(**columns: Any) -> list[dict[str, Any]]:
    rows = []
    for name, questions in SETS.items():
        for question in questions:
            messages = [{"role": "user", "content": question}]
            answer = str(sum(map(int, question[:-1].split("+"))))
            rows.append(
                {
                    "prompt_id": prompt_id_of(messages, answer),
                    "messages": messages,
                    "reference_answer": answer,
                    "source": "test",
                    "set": name,
                    **columns,
                }
            )
    return rows


@pytest.fixture
def inputs(project: Path) -> Inputs:
    facts = write_folder(lambda folder: save_llama(folder) and None, "policies", "i0002")
    return Inputs(
        {"data": table("data", _data())},
        {"policies": path_of("policies", "i0002")},
        {"policies": facts},
    )


def _settings(wanted: bool = True, seed: int = 0, **options: Any) -> Settings:
    evaluate = EvaluatePolicy.model_validate(
        {
            "scorer": {"name": "numeric_answer"},
            "samples": SAMPLES,
            "max_completion_tokens": 5,
            **options,
        }
    )
    return Settings(seed=seed, evaluate=evaluate, wanted=wanted)


def _run(inputs: Inputs, key: str = "i0002", **options: Any) -> Outputs:
    return evaluate_policy(_settings(**options), inputs, Context(key, RUNTIME, "evaluate_policy"))


def _rows(outputs: Outputs) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = outputs.tables["evaluations"].to_pylist()
    return rows


def test_every_prompt_of_every_set_is_answered_k_times_and_once_greedily(inputs: Inputs) -> None:
    outputs = _run(inputs)
    write_table(outputs.tables["evaluations"], "evaluations", "i0002")  # passes its schema
    rows = _rows(outputs)
    expected = [
        f"eval:{row['set']}/i0002/{row['prompt_id']}/{sample:02d}"
        for row in _data()
        for sample in range(SAMPLES + 1)
    ]
    assert [row["rollout_id"] for row in rows] == expected
    assert [row["greedy"] for row in rows] == [False, False, False, True] * 4
    assert [row["reference_answer"] for row in rows[::4]] == ["3", "7", "3", "15"]
    assert rows[0]["prompt"] == "<|bos|><|user|>1+2=<|assistant|>"
    assert not any(row["greedy"] for row in _rows(_run(inputs, greedy=False)))


def test_the_noise_is_the_same_for_every_policy(inputs: Inputs) -> None:
    rows, later = _rows(_run(inputs)), _rows(_run(inputs, key="i0009"))
    for row in rows:
        assert row["seed"] == seed_of(
            "evaluation", 0, row["set"], row["prompt_id"], row["sample_index"]
        )
    assert [row["completion"] for row in rows] == [row["completion"] for row in later]
    assert rows[0]["rollout_id"] != later[0]["rollout_id"]
    assert [row["completion"] for row in _rows(_run(inputs, seed=1))] != [
        row["completion"] for row in rows
    ]


def test_a_prompt_in_two_sets_is_scored_in_both(inputs: Inputs) -> None:
    rows = _rows(_run(inputs))
    same = [row for row in rows if row["prompt_id"] == rows[0]["prompt_id"]]
    assert {row["set"] for row in same} == {"heldout", "other"}
    assert all(row["reward"] is not None for row in rows)


def test_rewards_are_those_of_the_scorer(inputs: Inputs) -> None:
    outputs = _run(inputs, scorer={"name": "exact_match", "label": "same"})
    for row in _rows(outputs):
        assert (
            row["reward"]
            == row["reward_same"]
            == float(row["text"].strip() == row["reference_answer"])
        )


def test_metrics_count_each_set(inputs: Inputs) -> None:
    outputs = _run(inputs)
    for name in SETS:
        rows = [row for row in _rows(outputs) if row["set"] == name]
        sampled = [row["reward"] for row in rows if not row["greedy"]]
        assert outputs.metrics[f"eval/{name}/mean_at_3"] == pytest.approx(
            sum(sampled) / len(sampled)
        )
        assert outputs.metrics[f"eval/{name}/prompts"] == 2
        assert f"eval/{name}/mean_at_3_lenient" in outputs.metrics


def test_the_evaluation_has_its_own_prompt_format(inputs: Inputs) -> None:
    row = _rows(_run(inputs, system_prompt="Add.", assistant_prefix="= "))[0]
    assert row["prompt"] == "<|bos|><|system|>Add.<|user|>1+2=<|assistant|>= "


def test_the_scorer_sees_the_columns_of_the_data(inputs: Inputs, project: Path) -> None:
    (project / "my_reward.py").write_text(
        "def points(prompts, completions, **columns):\n    return [float(n) for n in columns['points']]\n"
    )
    data = Inputs({"data": table("data", _data(points=5))}, inputs.folders, inputs.facts)
    outputs = _run(data, scorer={"name": "function", "path": "my_reward.py:points"})
    assert outputs.metrics["eval/heldout/mean_at_3"] == 5.0
    assert "eval/heldout/pass_at_3" not in outputs.metrics


def test_a_scorer_that_fails_is_an_error(inputs: Inputs, project: Path) -> None:
    (project / "broken.py").write_text(
        "def f(prompts, completions, **columns):\n    return 1 / 0\n"
    )
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        _run(inputs, scorer={"name": "function", "path": "broken.py:f"})


def test_a_prompt_longer_than_the_context_is_an_error_that_shows_it(inputs: Inputs) -> None:
    with pytest.raises(PolicyError, match=r"prompt 0 \('1\+2='\).*64"):
        _run(inputs, max_completion_tokens=60)


def test_an_iteration_that_is_not_evaluated_costs_no_torch(inputs: Inputs) -> None:
    outputs = _run(inputs, wanted=False)
    assert outputs.tables["evaluations"].num_rows == 0
    assert outputs.metrics == {}
    write_table(outputs.tables["evaluations"], "evaluations", "i0002")
    code = (
        "import sys, rollbook.stages.evaluate_policy as e\n"
        "from tests.unit.stages.test_evaluate_policy import _settings, _data\n"
        "from tests.builders import table\n"
        "from rollbook.rl.context import Context, Inputs\n"
        "e.evaluate_policy(_settings(wanted=False), Inputs({'data': table('data', _data())}), Context('i0001'))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_the_base_policy_is_always_evaluated(project: Path) -> None:
    params = parse_params(
        {
            "data": {"train": [{"name": "arithmetic"}]},
            "recipes": {"r": {"score_rollouts": {"rewards": [{"name": "numeric_answer"}]}}},
            "evaluate_policy": {"scorer": {"name": "numeric_answer"}},
            "iterations": {
                "i0001": {"previous": "i0000", "recipe": "r", "reference": "i0000"},
                "i0002": {
                    "previous": "i0001",
                    "recipe": "r",
                    "reference": "i0000",
                    "evaluate": False,
                },
            },
        }
    )
    wanted = [STAGE.settings.of(params, key).wanted for key in ("i0000", "i0001", "i0002")]
    assert wanted == [True, True, False]
