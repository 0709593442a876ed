"""Losses, KL and log-probs recorded from TRL and verl, and the program that runs recorded numbers."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rollbook.stages.update_policy
from rollbook.components.losses import base
from rollbook.components.losses.base import Loss
from rollbook.core.registry import build, menu
from rollbook.rl.training import logprobs, loop, rows, window
from rollbook.settings.recipe_sections import UpdatePolicy
from tests.vectors import (
    adapters_dpo,
    adapters_losses,
    adapters_losses_verl,
    adapters_masks,
    adapters_rollout_correction,
    trl_losses,
)
from tests.vectors.__main__ import ADAPTERS, cases_in, main, run_case
from tests.vectors.cases import FOLDER, FORMAT, KnownDifference, Unsupported, load_cases

CATEGORIES = (
    *adapters_dpo.CATEGORIES,
    *adapters_losses.CATEGORIES,
    *adapters_losses_verl.CATEGORIES,
)
KNOWN = {"gspo-wide-kl", "luspo-sequence-kl"}
"""Where TRL has an open error; `tests/unit/components/losses/test_kl.py` shows that ours is the right number."""


@pytest.mark.parametrize("category", CATEGORIES)
def test_recorded_cases(category: str) -> None:
    """All pass but the known differences, so that an adapter cannot quietly leave one out."""
    problems, different = {}, set()
    for case in load_cases(category):
        try:
            problems[case["id"]] = run_case(category, case)
        except KnownDifference:
            different.add(case["id"])
    assert {name: text for name, text in problems.items() if text} == {}
    assert different == KNOWN & {case["id"] for case in load_cases(category)}


@pytest.mark.parametrize(
    ("category", "name", "changes"),
    [
        ("losses_trl", "grpo-clip-higher", {"epsilon_high": 0.2}),
        ("losses_trl", "grpo-delta", {"delta": None}),
        ("losses_trl", "grpo-kl-biascorr", {"use_bias_correction_kl": False}),
        ("losses_trl", "grpo-kl-plain", {"beta": 0.05}),
        ("losses_trl", "grpo-ga4", {"gradient_accumulation_steps": 2}),
        ("losses_trl", "dapo-ga2-spg4", {"steps_per_generation": 2}),
        ("losses_trl", "dapo-2proc", {"num_processes": 1}),
        ("losses_trl", "grpo-eval-mode", {"mode": "train"}),
        ("losses_trl", "dr-grpo", {"max_completion_length": 17}),
        ("losses_trl", "gspo-paper-eps", {"importance_sampling_level": "token"}),
        ("losses_trl", "cispo-cap-active", {"epsilon_high": 5.0}),
        ("losses_trl", "sapo-taus", {"sapo_temperature_neg": 2.0}),
        ("losses_trl", "vespo", {"vespo_k_neg": 2.0}),
        ("losses_trl", "vespo-is", {"is_correction": None}),
        ("losses_trl", "dapo-top-entropy-20", {"top_entropy_quantile": 0.5}),
        ("losses_trl", "grpo-opsm-sampling", {"off_policy_mask_threshold": None}),
        ("losses_trl", "dapo-entropy-bonus", {"entropy_coef": 0.02}),
        ("losses_trl", "gmpo", {"epsilon": 0.1}),
        ("losses_trl", "rloo-off-policy", {"loss_type": "grpo"}),
        ("losses_verl", "verl-ppo-token-sum", {"loss_agg_mode": "token-mean"}),
        ("losses_verl", "verl-ppo-dual-clip", {"clip_ratio_c": 10.0}),
        ("losses_verl", "verl-ppo-global-info", {"global_batch_info": {}}),
        ("losses_verl", "verl-cispo", {"clip_ratio_low": 1.0}),
        ("losses_verl", "verl-ppo-tis-token", {"rollout_is": None}),
        ("losses_verl", "bypass-reinforce-seq", {"rollout_correction": {"loss_type": "reinforce"}}),
        ("entropy_controller", "adaptive-entropy", {"entropy_coef_delta": 0.004}),
        ("dpo", "dpo-sigmoid", {"beta": 0.2}),
        ("dpo", "dpo-hinge", {"loss_type": "sigmoid"}),
        ("dpo", "dpo-robust", {"smoothing": 0.2}),
        ("dpo", "dpo-ld", {"ld_alpha": None}),
        ("dpo", "dpo-mixed", {"loss_weights": [1.0, 0.25]}),
        ("dpo", "dpo-mixed", {"loss_weights": [0.5, 0.5]}),
        ("dpo", "dpo-groups-best-worst", {"pairing": "all"}),
        ("dpo", "dpo-groups-best-worst", {"min_gap": 0.8}),
    ],
)
def test_an_option_is_heard(category: str, name: str, changes: dict[str, Any]) -> None:
    case = _case(name)
    assert run_case(category, case) is None
    assert run_case(category, {**case, "config": {**case["config"], **changes}}) is not None


def test_losses_are_those_that_training_calls() -> None:
    for name in menu("losses"):
        spec = {"name": name} | ({"cap": 5.0} if name == "cispo" else {})
        trained = UpdatePolicy.model_validate({"loss": spec}).loss
        assert type(trained) is type(build("losses", spec))
        framed = type(trained).__call__ is Loss.__call__
        assert framed != trained.needs_pairs, "only a loss of pairs replaces the frame"
    assert rollbook.stages.update_policy.Settings.model_fields["update"].annotation is UpdatePolicy
    assert vars(trl_losses)["build"] is vars(adapters_losses_verl)["build"] is build


def test_functions_are_those_that_training_calls() -> None:
    """The runner's own names and the ones in the code that an update runs are the same objects."""
    source = inspect.getsource(rollbook.stages.update_policy.update_policy)
    assert "rollbook.rl.training.loop import PolicyUpdate" in source
    assert "rollbook.rl.training.rows import" in source
    assert loop.PolicyUpdate._accumulate.__globals__ is vars(loop)
    assert Loss.__call__.__globals__ is vars(base)
    assert vars(loop)["completion_logprobs"].__globals__ is vars(logprobs)
    for runner, training, names in (
        (trl_losses, loop, ("counts_rows", "row_statistics", "step_metrics")),
        (trl_losses, window, ("top_entropy", "LossInputs")),
        (trl_losses, rows, ("correction",)),
        (adapters_dpo, loop, ("row_statistics", "step_metrics")),
        (adapters_losses, loop, ("Controllers",)),
        (adapters_losses, logprobs, ("selected_logprobs",)),
        (adapters_losses, base, ("kl_estimate",)),
        (adapters_rollout_correction, rows, ("correction",)),
        (adapters_masks, rows, ("without_truncated",)),
        (adapters_masks, base, ("on_policy",)),
    ):
        for name in names:
            assert vars(runner)[name] is vars(training)[name], name


@pytest.mark.parametrize("file", sorted(Path(__file__).parent.glob("*.py")), ids=lambda f: f.stem)
def test_the_runner_brings_no_formulas_of_its_own(file: Path) -> None:
    """It imports Rollbook, arrays and the standard library; of torch no more than tensors."""
    allowed = {"rollbook", "tests", "numpy", "torch", "pytest", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert all(item.name.split(".")[0] in allowed for item in node.names)
            assert all(not item.name.startswith("torch.") for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert module.split(".")[0] in allowed
            assert not module.startswith("torch.")
            if module == "torch":
                assert {item.name for item in node.names} <= {"Tensor"}


def test_no_category_has_two_adapters() -> None:
    categories = [category for adapter in ADAPTERS for category in adapter.CATEGORIES]
    assert len(categories) == len(set(categories))


def _folder_with(tmp_path: Path, case: dict[str, Any], category: str = "losses_trl") -> Path:
    content = {"format": FORMAT, "category": category, "count": 1, "cases": [case]}
    (tmp_path / "some.json").write_text(json.dumps(content))
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


def _case(name: str) -> dict[str, Any]:
    return next(case for _, case in cases_in(FOLDER) if case["id"] == name)


def test_a_swapped_sign_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = _case("grpo-off-policy")
    flipped = [-value for value in case["inputs"]["advantages"]]
    wrong = {**case, "inputs": {**case["inputs"], "advantages": flipped}}
    assert main([str(_folder_with(tmp_path, wrong))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "FAILED losses_trl/grpo-off-policy: loss: 1 of 1 numbers differ, largest error "
    )
    assert lines[-1] == "0 passed, 1 failed"


def test_the_largest_error_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = _case("grpo-on-policy")
    gradient = [list(row) for row in case["expected"]["grad_logps"]]
    gradient[0][0] += 0.5
    gradient[0][1] += 0.25
    wrong = {**case, "expected": {**case["expected"], "grad_logps": gradient}}
    main([str(_folder_with(tmp_path, wrong))])
    relative = 0.5 / abs(gradient[0][0])
    text = f"gradient: 2 of 24 numbers differ, largest error 0.5 (relative {relative:.3g})"
    assert text in capsys.readouterr().out


def test_a_missing_input_fails_instead_of_ending_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = _case("grpo-off-policy")
    inputs = {name: value for name, value in case["inputs"].items() if name != "advantages"}
    assert main([str(_folder_with(tmp_path, {**case, "inputs": inputs}))]) == 1
    assert "KeyError: 'advantages'" in capsys.readouterr().out


def test_known_differences_neither_pass_nor_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {**_case("gspo-wide-kl"), "id": "by rule and not by name"}
    assert main([str(_folder_with(tmp_path, case))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "known difference losses_trl/by rule and not by name: TRL weighs the KL"
    )
    assert lines[-1] == "0 passed, 0 failed"
    # without the bias correction, or on the level of tokens, TRL has no such error
    for changes in ({"use_bias_correction_kl": False}, {"importance_sampling_level": "token"}):
        other = {**case, "config": {**case["config"], **changes}}
        assert run_case("losses_trl", other) is not None


def test_what_no_adapter_knows_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"id": "any", "impl": "another.library"}
    assert main([str(_folder_with(tmp_path, case, "dpo"))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["FAILED dpo/any: implementation another.library", "0 passed, 1 failed"]
    with pytest.raises(Unsupported, match="unknown category"):
        run_case("something", {})


def test_files_that_are_not_what_they_say_fail_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in {
        "cut.json": "{",
        "bare.json": json.dumps({"format": FORMAT}),
        "list.json": json.dumps({"format": FORMAT, "category": "kl", "cases": [3]}),
        "other.json": "[]",
        "strange.json": json.dumps({"format": FORMAT, "category": "new", "cases": [{"id": "x"}]}),
    }.items():
        (tmp_path / name).write_text(content)
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    for name in ("cut.json", "bare.json", "list.json", "new/x"):
        assert any(line.startswith("FAILED") and name in line for line in lines), name
    assert lines[-1] == "0 passed, 4 failed"


def test_an_empty_folder_is_a_failure(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
