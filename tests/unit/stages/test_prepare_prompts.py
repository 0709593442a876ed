"""From data/train and a policy to the prompts of an iteration."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollbook.core.errors import DataError
from rollbook.core.ids import prompt_id_of
from rollbook.rl.context import Context, Inputs, Outputs
from rollbook.settings.recipe_sections import PreparePrompts
from rollbook.stages.prepare_prompts import Settings, prepare_prompts
from rollbook.tables.artifacts import schema_of
from tests.builders import history_row, table
from tests.policy_folders import CHATML, byte_level, saved


def data_rows(texts: list[str], source: str = "file", **columns: Any) -> list[dict[str, Any]]:
    rows = []
    for text in texts:
        messages = [{"role": "user", "content": text}]
        prompt_id = prompt_id_of(messages, text)
        fixed = {"prompt_id": prompt_id, "messages": messages, "reference_answer": text}
        rows.append({**fixed, "source": source, "set": "train", **columns})
    return rows


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    saved(tmp_path / "policy", byte_level(bos_first=False), CHATML, max_position_embeddings=64)
    return tmp_path / "policy"


def run(
    policy: Path,
    rows: list[dict[str, Any]],
    count: int,
    context: Context | None = None,
    history: Sequence[dict[str, Any]] = (),
    **given: Any,
) -> Outputs:
    settings = Settings(
        seed=given.pop("seed", 0),
        draws=given.pop("draws", ()),
        source_weights=given.pop("source_weights", {"file": None}),
        max_completion_tokens=given.pop("max_completion_tokens", 8),
        format=PreparePrompts(prompts_per_iteration=count, **given),
    )
    tables = {"data": table("data", rows), "history": table("history", history)}
    inputs = Inputs(tables, folders={"policies": policy})
    outputs = prepare_prompts(
        settings, inputs, context or Context("i0003", stage="prepare_prompts")
    )
    schema_of("prompts").validate(outputs.tables["prompts"], "test")
    return outputs


def answers(outputs: Outputs) -> list[str]:
    return outputs.tables["prompts"]["reference_answer"].to_pylist()


TEXTS = [f"{n}+{n}=" for n in range(10)]


def test_rows_hold_ids_text_tokens_and_the_sources_columns(policy: Path) -> None:
    outputs = run(policy, data_rows(TEXTS, level=3), 4, assistant_prefix="<think>")
    for row in outputs.tables["prompts"].to_pylist():
        content = row["reference_answer"]
        assert row["messages"] == [{"role": "user", "content": content}]
        assert row["prompt_id"] == prompt_id_of(row["messages"], content)
        assert row["group_id"] == f"i0003/{row['prompt_id']}"
        assert row["iteration"] == "i0003"
        assert row["prompt"].startswith(f"<|im_start|>user\n{content}<|im_end|>")
        assert row["prompt"].endswith("<|im_start|>assistant\n<think>")
        assert (row["prompt_token_ids"][0], row["source"], row["level"]) == (4, "file", 3)
        assert "set" not in row


def test_a_chain_asks_every_prompt_once_per_epoch(policy: Path) -> None:
    rows = data_rows(TEXTS)
    chain = [answers(run(policy, rows, 4, draws=(4,) * k)) for k in range(5)]
    asked = [text for iteration in chain for text in iteration]
    assert sorted(asked[:10]) == sorted(asked[10:]) == sorted(TEXTS)
    assert asked[:10] != TEXTS
    assert asked != [
        t for k in range(5) for t in answers(run(policy, rows, 4, draws=(4,) * k, seed=1))
    ]


def test_metrics(policy: Path) -> None:
    outputs = run(policy, data_rows(TEXTS), 4, draws=(4, 4))
    lengths = [len(ids) for ids in outputs.tables["prompts"]["prompt_token_ids"].to_pylist()]
    assert outputs.metrics == {
        "prompts": 4,
        "prompts/dropped_too_long": 0,
        "prompts/mean_length": sum(lengths) / 4,
        "prompts/max_length": max(lengths),
        "data_epoch": 1.2,  # 12 of 10 prompts
    }


def test_sources_by_weight(policy: Path) -> None:
    rows = data_rows(TEXTS) + data_rows(["x", "y", "z"], "hub")
    outputs = run(policy, rows, 6, source_weights={"file": 1.0, "gone": 7.0, "hub": 0.5})
    assert outputs.tables["prompts"]["source"].to_pylist().count("hub") == 2
    assert outputs.metrics["prompts/drawn/file"] == 4
    assert outputs.metrics["prompts/drawn/gone"] == 0
    assert outputs.metrics["data_epoch/hub"] == pytest.approx(2 / 3)


def test_prompts_that_are_too_long_are_dropped_and_shift_nothing(policy: Path) -> None:
    context = Context("i0003", stage="prepare_prompts")
    long = "9" * 60
    rows = data_rows([*TEXTS[:9], long])
    plain = {"chat_template": "plain"}  # one token per digit; 64 - 8 = 56 are left for a prompt
    short_of_it = [run(policy, rows, 5, context, draws=(5,) * k, **plain) for k in range(2)]
    asked = [answers(outputs) for outputs in short_of_it]
    roomy = [
        answers(run(policy, rows, 5, draws=(5,) * k, max_completion_tokens=1, **plain))
        for k in range(2)
    ]
    assert sorted(len(texts) for texts in roomy) == [5, 5]
    assert asked == [[text for text in texts if text != long] for texts in roomy]
    assert sorted(outputs.metrics["prompts/dropped_too_long"] for outputs in short_of_it) == [0, 1]
    assert context.warnings == [
        "1 of 5 prompts are longer than 56 tokens (the longest: 60) and were dropped; "
        "lower max_completion_tokens, raise max_prompt_tokens, or shorten the prompts"
    ]


def test_max_prompt_tokens(policy: Path) -> None:
    rows = data_rows(["99", "9999", "999999"])
    outputs = run(policy, rows, 3, chat_template="plain", max_prompt_tokens=4)
    assert sorted(answers(outputs)) == ["99", "9999"]
    with pytest.raises(
        DataError, match=r"3 of 3 prompts are longer than 1 tokens .*: none is left"
    ):
        run(policy, rows, 3, chat_template="plain", max_prompt_tokens=1)


def test_a_completion_that_fills_the_context(policy: Path) -> None:
    with pytest.raises(
        DataError, match=r"max_completion_tokens is 64, the policy reads 64 tokens in all"
    ):
        run(policy, data_rows(TEXTS), 3, max_completion_tokens=64)


def test_more_prompts_than_there_are(policy: Path) -> None:
    with pytest.raises(DataError, match="is 11, but the training data has 10 prompts"):
        run(policy, data_rows(TEXTS), 11)


def asked_before(rows: list[dict[str, Any]], flat: Collection[str]) -> list[dict[str, Any]]:
    """A history in which all prompts were asked, those with the texts in `flat` without effect."""
    return [history_row(r["prompt_id"], r["reference_answer"] not in flat) for r in rows]


PREFER = {"prefer": "informative", "prefer_among": 2.0}


def test_flat_prompts_come_after_all_others(policy: Path) -> None:
    rows = data_rows(TEXTS)
    dealt = answers(run(policy, rows, 8))  # what 4 · 2 looks at
    assert answers(run(policy, rows, 4, **PREFER)) == dealt[:4]
    flat = {dealt[0], dealt[2], dealt[5]}
    outputs = run(policy, rows, 4, history=asked_before(rows, flat), **PREFER)
    assert answers(outputs) == [dealt[place] for place in (1, 3, 4, 6)]
    assert outputs.metrics["prompts/passed_over"] == 2
    assert outputs.metrics["prompts/never_asked_share"] == 0.0
    # with six flat ones of eight, two of them are asked, behind the others
    outputs = run(policy, rows, 4, history=asked_before(rows, dealt[:6]), **PREFER)
    assert answers(outputs) == [dealt[place] for place in (6, 7, 0, 1)]
    assert outputs.metrics["prompts/passed_over"] == 2


def test_prompts_never_asked_are_no_flat_ones(policy: Path) -> None:
    rows = data_rows(TEXTS)
    dealt = answers(run(policy, rows, 8))
    known = dict(zip(TEXTS, asked_before(rows, TEXTS), strict=True))
    of_half = [known[text] for text in dealt[::2]]
    outputs = run(policy, rows, 6, history=of_half, prefer="informative", prefer_among=1.25)
    assert answers(outputs) == [dealt[place] for place in (1, 3, 5, 7, 0, 2)]
    assert outputs.metrics["prompts/never_asked_share"] == pytest.approx(4 / 6)


def test_without_a_preference_the_history_changes_nothing(policy: Path) -> None:
    rows = data_rows(TEXTS)
    plain = run(policy, rows, 4)
    told = run(policy, rows, 4, history=asked_before(rows, TEXTS[::2]))
    assert told.tables["prompts"] == plain.tables["prompts"]
    assert told.metrics == plain.metrics


def test_more_prompts_are_asked_than_trained_on(policy: Path) -> None:
    rows = data_rows(TEXTS)
    outputs = run(policy, rows, 4, oversample=1.6)
    assert answers(outputs) == answers(run(policy, rows, 7))
    assert outputs.metrics["prompts"] == 7
    assert len(answers(run(policy, rows, 3, oversample=1.5, **PREFER))) == 5  # of 10 looked at


def test_a_preference_looks_at_all_prompts_if_it_would_look_at_more(policy: Path) -> None:
    """7 of 10 asked among 14: the next iteration draws from a new shuffle of all."""
    rows = data_rows(TEXTS)
    first = run(policy, rows, 7, **PREFER)
    assert first.metrics["data_epoch"] == 1.0
    flat = answers(first)
    second = run(policy, rows, 7, draws=(14,), history=asked_before(rows, flat), **PREFER)
    assert second.metrics["data_epoch"] == 2.0
    assert set(answers(second)[:3]) == set(TEXTS) - set(flat)
    with pytest.raises(DataError, match=r"times oversample, is 12, but .* has 10 prompts"):
        run(policy, rows, 8, oversample=1.5, **PREFER)


def test_a_preference_keeps_the_weights_of_sources(policy: Path) -> None:
    rows = data_rows(TEXTS) + data_rows([f"{n}-{n}=" for n in range(10)], "hub")
    flat = [row["reference_answer"] for row in rows if row["source"] == "file"]
    outputs = run(
        policy,
        rows,
        4,
        source_weights={"file": 1.0, "hub": 1.0},
        history=asked_before(rows, flat),
        **PREFER,
    )
    assert outputs.tables["prompts"]["source"].to_pylist() == ["file", "hub"] * 2
    assert outputs.metrics["prompts/passed_over"] == 0


def test_the_stage_imports_no_model_code() -> None:
    """It runs before every iteration; torch alone would take two seconds."""
    import subprocess
    import sys

    code = (
        "import sys, rollbook.stages.prepare_prompts, rollbook.stages.prepare_data; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'polars', 'pandas', 'mlflow') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
