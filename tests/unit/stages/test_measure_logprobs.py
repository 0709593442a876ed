import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollbook.components.policies.loading import load_model
from rollbook.core.errors import TrainingError
from rollbook.rl.context import Outputs
from rollbook.stages.measure_logprobs import Settings, measure_logprobs
from rollbook.tables.artifacts import path_of, write_table
from tests.unit.rl.training.small import (
    context,
    inputs_for,
    settings_of,
    tables_for,
    with_column,
    write_policy,
)

ADVANTAGES = [[1.0, -1.0, 0.5], [0.0, 2.0, -2.0]]
KL = {"name": "dapo", "kl_coef": 0.1}


def _settings(temperature: float = 1.0, **options: Any) -> Settings:
    update = settings_of(**options)
    return Settings(
        needs_old=update.compares_with_measured,
        needs_reference=update.loss.needs_reference,
        critic=update.critic,
        precision=update.precision,
        micro_batch_tokens=update.micro_batch_tokens,
        share_prompts=update.share_prompts,
        temperature=temperature,
    )


def _run(tables: dict[str, pa.Table], reference: str = "i0000", **options: Any) -> Outputs:
    outputs = measure_logprobs(
        _settings(0.8, **options), inputs_for(tables, reference=reference), context()
    )
    write_table(outputs.tables["logprobs"], "logprobs", "i0001")  # passes its schema
    return outputs


def _naive(policy: str, tables: dict[str, pa.Table]) -> list[tuple[list[float], list[float]]]:
    """Log-prob and entropy of each completion token, row by row, by the full softmax."""
    model = load_model(path_of("policies", policy), torch.device("cpu"))
    prompts = {row["prompt_id"]: row["prompt_token_ids"] for row in tables["prompts"].to_pylist()}
    found = []
    for row in tables["rollouts"].to_pylist():
        prompt, completion = prompts[row["prompt_id"]], row["completion_token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0].double() / 0.8
        table = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        picked = table[torch.arange(len(completion)), completion]
        found.append((picked.tolist(), (-(table.exp() * table).sum(-1)).tolist()))
    return found


def test_nothing_is_needed_for_a_single_step_without_kl(project: Path) -> None:
    outputs = _run(tables_for(write_policy().content_hash, ADVANTAGES))
    assert outputs.tables["logprobs"].num_rows == 0
    assert outputs.metrics == {"rows": 0}


def test_nothing_is_measured_without_torch(project: Path) -> None:
    """In a process of its own: the empty table costs no import of torch."""
    code = (
        "import sys\n"
        "from rollbook.rl.context import Context, Inputs\n"
        "from rollbook.stages.measure_logprobs import Settings, measure_logprobs\n"
        "settings = Settings(needs_old=False, needs_reference=False, critic=None,"
        " precision='float32', micro_batch_tokens=99, share_prompts=True, temperature=1.0)\n"
        "outputs = measure_logprobs(settings, Inputs(), Context('i0001'))\n"
        "assert outputs.tables['logprobs'].num_rows == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_old_logprobs_and_entropies_are_those_of_the_full_softmax(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    outputs = _run(tables, epochs=2, micro_batch_tokens=17)
    rows = outputs.tables["logprobs"].to_pylist()
    for row, (logprobs, entropies) in zip(rows, _naive("i0000", tables), strict=True):
        assert row["old_logprobs"] == pytest.approx(logprobs, abs=1e-5)
        assert row["entropies"] == pytest.approx(entropies, abs=1e-5)
        assert row["ref_logprobs"] is None
        assert row["values"] is None
    assert [row["rollout_id"] for row in rows] == tables["rollouts"]["rollout_id"].to_pylist()


def test_metrics_compare_trainer_and_engine_over_trained_tokens(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    masks = [list(mask) for mask in tables["rollouts"]["loss_mask"].to_pylist()]
    masks[0][0] = False
    tables["rollouts"] = with_column(tables["rollouts"], "loss_mask", masks)
    metrics = _run(tables, optimizer_steps=2).metrics
    trained = np.concatenate(masks)
    logprobs = np.concatenate([row[0] for row in _naive("i0000", tables)])[trained]
    entropies = np.concatenate([row[1] for row in _naive("i0000", tables)])[trained]
    difference = np.abs(logprobs + 0.5)  # sampling_logprobs are -0.5
    prefix = "sampling/sampling_logp_difference"
    assert metrics[f"{prefix}/mean"] == pytest.approx(difference.mean(), rel=1e-5)
    assert metrics[f"{prefix}/max"] == pytest.approx(difference.max(), rel=1e-5)
    assert metrics["old_entropy"] == pytest.approx(entropies.mean(), rel=1e-5)
    assert metrics["rows"] == 6


def test_the_reference_is_another_policy(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    write_policy("i0007", seed=1)
    rows = _run(tables, "i0007", loss=KL).tables["logprobs"].to_pylist()
    for row, (logprobs, _) in zip(rows, _naive("i0007", tables), strict=True):
        assert row["ref_logprobs"] == pytest.approx(logprobs, abs=1e-5)
        assert row["old_logprobs"] is None
        assert row["entropies"] is None


@pytest.mark.parametrize(("seed", "runs"), [(0, 1), (1, 2)])
def test_the_same_weights_are_run_once(project: Path, seed: int, runs: int) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    write_policy("i0007", seed=seed)  # with seed 0 the same content as i0000
    here = context()
    outputs = measure_logprobs(
        _settings(epochs=2, loss=KL), inputs_for(tables, reference="i0007"), here
    )
    (bar,) = here.progress_made
    assert (bar.total, bar.done) == (6 * runs, 6 * runs)
    logprobs = outputs.tables["logprobs"]
    same = logprobs["old_logprobs"].equals(logprobs["ref_logprobs"])
    assert same == (runs == 1)


def test_a_rollout_without_tokens_gets_empty_lists(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    rollouts = tables["rollouts"]
    for name in ("completion_token_ids", "loss_mask", "sampling_logprobs"):
        rollouts = with_column(rollouts, name, [[], *rollouts[name].to_pylist()[1:]])
    rows = _run({**tables, "rollouts": rollouts}, epochs=2).tables["logprobs"].to_pylist()
    assert rows[0]["old_logprobs"] == []
    assert len(rows[1]["old_logprobs"]) == 3


def test_rollouts_of_another_policy_are_refused(project: Path) -> None:
    write_policy()
    with pytest.raises(TrainingError, match="stale rollouts"):
        _run(tables_for("other", ADVANTAGES), epochs=2)


def test_sampling_logprobs_stand_in_for_old_ones(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    outputs = _run(tables, epochs=4, old_logprobs="sampling")
    assert outputs.tables["logprobs"].num_rows == 0
