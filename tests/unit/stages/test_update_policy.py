import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from rollbook.components.coefficients import AdaptiveKl, KlCoefficient
from rollbook.core.errors import ArtifactError, TrainingError
from rollbook.rl.context import Outputs
from rollbook.settings.recipe_correction import Rejection, RolloutCorrection
from rollbook.stages.update_policy import Settings, update_policy
from rollbook.tables.artifacts import path_of, read_folder, read_table, write_folder, write_table
from tests.unit.rl.training.small import (
    context,
    inputs_for,
    settings_of,
    tables_for,
    weights,
    with_column,
    write_policy,
)

ENGINE_METRICS = (
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/mean",
)
ADVANTAGES = [[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.3, -1.0, -0.7]]


def _settings(
    correction: RolloutCorrection | None = None, reward_kl: KlCoefficient = 0.0, **options: Any
) -> Settings:
    return Settings(
        seed=0,
        update=settings_of(**{"old_logprobs": "sampling", **options}),
        temperature=1.0,
        max_completion_tokens=12,
        correction=correction,
        reward_kl=reward_kl,
        reward_kl_estimator="k1",
    )


def _run(
    tables: dict[str, pa.Table], key: str = "i0001", policy: str = "i0000", **options: Any
) -> Outputs:
    return update_policy(_settings(**options), inputs_for(tables, policy), context(key))


def _write(outputs: Outputs, key: str) -> str:
    """Stores what an update made; returns the digest of the policy."""
    for kind, table in outputs.tables.items():
        write_table(table, kind, key)
    for kind in ("optimizers", "values"):
        write_folder(outputs.folders[kind], kind, key)
    return write_folder(outputs.folders["policies"], "policies", key).content_hash


def _iterate(keys: list[str], digest: str, **options: Any) -> list[Outputs]:
    """Several iterations in a row, each from the folders of the one before."""
    made, previous = [], "i0000"
    for key in keys:
        made.append(_run(tables_for(digest, ADVANTAGES, iteration=key), key, previous, **options))
        digest, previous = _write(made[-1], key), key
    return made


def test_an_update_from_tables_to_a_policy_that_any_tool_can_load(project: Path) -> None:
    digest = write_policy().content_hash
    outputs = _run(tables_for(digest, ADVANTAGES), optimizer_steps=2)
    _write(outputs, "i0001")
    read_table(path_of("updates", "i0001"), "updates")
    read_table(path_of("optimizer_steps", "i0001"), "optimizer_steps")
    old, new = path_of("policies", "i0000"), path_of("policies", "i0001")
    for file in ("config.json", "generation_config.json", "chat_template.jinja"):
        assert (new / file).read_bytes() == (old / file).read_bytes()
    assert sorted(file.name for file in new.iterdir()) == sorted(
        file.name for file in old.iterdir()
    )
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(new)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    moved = {name: np.abs(value - weights(new)[name]).max() for name, value in weights(old).items()}
    assert all(1e-4 < change < 0.05 for change in moved.values())  # two Adam steps of 0.01
    assert np.array_equal(
        loaded.model.norm.weight.detach().numpy(),
        weights(new)["model.safetensors/model.norm.weight"],
    )


def test_the_same_inputs_give_the_same_bytes(project: Path) -> None:
    digest = write_policy().content_hash
    tables = tables_for(digest, ADVANTAGES)
    results = []
    for key in ("i0001", "i0009"):  # the key only names the output here
        outputs = update_policy(_settings(optimizer_steps=2), inputs_for(tables), context("i0001"))
        results.append((_write(outputs, key), outputs.metrics, outputs.tables))
    assert results[0] == results[1]
    assert (
        read_folder(path_of("optimizers", "i0001"), "optimizers").content_hash
        == read_folder(path_of("optimizers", "i0009"), "optimizers").content_hash
    )


def test_resuming_from_folders_is_exact(project: Path) -> None:
    """Two iterations with everything saved and loaded between them equal two in one process."""
    import torch

    from rollbook.components.policies.loading import load_model
    from rollbook.rl.training.loop import PolicyUpdate
    from rollbook.rl.training.optimizer import OptimizerState
    from rollbook.rl.training.records import LoopSettings
    from rollbook.rl.training.rows import training_rows

    digest = write_policy().content_hash
    options = {"optimizer_steps": 2, "weight_decay": 0.1, "warmup_steps": 3}
    _iterate(["i0001", "i0002"], digest, **options)
    model = load_model(path_of("policies", "i0000"), torch.device("cpu"), for_training=True)
    update, state = _settings(**options).update, OptimizerState()
    for key in ("i0001", "i0002"):
        rows = training_rows(tables_for("x", ADVANTAGES, iteration=key), update, "x")
        loop = LoopSettings(update, 1.0, 12, 0, key)
        record = PolicyUpdate(model, rows, loop, state).run(lambda *_: None)
        state = OptimizerState(record.steps[-1].optimizer_step, record.moments)
    stored = weights(path_of("policies", "i0002"))
    for name, value in model.named_parameters():
        assert np.array_equal(value.detach().double().numpy(), stored[f"model.safetensors/{name}"])


def test_warm_up_and_step_count_go_on_along_the_chain(project: Path) -> None:
    digest = write_policy().content_hash
    made = _iterate(
        ["i0001", "i0002"], digest, learning_rate=1.0e-3, optimizer_steps=3, warmup_steps=5
    )
    steps = [row for outputs in made for row in outputs.tables["optimizer_steps"].to_pylist()]
    assert [row["optimizer_step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert [row["learning_rate"] for row in steps] == pytest.approx(
        [2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3]
    )
    assert made[1].metrics["learning_rate"] == pytest.approx(1e-3)
    assert made[1].metrics["optimizer_step"] == 6
    state = json.loads((path_of("optimizers", "i0002") / "state.json").read_text())
    assert state == {"optimizer_step": 6, "controllers": {}}


def test_weights_move_by_the_learning_rate_of_the_step(project: Path) -> None:
    # Adam's first step moves every weight by the learning rate (here 0.01, its first tenth in the warm-up).
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    before = weights(path_of("policies", "i0000"))
    for key, options, expected in (
        ("i0001", {}, 0.01),
        ("i0002", {"warmup_steps": 10}, 0.001),
    ):
        outputs = update_policy(_settings(**options), inputs_for(tables), context())
        _write(outputs, key)
        after = weights(path_of("policies", key))
        largest = max(np.abs(after[name] - before[name]).max() for name in before)
        assert largest == pytest.approx(expected, rel=1e-2)


def test_a_policy_stored_in_bf16_keeps_float32_masters(project: Path) -> None:
    """Steps of 1e-6 are far below half a bf16 spacing of the norm weights (1.0), and add up all the same."""
    digest = write_policy(dtype="bfloat16").content_hash
    _iterate(["i0001", "i0002", "i0003"], digest, learning_rate=1e-6)
    name = "model.norm.weight"
    policies = [
        weights(path_of("policies", f"i000{k}"))[f"model.safetensors/{name}"] for k in range(4)
    ]
    assert all(np.array_equal(policies[0], policy) for policy in policies)
    masters = [
        weights(path_of("optimizers", f"i000{k}"))[f"masters.safetensors/{name}"] for k in (1, 2, 3)
    ]
    # Adam's first step is lr in each weight whose gradient is not tiny; three of them in one direction are 3 lr
    assert np.abs(masters[0] - 1).max() == pytest.approx(1e-6, rel=0.1)
    assert np.abs(masters[2] - 1).max() == pytest.approx(3e-6, rel=0.1)
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(path_of("policies", "i0003"), dtype="auto")
    assert loaded.dtype == torch.bfloat16


def test_masters_of_another_policy_are_refused(project: Path) -> None:
    digest = write_policy(dtype="bfloat16").content_hash
    tables = tables_for(digest, ADVANTAGES)
    _write(_run(tables, learning_rate=0.1), "i0001")
    inputs = inputs_for(tables)
    swapped = {**inputs.folders, "optimizers": path_of("optimizers", "i0001")}
    with pytest.raises(TrainingError, match="master weights in the optimizer folder are not those"):
        update_policy(_settings(), type(inputs)(inputs.tables, swapped, inputs.facts), context())


def test_what_happened_to_every_rollout(project: Path) -> None:
    digest = write_policy().content_hash
    kept = [True] * 8 + [False] * 2 + [True] * 2
    tables = tables_for(digest, ADVANTAGES, kept=kept)
    masks = tables["rollouts"]["loss_mask"].to_pylist()
    masks[0] = [False] * len(masks[0])
    tables["rollouts"] = with_column(tables["rollouts"], "loss_mask", masks)
    outputs = _run(tables)
    rows = outputs.tables["updates"].to_pylist()
    reasons = [row["reason"] for row in rows]
    assert reasons == [
        *["no tokens to train on", None, None, "advantage is 0"],
        *["advantage is 0"] * 4,
        *["not kept", "not kept", None, None],
    ]
    for row in rows:
        assert row["trained"] == (row["reason"] is None)
        assert (
            (row["policy_logprobs"] is None) == (row["ratio_mean"] is None) == (not row["trained"])
        )
    lengths = [len(ids) for ids in tables["rollouts"]["completion_token_ids"].to_pylist()]
    assert [len(row["policy_logprobs"]) for row in rows if row["trained"]] == [3, 4, 4, 5]
    assert sum(row["loss_share"] or 0 for row in rows) == pytest.approx(1.0)
    # ratio against old = -0.5 in every token
    trained = rows[1]
    ratios = [math.exp(value + 0.5) for value in trained["policy_logprobs"]]
    assert trained["ratio_mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
    assert trained["ratio_min"] == pytest.approx(min(ratios), rel=1e-5)
    assert trained["ratio_max"] == pytest.approx(max(ratios), rel=1e-5)
    held = sum(ratio < 0.8 for ratio in ratios) / len(ratios)  # its advantage is negative
    assert trained["clipped_fraction"] == pytest.approx(held)
    assert trained["kl"] is None
    step = outputs.tables["optimizer_steps"].to_pylist()[0]
    assert (step["rows"], step["rows_skipped"]) == (10, 6)
    assert step["tokens"] == sum(lengths) - lengths[0] - lengths[8] - lengths[9]
    assert outputs.metrics["frac_rows_skipped"] == pytest.approx(0.6)
    assert outputs.metrics["frac_tokens_skipped"] == pytest.approx(
        sum(lengths[3:8]) / step["tokens"]
    )
    assert outputs.metrics["frac_rows_not_kept"] == pytest.approx(2 / 12)
    assert outputs.metrics["num_tokens"] == step["tokens"]


def test_metrics_have_trls_names(project: Path) -> None:
    metrics = _run(tables_for(write_policy().content_hash, ADVANTAGES)).metrics
    assert {
        *("loss", "grad_norm", "learning_rate", "entropy", "num_tokens"),
        *(
            f"clip_ratio/{name}"
            for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")
        ),
        *("ratio/mean", "ratio/min", "ratio/max", "kl_old"),
    } <= set(metrics)
    assert "kl" not in metrics


def test_denominators_count_rows_that_are_not_computed(project: Path) -> None:
    # On-policy the loss of a token is -A. The advantages sum to 0.5 over 12 rows, 5 of which are not computed.
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    options: dict[str, Any] = {"old_logprobs": "measured", "loss": {"name": "grpo"}}
    assert _run(tables, **options).metrics["loss"] == pytest.approx(-0.5 / 12, rel=1e-5)
    # token mean: lengths are 2, 3, 4, 5 in each group, 42 in all
    weighted = (2 * 1.0 - 3 * 1.0 + 4 * 0.5) + (2 * 2.0 - 3 * 0.3 - 4 * 1.0 - 5 * 0.7)
    options: dict[str, Any] = {"old_logprobs": "measured", "loss": {"name": "dapo"}}
    assert _run(tables, **options).metrics["loss"] == pytest.approx(-weighted / 42, rel=1e-5)


def test_on_policy_nothing_is_clipped(project: Path) -> None:
    outputs = _run(tables_for(write_policy().content_hash, ADVANTAGES), old_logprobs="measured")
    assert outputs.metrics["ratio/min"] == outputs.metrics["ratio/max"] == 1.0
    assert outputs.metrics["clip_ratio/region_mean"] == 0.0
    assert outputs.metrics["kl_old"] == 0.0
    assert outputs.metrics["grad_norm"] > 0  # and yet it learns


def _with_logprobs(tables: dict[str, pa.Table], **values: float | None) -> dict[str, pa.Table]:
    """Adds a logprobs table with one number for all tokens of a column."""
    from rollbook.tables.artifacts import schema_of

    rollouts = tables["rollouts"]
    lengths = [len(ids) for ids in rollouts["completion_token_ids"].to_pylist()]
    lists = {
        name: None if values.get(name) is None else [[values[name]] * n for n in lengths]
        for name in ("old_logprobs", "ref_logprobs", "values", "entropies")
    }
    columns = {
        **{name: rollouts[name] for name in ("rollout_id", "group_id", "prompt_id", "iteration")},
        **{
            name: pa.nulls(len(lengths)) if value is None else value
            for name, value in lists.items()
        },
    }
    return {**tables, "logprobs": schema_of("logprobs").build(columns)}


def test_the_ratio_is_taken_against_what_the_recipe_says(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)  # sampling_logprobs are -0.5
    measured = _with_logprobs(tables, old_logprobs=-0.25)
    row = 1
    for options, old in (
        ({"old_logprobs": "measured", "epochs": 2}, -0.25),
        ({"old_logprobs": "sampling", "epochs": 2}, -0.5),
    ):
        found = _run(measured, **options).tables["updates"].to_pylist()[row]
        ratios = [math.exp(value - old) for value in found["policy_logprobs"]]
        assert found["ratio_mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)


def test_kl_against_the_reference_trains_rows_without_signal(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    given = _with_logprobs(tables, ref_logprobs=-1.0)
    loss = {"name": "dapo", "kl_coef": 0.1, "kl_bias_correction": False}
    outputs = _run(given, old_logprobs="measured", loss=loss)
    rows = outputs.tables["updates"].to_pylist()
    assert all(row["trained"] for row in rows)
    u = [-1.0 - value for value in rows[4]["policy_logprobs"]]
    k3 = [math.exp(min(each, 20.0)) - each - 1 for each in u]
    assert rows[4]["kl"] == pytest.approx(sum(k3) / len(k3), rel=1e-4)
    assert outputs.metrics["kl"] == outputs.tables["optimizer_steps"]["kl"][0].as_py() > 0


def test_cut_off_completions_are_not_trained_on_if_the_recipe_says_so(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    reasons = ["length", *["stop"] * 11]
    tables["rollouts"] = with_column(tables["rollouts"], "finish_reason", reasons)
    first = _run(tables).tables["updates"].to_pylist()[0]
    assert first["trained"]
    outputs = _run(tables, mask_truncated=True)
    rows = outputs.tables["updates"].to_pylist()
    assert (rows[0]["trained"], rows[0]["reason"]) == (False, "cut off at the length limit")
    assert rows[1]["trained"]
    step = outputs.tables["optimizer_steps"].to_pylist()[0]
    assert step["tokens"] == 42 - 2  # its two tokens leave the denominator
    assert outputs.metrics["frac_rows_emptied"] == pytest.approx(1 / 12)


def test_rollouts_of_an_engine_that_differs_are_weighed(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)  # sampling_logprobs are -0.5
    measured = _with_logprobs(tables, old_logprobs=-0.25)
    correction = RolloutCorrection(weights="token_truncate", max=1.2)
    plain = _run(measured, old_logprobs="measured", epochs=2)
    outputs = _run(measured, old_logprobs="measured", epochs=2, correction=correction)
    rows = outputs.tables["updates"].to_pylist()
    assert rows[0]["rollout_weight"] == pytest.approx(1.2)  # exp(0.25) is 1.28
    assert plain.tables["updates"].to_pylist()[0]["rollout_weight"] is None
    first, weighed = (
        made.tables["optimizer_steps"]["loss"][0].as_py() for made in (plain, outputs)
    )
    assert weighed == pytest.approx(1.2 * first, rel=1e-5)
    assert outputs.metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.2)
    assert outputs.metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(1.0)


def test_rejected_rollouts_leave_the_denominators(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    sampling = [list(row) for row in tables["rollouts"]["sampling_logprobs"].to_pylist()]
    sampling[0] = [-3.0] * len(sampling[0])
    tables["rollouts"] = with_column(tables["rollouts"], "sampling_logprobs", sampling)
    correction = RolloutCorrection(
        weights=None, reject=[Rejection(statistic="sequence_mean_k3", high=0.5)]
    )
    outputs = _run(
        _with_logprobs(tables, old_logprobs=-0.5), correction=correction, old_logprobs="measured"
    )
    row = outputs.tables["updates"].to_pylist()[0]
    assert (row["trained"], row["reason"]) == (False, "rejected by rollout_correction")
    assert outputs.tables["optimizer_steps"]["tokens"][0].as_py() == 42 - 2


def test_coefficients_that_follow_a_target_go_on_along_the_chain(project: Path) -> None:
    digest = write_policy().content_hash
    loss = {
        "name": "dapo",
        "entropy_coef": {"start": 0.0, "target": 99.0, "delta": 0.01, "max": 0.025},
        "kl_coef": {"start": 0.5, "target": 0.001, "horizon": 12},
    }
    previous, coefficients = "i0000", []
    for key in ("i0001", "i0002"):
        tables = tables_for(digest, ADVANTAGES, iteration=key)
        outputs = _run(
            _with_logprobs(tables, ref_logprobs=-1.0), key, previous, loss=loss, epochs=2
        )
        digest, previous = _write(outputs, key), key
        coefficients += [
            (row["entropy_coef"], row["kl_coef"])
            for row in outputs.tables["optimizer_steps"].to_pylist()
        ]
    entropy, kl = zip(*coefficients, strict=True)
    assert entropy == pytest.approx((0.0, 0.01, 0.02, 0.025))
    assert kl == pytest.approx((0.5, 0.5, 0.6, 0.6))  # far above the target: a fifth in 12 rows


def test_a_kl_in_the_loss_is_followed_as_the_mean_of_its_rollouts(project: Path) -> None:
    digest = write_policy().content_hash
    tables = _with_logprobs(tables_for(digest, ADVANTAGES), ref_logprobs=-1.0)
    plain = {"name": "dapo", "kl_coef": 0.5}
    rows = _run(tables, loss=plain).tables["updates"].to_pylist()
    mean = sum(row["kl"] for row in rows) / len(rows)
    loss = {**plain, "kl_coef": {"start": 0.5, "target": mean / 1.1, "horizon": 12}}
    _write(_run(tables, loss=loss), "i0001")
    state = json.loads((path_of("optimizers", "i0001") / "state.json").read_text())
    assert state["controllers"] == {"kl_coef": pytest.approx(0.5 * 1.1, rel=1e-4)}


def test_the_coefficient_of_a_kl_in_the_reward_follows_the_measured_kl(project: Path) -> None:
    digest = write_policy().content_hash
    tables = _with_logprobs(
        tables_for(digest, ADVANTAGES), old_logprobs=-0.5, ref_logprobs=-0.6
    )  # k1 is 0.1 on every token
    reward_kl = AdaptiveKl(start=0.5, target=0.09, horizon=12)
    _write(_run(tables, reward_kl=reward_kl), "i0001")
    state = json.loads((path_of("optimizers", "i0001") / "state.json").read_text())
    assert state["controllers"] == {"reward_kl_coef": pytest.approx(0.5 * (1 + 0.1 / 0.09 - 1))}


def test_epochs_and_steps(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    steps = _run(tables, epochs=2, optimizer_steps=3).tables["optimizer_steps"].to_pylist()
    assert [row["epoch"] for row in steps] == [0, 0, 0, 1, 1, 1]
    assert [row["rows"] for row in steps] == [4] * 6
    assert sorted(row["rows_skipped"] for row in steps[:3]) == [0, 1, 4]


def test_a_step_without_any_signal_still_counts(project: Path) -> None:
    advantages = [[0.0, 0.0], [0.0, 0.0]]
    outputs = _run(tables_for(write_policy().content_hash, advantages))
    step = outputs.tables["optimizer_steps"].to_pylist()[0]
    assert (step["loss"], step["grad_norm"], step["rows_skipped"]) == (0.0, 0.0, 4)
    assert outputs.metrics["clip_ratio/region_mean"] == 0.0
    assert math.isnan(outputs.metrics["entropy"])
    _write(outputs, "i0001")
    assert (
        weights(path_of("policies", "i0001")).keys() == weights(path_of("policies", "i0000")).keys()
    )


def test_fewer_groups_than_steps_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    steps = _run(tables, optimizer_steps=8).tables["optimizer_steps"]
    assert steps.num_rows == 3
    assert "3 groups make 3 optimizer steps, not 8" in capsys.readouterr().err


def test_rollouts_of_another_policy_are_refused(project: Path) -> None:
    write_policy()
    with pytest.raises(TrainingError, match="stale rollouts: generated by policy other"):
        _run(tables_for("other", ADVANTAGES))


def test_tables_that_do_not_belong_together_are_refused(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    short = {**tables, "advantages": tables["advantages"].slice(1)}
    with pytest.raises(ArtifactError, match=r"advantages \(11 rows\) and rollouts \(12 rows\)"):
        _run(short)
    with pytest.raises(TrainingError, match="has rollouts but is not in the prompts table"):
        _run({**tables, "prompts": tables["prompts"].slice(1)})


def test_tables_in_another_order_train_the_same(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    tables = _with_logprobs(tables, old_logprobs=-1.0, ref_logprobs=-2.0)
    order = pa.array([5, 0, *range(11, 5, -1), *range(4, 0, -1)])
    others = {**tables, **{kind: tables[kind].take(order) for kind in ("advantages", "logprobs")}}
    options: dict[str, Any] = {"old_logprobs": "measured", "loss": {"name": "dapo", "kl_coef": 0.1}}
    expected, found = _run(tables, **options), _run(others, **options)
    assert found.tables == expected.tables
    assert found.metrics == expected.metrics


def test_missing_measurements_are_refused(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    with pytest.raises(ArtifactError, match=r"logprobs \(0 rows\) and rollouts \(12 rows\)"):
        _run(tables, old_logprobs="measured", epochs=2)
    with pytest.raises(TrainingError, match="needs old_logprobs, and the logprobs table has none"):
        _run(_with_logprobs(tables, ref_logprobs=-1.0), old_logprobs="measured", epochs=2)
    with pytest.raises(TrainingError, match="needs ref_logprobs, and the logprobs table has none"):
        _run(_with_logprobs(tables), loss={"name": "dapo", "kl_coef": 0.1})


def test_nothing_kept_is_refused(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES, kept=[False] * 12)
    with pytest.raises(TrainingError, match="i0001: no rollout is kept"):
        _run(tables)


def test_nothing_left_to_train_on_is_refused(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    reasons = ["length"] * 12
    tables["rollouts"] = with_column(tables["rollouts"], "finish_reason", reasons)
    with pytest.raises(TrainingError, match=r"no kept rollout has a token .* \(cut off at the len"):
        _run(tables, mask_truncated=True)


def test_most_rollouts_emptied_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    reasons = ["length"] * 9 + ["stop"] * 3
    tables["rollouts"] = with_column(tables["rollouts"], "finish_reason", reasons)
    _run(tables, mask_truncated=True)
    assert "75% of the kept rollouts have no token to train on" in capsys.readouterr().err


def test_bnpo_counts_rows_without_trained_tokens_on_both_sides(project: Path) -> None:
    """On-policy, one micro-batch: the mean over tokens of −A, whatever the number of rows without tokens."""
    tables = tables_for(write_policy().content_hash, ADVANTAGES)
    reasons = ["length"] * 4 + ["stop"] * 8
    tables["rollouts"] = with_column(tables["rollouts"], "finish_reason", reasons)
    options: dict[str, Any] = {
        "old_logprobs": "measured",
        "loss": {"name": "bnpo"},
        "mask_truncated": True,
    }
    weighted = 2 * 2.0 - 3 * 0.3 - 4 * 1.0 - 5 * 0.7
    assert _run(tables, **options).metrics["loss"] == pytest.approx(-weighted / 28, rel=1e-5)


def test_weights_that_are_not_finite_stop_the_update(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollbook.rl.training import loop

    monkeypatch.setattr(loop, "learning_rate_at", lambda *_: math.inf)
    with pytest.raises(TrainingError, match=r"the weights .* are not finite; nothing was written"):
        _run(tables_for(write_policy().content_hash, ADVANTAGES))


def test_a_loss_that_is_not_finite_stops_the_update(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, [[1e300, -1e300]])
    with pytest.raises(TrainingError, match=r"optimizer step 1 \(epoch 0\) of i0001: loss is"):
        _run(tables)


def test_an_optimizer_state_of_another_model_is_refused(project: Path) -> None:
    digest = write_policy().content_hash
    _write(_run(tables_for(digest, ADVANTAGES)), "i0001")
    other = write_policy("other0000", hidden_size=16).content_hash
    inputs = inputs_for(tables_for(other, ADVANTAGES), "other0000")
    swapped = {**inputs.folders, "optimizers": path_of("optimizers", "i0001")}
    with pytest.raises(TrainingError, match="the optimizer state belongs to another model"):
        update_policy(_settings(), type(inputs)(inputs.tables, swapped, inputs.facts), context())


ALL_TRAINED = [[1.0, -1.0], [0.5, -0.5], [2.0, 0.0]]


def _policy_logprobs(outputs: Outputs) -> dict[str, list[NDArray[Any]]]:
    """Of the rollouts that were trained on, by group."""
    found: dict[str, list[NDArray[Any]]] = {}
    for row in outputs.tables["updates"].to_pylist():
        if row["trained"]:
            found.setdefault(row["group_id"], []).append(np.array(row["policy_logprobs"]))
    return found


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_the_engine_is_compared_with_the_policy_before_the_first_step(
    project: Path, steps: int, epochs: int
) -> None:
    """Over the rows that are computed in that step; what later steps see of a policy that has moved is left out."""
    tables = tables_for(write_policy().content_hash, ALL_TRAINED)
    before = _policy_logprobs(_run(tables))  # of a single step
    assert [len(rows) for rows in before.values()] == [2, 2, 1]
    parts = (
        list(before.values()) if steps == 3 else [[row for rows in before.values() for row in rows]]
    )
    differences = [np.concatenate(rows) + 0.5 for rows in parts]  # the engine said -0.5
    metrics = _run(tables, optimizer_steps=steps, epochs=epochs).metrics
    found = [metrics[name] for name in ENGINE_METRICS]
    assert (
        sum(
            found == pytest.approx([abs(d).mean(), abs(d).max(), np.exp(d).mean()], rel=1e-5)
            for d in differences
        )
        == 1
    )


def test_what_measure_logprobs_compares_is_not_compared_again(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ALL_TRAINED)
    measured = _with_logprobs(tables, old_logprobs=-0.5)
    metrics = _run(measured, old_logprobs="measured", optimizer_steps=2).metrics
    assert not set(ENGINE_METRICS) & set(metrics)
    only_reference = _with_logprobs(tables, ref_logprobs=-1.0)
    loss = {"name": "dapo", "kl_coef": 0.1}
    metrics = _run(only_reference, old_logprobs="measured", loss=loss).metrics
    assert set(ENGINE_METRICS) <= set(metrics)


def test_an_engine_without_log_probs_is_not_compared(project: Path) -> None:
    tables = tables_for(write_policy().content_hash, ALL_TRAINED)
    lists = tables["rollouts"]["sampling_logprobs"].to_pylist()
    unknown = [[math.nan] * len(row) for row in lists]
    tables["rollouts"] = with_column(tables["rollouts"], "sampling_logprobs", unknown)
    assert not set(ENGINE_METRICS) & set(_run(tables, old_logprobs="measured").metrics)
