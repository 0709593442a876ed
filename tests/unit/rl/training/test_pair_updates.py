"""Updates on pairs and on chosen answers, from tables to a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollbook.components.policies.loading import load_model, prepare_torch
from rollbook.core.errors import TrainingError
from rollbook.core.ids import pair_id_of
from rollbook.core.ragged import Ragged
from rollbook.rl.training.batches import micro_batches
from rollbook.rl.training.loop import PolicyUpdate
from rollbook.rl.training.optimizer import OptimizerState
from rollbook.rl.training.records import LoopSettings
from rollbook.rl.training.rows import training_rows
from rollbook.rl.training.window import window_of
from rollbook.stages.update_policy import Settings, update_policy
from tests.builders import table
from tests.unit.rl.training.small import (
    RUNTIME,
    context,
    inputs_for,
    settings_of,
    tables_for,
    write_model,
    write_policy,
)

ADVANTAGES = [[1.0, -1.0, 0.0, 0.0], [0.5, 0.0, -0.5, 0.0], [0.0, 1.0, 0.0, -1.0]]
BEST_WORST = [(0, 1), (4, 6), (9, 11)]
ALL = [(0, 1), (0, 3), (2, 1), (4, 6), (9, 11), (9, 8), (10, 11)]
IDS = ("rollout_id", "group_id", "prompt_id", "iteration")


def paired(digest: str, pairs: list[tuple[int, int]]) -> dict[str, pa.Table]:
    """Tables of an iteration with these rows in pairs, kept, and measured under a reference."""
    kept = [any(row in pair for pair in pairs) for row in range(12)]
    tables = tables_for(digest, ADVANTAGES, kept=kept)
    rows = tables["rollouts"].to_pylist()
    generator = np.random.default_rng(1)
    tables["logprobs"] = table(
        "logprobs",
        [
            {
                **{name: row[name] for name in IDS},
                "old_logprobs": None,
                "ref_logprobs": generator.uniform(-4, -1, len(row["loss_mask"])).tolist(),
                "values": None,
                "entropies": None,
            }
            for row in rows
        ],
    )
    tables["pairs"] = table(
        "pairs",
        [
            {
                "pair_id": pair_id_of(rows[one]["rollout_id"], rows[other]["rollout_id"]),
                **{name: rows[one][name] for name in IDS[1:]},
                "chosen_id": rows[one]["rollout_id"],
                "rejected_id": rows[other]["rollout_id"],
                "chosen_reward": 1.0,
                "rejected_reward": 0.0,
            }
            for one, other in pairs
        ],
    )
    return tables


def update_of(folder: Path, pairs: list[tuple[int, int]], **options: Any) -> PolicyUpdate:
    update = settings_of(**{"loss": "dpo", **options})
    rows = training_rows(paired("digest", pairs), update, "digest")
    model = load_model(folder, torch.device("cpu"), for_training=True)
    return PolicyUpdate(model, rows, LoopSettings(update, 0.9, 12, 0, "i0001"), OptimizerState())


def gradient_of(update: PolicyUpdate) -> torch.Tensor:
    recipe = update.settings.update
    index = np.flatnonzero(update.rows.kept)
    window = window_of(update.rows, index, recipe.loss, recipe.top_entropy)
    computed = index[update.computed[index]]
    update._accumulate(computed, window, update.controllers.loss(), lambda *_: None)
    return torch.cat([value.grad.flatten() for value in update.parameters.values()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare_torch(RUNTIME)
    (tmp_path / "policy").mkdir()
    write_model(tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("pairs", [BEST_WORST, ALL], ids=["best_worst", "all"])
@pytest.mark.parametrize(
    "loss",
    [{"name": "dpo"}, {"name": "dpo", "variant": "ipo", "sft_coef": 0.3, "ld_alpha": 0.5}],
    ids=str,
)
def test_memory_does_not_change_the_gradient(
    folder: Path, pairs: list[tuple[int, int]], loss: dict[str, Any]
) -> None:
    whole = gradient_of(update_of(folder, pairs, loss=loss))
    assert whole.norm() > 0
    for budget in (1, 20, 37):
        split = update_of(folder, pairs, loss=loss, micro_batch_tokens=budget)
        assert (gradient_of(split) - whole).norm() / whole.norm() < 1e-5
    apart = update_of(folder, pairs, loss=loss, share_prompts=False, micro_batch_tokens=1)
    assert (gradient_of(apart) - whole).norm() / whole.norm() < 1e-5


def test_every_row_of_a_pair_is_computed_whatever_its_advantage(folder: Path) -> None:
    update = update_of(folder, ALL)
    assert set(np.flatnonzero(update.computed)) == {row for pair in ALL for row in pair}
    assert update.rows.advantages[3] == 0 and update.computed[3]


def test_rows_of_a_prompt_stay_in_one_micro_batch() -> None:
    prompts = Ragged.of([[1], [2], [1], [3], [2], [1]], np.int64)
    completions = Ragged.of([[7] * n for n in (4, 1, 2, 9, 3, 1)], np.int64)
    parts = list(micro_batches(np.arange(6), prompts, completions, 10, whole_prompts=True))
    assert [part.rows.tolist() for part in parts] == [[3], [0, 2, 5], [1, 4]]
    shared = micro_batches(np.arange(6), prompts, completions, 12, 1e9, whole_prompts=True)
    assert sorted(sorted(part.rows.tolist()) for part in shared) == [[0, 2, 5], [1, 4], [3]]


def _settings(**options: Any) -> Settings:
    return Settings(
        seed=0,
        update=settings_of(**options),
        temperature=1.0,
        max_completion_tokens=12,
        correction=None,
        reward_kl=0.0,
        reward_kl_estimator="k1",
    )


@pytest.mark.parametrize("pairs", [BEST_WORST, ALL], ids=["best_worst", "all"])
def test_an_update_prefers_the_chosen(project: Path, pairs: list[tuple[int, int]]) -> None:
    tables = paired(write_policy().content_hash, pairs)
    given = _settings(loss={"name": "dpo", "beta": 0.5}, epochs=8, optimizer_steps=3)
    outputs = update_policy(given, inputs_for(tables), context())
    updates = outputs.tables["updates"]
    trained = updates["trained"].to_pylist()
    assert trained == tables["advantages"]["kept"].to_pylist()
    assert updates["ratio_mean"].drop_null().to_pylist() == pytest.approx([1.0] * sum(trained))
    assert sum(updates["loss_share"].drop_null().to_pylist()) == pytest.approx(1)
    assert min(updates["loss_share"].drop_null().to_pylist()) > 0
    steps = outputs.tables["optimizer_steps"]
    assert steps.num_rows == 24 and steps["rows_skipped"].to_pylist() == [0] * 24
    assert 0 < outputs.metrics["rewards/accuracies"] <= 1
    assert outputs.metrics["rewards/margins"] == pytest.approx(
        outputs.metrics["rewards/chosen"] - outputs.metrics["rewards/rejected"]
    )
    losses = steps["loss"].to_pylist()
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    again = update_policy(given, inputs_for(tables), context())
    assert again.tables == outputs.tables
    assert again.metrics == pytest.approx(outputs.metrics, rel=0, abs=0, nan_ok=True)


def test_chosen_answers_become_likelier(project: Path) -> None:
    digest = write_policy().content_hash
    kept = [row in (0, 1, 5) for row in range(12)]
    tables = tables_for(digest, [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0] * 4], kept=kept)
    outputs = update_policy(_settings(loss="sft", epochs=6), inputs_for(tables), context())
    losses = outputs.tables["optimizer_steps"]["loss"].to_pylist()
    tokens = outputs.tables["optimizer_steps"]["tokens"].to_pylist()
    assert losses[-1] < losses[0] - 0.5
    assert tokens == [2 + 3 + 3] * 6
    assert outputs.tables["updates"]["trained"].to_pylist() == kept


def test_pairs_of_another_run_are_refused() -> None:
    update = settings_of(loss="dpo")
    tables = paired("digest", BEST_WORST)
    with pytest.raises(TrainingError, match="the pairs table has none"):
        training_rows({**tables, "pairs": tables["pairs"].slice(0, 0)}, update, "digest")
    fewer = {
        **tables,
        "advantages": tables_for("digest", ADVANTAGES, kept=[False] * 12)["advantages"],
    }
    with pytest.raises(TrainingError, match="is no rollout that the update trains on"):
        training_rows(fewer, update, "digest")
    place = tables["pairs"].column_names.index("chosen_id")
    foreign = tables["pairs"].set_column(place, "chosen_id", pa.array(["i0009/x/00"] * 3))
    with pytest.raises(TrainingError, match="i0009/x/00 is no rollout"):
        training_rows({**tables, "pairs": foreign}, update, "digest")
