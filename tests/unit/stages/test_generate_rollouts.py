from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rollbook.components.policies.byte_tokenizer import EOS_ID
from rollbook.components.prompt_format import PromptFormat
from rollbook.components.prompting import PromptRenderer
from rollbook.core.ids import seed_of
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.recipe_sections import GenerateRollouts
from rollbook.stages.generate_rollouts import Settings, generate_rollouts
from rollbook.tables.artifacts import path_of, read_folder, write_folder, write_table
from rollbook.tables.schemas.rollouts import SCHEMA
from tests.builders import prompt_rows, table
from tests.unit.components.engines.models import ROUNDING, RUNTIME, save_llama

PROMPTS, GROUP_SIZE = 5, 3


@pytest.fixture
def inputs(project: Path) -> Inputs:
    facts = write_folder(lambda folder: save_llama(folder) and None, "policies", "i0000")
    folder = path_of("policies", "i0000")
    renderer = PromptRenderer(folder, PromptFormat())
    rows = prompt_rows(PROMPTS)
    for row in rows:
        row["prompt_token_ids"] = renderer.render(row["messages"]).token_ids
    assert read_folder(folder, "policies") == facts
    return Inputs({"prompts": table("prompts", rows)}, {"policies": folder}, {"policies": facts})


def _run(inputs: Inputs, key: str = "i0001", seed: int = 0, **options: Any) -> Outputs:
    generate = GenerateRollouts.model_validate(
        {"group_size": GROUP_SIZE, "max_completion_tokens": 6, **options}
    )
    return generate_rollouts(Settings(seed=seed, generate=generate), inputs, Context(key, RUNTIME))


def _rows(outputs: Outputs) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = outputs.tables["rollouts"].to_pylist()
    return rows


def _same_but_for_rounding(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Rows out of batches of another size are equal, their log-probs as far as sums of float32 can be."""
    for one, other in zip(got, wanted, strict=True):
        logprobs = pytest.approx(other["sampling_logprobs"], rel=0, abs=ROUNDING)
        assert one == {**other, "sampling_logprobs": logprobs}


def test_every_prompt_gets_a_group_in_order(inputs: Inputs) -> None:
    outputs = _run(inputs)
    write_table(outputs.tables["rollouts"], "rollouts", "i0001")  # passes its schema
    rows = _rows(outputs)
    expected = [
        f"{group_id}/{sample:02d}"
        for group_id in inputs.tables["prompts"]["group_id"].to_pylist()
        for sample in range(GROUP_SIZE)
    ]
    assert [row["rollout_id"] for row in rows] == expected
    assert {row["policy_digest"] for row in rows} == {inputs.digest("policies")}
    assert {row["iteration"] for row in rows} == {"i0001"}


def test_seeds_come_from_seed_iteration_prompt_and_sample(inputs: Inputs) -> None:
    rows = _rows(_run(inputs, seed=7))
    for row in rows:
        assert row["seed"] == seed_of("rollout", 7, "i0001", row["prompt_id"], row["sample_index"])
    texts = [row["completion"] for row in rows]
    assert [row["completion"] for row in _rows(_run(inputs, seed=8))] != texts
    assert [row["completion"] for row in _rows(_run(inputs, seed=7))] == texts


def test_a_rollout_depends_on_its_own_prompt_alone(inputs: Inputs) -> None:
    few = Inputs({"prompts": inputs.tables["prompts"].slice(3)}, inputs.folders, inputs.facts)
    _same_but_for_rounding(_rows(_run(few)), _rows(_run(inputs))[3 * GROUP_SIZE :])


def test_texts_follow_from_ids_and_all_tokens_are_trained_on(inputs: Inputs) -> None:
    rows = _rows(_run(inputs))
    renderer = PromptRenderer(inputs.folders["policies"], PromptFormat())
    for row in rows:
        assert row["completion"] == renderer.decode(row["completion_token_ids"], keep_special=True)
        assert row["text"] == renderer.decode(row["completion_token_ids"], keep_special=False)
        assert row["loss_mask"] == [True] * len(row["completion_token_ids"])
    stopped = [row for row in rows if row["finish_reason"] == "stop"]
    assert stopped
    assert all(row["completion_token_ids"][-1] == EOS_ID for row in stopped)
    assert all("<|eos|>" in row["completion"] and "<|eos|>" not in row["text"] for row in stopped)


def test_metrics_describe_the_table(inputs: Inputs) -> None:
    outputs = _run(inputs)
    rows = _rows(outputs)
    lengths = [len(row["completion_token_ids"]) for row in rows]
    logprobs = [value for row in rows for value in row["sampling_logprobs"]]
    metrics = outputs.metrics
    assert metrics["completions/mean_length"] == sum(lengths) / len(rows)
    cut = sum(row["finish_reason"] == "length" for row in rows)
    assert metrics["completions/clipped_ratio"] == pytest.approx(cut / len(rows))
    assert metrics["sampling/logprob/mean"] == pytest.approx(sum(logprobs) / len(logprobs))
    different = {(row["group_id"], row["completion"]) for row in rows}
    assert metrics["completions/distinct_share"] == len(different) / len(rows)


def test_equal_completions_of_a_group_are_not_distinct(inputs: Inputs) -> None:
    metrics = _run(inputs, top_k=1).metrics
    assert metrics["completions/distinct_share"] == pytest.approx(1 / GROUP_SIZE)
    assert metrics["sampling/logprob/mean"] == pytest.approx(0, abs=1e-6)


def test_the_table_has_the_schema_of_rollouts(inputs: Inputs) -> None:
    made: pa.Table = _run(inputs).tables["rollouts"]
    assert made.column_names == list(SCHEMA.columns) or set(made.column_names) == set(
        SCHEMA.columns
    )


def test_a_greedy_rollout_stands_behind_its_group_and_changes_nothing_else(inputs: Inputs) -> None:
    plain, outputs = _run(inputs), _run(inputs, greedy=True)
    write_table(outputs.tables["rollouts"], "rollouts", "i0001")  # passes its schema
    rows = _rows(outputs)
    assert [row["sample_index"] for row in rows] == list(range(GROUP_SIZE + 1)) * PROMPTS
    assert [row["greedy"] for row in rows] == ([False] * GROUP_SIZE + [True]) * PROMPTS
    _same_but_for_rounding([row for row in rows if not row["greedy"]], _rows(plain))
    assert outputs.metrics == pytest.approx(plain.metrics, rel=0, abs=ROUNDING)
    # at this temperature sampling is greedy
    cold = _rows(_run(inputs, temperature=1e-4))
    best = [row["completion_token_ids"] for row in rows if row["greedy"]]
    assert best == [row["completion_token_ids"] for row in cold[::GROUP_SIZE]]
    assert best != [row["completion_token_ids"] for row in rows[:: GROUP_SIZE + 1]]
