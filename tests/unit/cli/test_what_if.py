import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rollbook.cli.main import cli
from rollbook.core.errors import ArtifactError, ConfigError, RollbookError
from rollbook.core.registry import build
from rollbook.core.yaml import flow
from rollbook.project.run.run import Run
from rollbook.project.run.stored import StoredTable
from rollbook.settings.params import parse_params
from rollbook.settings.recipe import Recipe
from rollbook.stages.update_policy import Settings, update_policy
from rollbook.tables.artifacts import path_of, read_table, write_json, write_table
from rollbook.tables.schemas.rollouts import IDS
from rollbook.views.what_if import what_if
from tests.builders import table
from tests.unit.rl.training.small import context, inputs_for, tables_for, write_policy
from tests.unit.rl.training.taught import taught
from tests.unit.settings.test_params import shipped

REWARDS = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.5]]
LENGTHS = [[1, 2, 3, 4], [1, 1, 1, 1], [2, 2, 9, 9]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An iteration i0001 on disk: tables, and what two optimizer steps of the recipe did with them."""
    where = tmp_path_factory.mktemp("what_if")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        raw = shipped()
        sizes = raw["recipes"]["grpo"]
        sizes["generate_rollouts"] |= {"group_size": 4, "max_completion_tokens": 12}
        sizes["update_policy"] |= {"optimizer_steps": 2, "learning_rate": 1e-2}
        raw["recipes"]["kl"] = {
            "extends": "grpo",
            "update_policy": {"loss": {"name": "grpo", "kl_coef": 0.1}},
        }
        raw["recipes"]["kl_in_reward"] = {"extends": "grpo", "compute_advantages": {"kl_coef": 0.1}}
        raw["recipes"]["measured"] = {
            "extends": "grpo",
            "update_policy": {"old_logprobs": "measured", "loss": {"name": "grpo"}},
        }
        raw["iterations"] = {"i0001": {"previous": "i0000", "recipe": "grpo", "reference": "i0000"}}
        Path("params.yaml").write_text(
            "\n".join(f"{name}: {flow(value)}" for name, value in raw.items())
        )
        params = parse_params(raw)
        estimator = params.recipes["grpo"].compute_advantages.estimator
        advantages = [_advantages(estimator, group) for group in REWARDS]
        informative = [len(set(group)) > 1 for group in REWARDS for _ in group]
        tables = tables_for(
            write_policy().content_hash, advantages, LENGTHS, informative=informative
        )
        rewards = [reward for group in REWARDS for reward in group]
        scores = [
            {
                **row,
                "reward": reward,
                "reward_numeric_answer": reward,
                "error": None,
                "step_rewards": None,
            }
            for row, reward in zip(
                tables["rollouts"].select(list(IDS)).to_pylist(), rewards, strict=True
            )
        ]
        tables["scores"] = table("scores", scores)
        settings = Settings.of(params, "i0001")
        outputs = update_policy(settings, inputs_for(tables), context("i0001"))
        for kind, made in {**tables, **outputs.tables}.items():
            write_table(made, kind, "i0001")
        write_json({}, path_of("metrics/compute_advantages", "i0001"))
    return where


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(folder)
    return Run()


def _advantages(estimator: Any, rewards: list[float]) -> list[float]:
    values = np.array(rewards)
    spread = values.std()
    return list((values - values.mean()) / (spread + estimator.eps) if spread else 0 * values)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["what-if", *arguments])


def test_the_same_recipe_gives_the_same_numbers(run: Run) -> None:
    found = what_if(run, "i0001", loss={"name": "dapo", "clip_low": 0.2, "clip_high": 0.28})
    assert found.was.numbers == pytest.approx(found.would_be.numbers, nan_ok=True)
    assert found.sign_flips == 0 and found.not_trained == 4
    np.testing.assert_allclose(found.was.advantages, found.would_be.advantages)


def test_numbers_by_hand(run: Run) -> None:
    """Ratios, clips and sample size straight from the stored log-probs."""
    updates, _ = read_table(path_of("updates", "i0001"), "updates")
    rollouts, _ = read_table(path_of("rollouts", "i0001"), "rollouts")
    advantages, _ = read_table(path_of("advantages", "i0001"), "advantages")
    ratios, signs = [], []
    for seen, before, value in zip(
        updates["policy_logprobs"].to_pylist(),
        rollouts["sampling_logprobs"].to_pylist(),
        advantages["advantage"].to_pylist(),
        strict=True,
    ):
        ratios += [1.0] * len(before) if seen is None else list(np.exp(np.subtract(seen, before)))
        signs += [np.sign(value)] * len(before)
    ratio, sign = np.array(ratios), np.array(signs)
    numbers = what_if(run, "i0001", loss="gspo").was.numbers
    assert numbers["effective sample size"] == pytest.approx(
        ratio.sum() ** 2 / len(ratio) / (ratio**2).sum()
    )
    assert numbers["clipped low"] == pytest.approx(np.mean((ratio < 0.8) & (sign < 0)))
    assert numbers["clipped high"] == pytest.approx(np.mean((ratio > 1.28) & (sign > 0)))
    assert numbers["informative groups"] == 2 and numbers["kept groups"] == 3
    assert numbers["clipped low"] > 0


def test_gradient_by_length(run: Run) -> None:
    """With ratios far from clipping a token mean weighs tokens alike, a row mean rollouts."""
    loss = {"name": "reinforce", "aggregation": "token_mean"}
    tokens = what_if(run, "i0001", loss=loss, estimator={"name": "group", "scale": "none"})
    rows = what_if(
        run,
        "i0001",
        loss={**loss, "aggregation": "row_mean"},
        estimator={"name": "group", "scale": "none"},
    )
    assert sum(part.gradient for part in tokens.would_be.lengths) == pytest.approx(1)
    assert sum(part.tokens for part in tokens.would_be.lengths) == pytest.approx(1)
    assert tokens.would_be.lengths[-1].most == 10
    assert rows.would_be.lengths[-1].gradient < tokens.would_be.lengths[-1].gradient


def test_another_estimator_turns_signs(run: Run) -> None:
    best_only = what_if(run, "i0001", estimator="max_rl")
    assert best_only.sign_flips == 0
    turned = what_if(run, "i0001", estimator={"name": "reinforce_plus_plus"})
    rewards = np.array(REWARDS).ravel()
    up = rewards > np.repeat(rewards, np.array(LENGTHS).ravel() + 1).mean()
    was = turned.was.advantages
    want = np.mean((was > 0) & ~up | (was < 0) & up)
    assert turned.sign_flips == pytest.approx(want) and want > 0


def test_another_recipe_keeps_what_the_log_probs_were_made_with(run: Run) -> None:
    """Nothing was measured in training, and the other recipe would have: the objective alone is taken."""
    other = what_if(run, "i0001", recipe="measured").would_be
    assert other.numbers == pytest.approx(
        what_if(run, "i0001", loss="grpo").would_be.numbers, nan_ok=True
    )


def test_what_is_missing_is_said_in_one_sentence(run: Run) -> None:
    with pytest.raises(RollbookError, match="no log-probs of the reference policy") as caught:
        what_if(run, "i0001", recipe="kl")
    assert "kl_coef: 0" in caught.value.hint
    with pytest.raises(RollbookError, match=r"compute_advantages\.kl_coef takes a KL to it off"):
        what_if(run, "i0001", recipe="kl_in_reward")
    with pytest.raises(ConfigError, match="reads the values of a critic") as caught_too:
        what_if(run, "i0001", estimator="gae")
    assert "PreparePrompts" not in str(caught_too.value)
    with pytest.raises(ArtifactError, match="process_supervision"):
        what_if(run, "i0001", estimator="process_supervision")
    with pytest.raises(ConfigError, match="cap"):
        what_if(run, "i0001", loss="cispo")
    with pytest.raises(ConfigError, match="greedy"):
        what_if(run, "i0001", estimator="remax")


def test_an_objective_that_chooses_keeps_fewer_rollouts(run: Run) -> None:
    found = what_if(run, "i0001", loss="sft", estimator={"name": "best", "keep": 2})
    assert len(found.was.advantages) == 12
    np.testing.assert_array_equal(found.would_be.advantages, [1, 1, 1, 1])
    assert found.would_be.numbers["kept groups"] == 2
    for was, would_be in zip(found.was.lengths, found.would_be.lengths, strict=True):
        assert (was.least, was.most, was.tokens) == (would_be.least, would_be.most, would_be.tokens)
    assert sum(part.gradient for part in found.would_be.lengths) == pytest.approx(1)
    result = _run("i0001", "--loss", "sft", "--estimator", "best")
    assert result.exit_code == 0, result.output
    with pytest.raises(RollbookError, match="chooses none of the rollouts"):
        what_if(run, "i0001", loss="sft", estimator={"name": "best", "min_reward": 9.0})
    with pytest.raises(RollbookError, match="loss dpo compares with them"):
        what_if(run, "i0001", loss="dpo", estimator="pairs")
    with pytest.raises(ConfigError, match="loss dpo trains on pairs, and estimator group"):
        what_if(run, "i0001", loss="dpo")


def _put(tables: dict[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts tables in the place of those on disk."""
    checked = StoredTable.checked
    monkeypatch.setattr(StoredTable, "checked", lambda self: tables.get(self.path) or checked(self))


def test_pairs_of_stored_rollouts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With log-probs of a reference at hand: the best against the worst of two groups."""
    rollouts, _ = read_table(path_of("rollouts", "i0001"), "rollouts")
    measured = [
        {
            **{name: row[name] for name in IDS},
            "ref_logprobs": row["sampling_logprobs"],
            "old_logprobs": None,
            "values": None,
            "entropies": None,
        }
        for row in rollouts.to_pylist()
    ]
    made = {path_of("logprobs", "i0001"): table("logprobs", measured)}

    _put(made, monkeypatch)
    found = what_if(run, "i0001", loss="dpo", estimator="pairs")
    np.testing.assert_array_equal(found.would_be.advantages, [1, -1, 1, -1])
    assert found.would_be.numbers["kept groups"] == 2
    assert found.sign_flips == 0 and found.would_be.numbers["loss"] > 0


def test_a_critic_is_there_if_its_values_were_stored(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run.params.recipes["grpo"]
    estimator = {"name": "gae", "whiten": False}
    ppo = Recipe.model_validate(
        {
            **{name: getattr(own, name) for name in type(own).model_fields},
            "compute_advantages": {"estimator": estimator},
            "update_policy": own.update_policy.model_copy(
                update={"critic": build("critics", "head")}
            ),
        }
    )
    both, trained = Run(), Run()
    both.params = run.params.model_copy(update={"recipes": {**run.params.recipes, "ppo": ppo}})
    trained.params = run.params.model_copy(update={"recipes": {**run.params.recipes, "grpo": ppo}})
    with pytest.raises(ConfigError, match="estimator gae reads the values of a critic"):
        what_if(both, "i0001", estimator="gae")
    with pytest.raises(RollbookError, match="i0001 has no values of a critic, and estimator gae"):
        what_if(both, "i0001", recipe="ppo")
    stored = {
        kind: read_table(path_of(kind, "i0001"), kind)[0] for kind in ("rollouts", "advantages")
    }
    told = taught(stored)
    made = {path_of(kind, "i0001"): told[kind] for kind in ("logprobs", "advantages")}

    _put(made, monkeypatch)
    found = what_if(both, "i0001", recipe="ppo")  # V is 0: the advantage is the reward
    np.testing.assert_allclose(found.would_be.advantages, np.concatenate(REWARDS), atol=1e-6)
    found = what_if(trained, "i0001", estimator="group")
    assert found.would_be.numbers["informative groups"] == 2


def test_the_command(run: Run) -> None:
    result = _run("i0001", "--loss", "{name: cispo, cap: 5.0}", "--estimator", "leave_one_out")
    assert result.exit_code == 0, result.output
    assert "i0001 as it was (grpo)" in result.output
    assert "effective sample size" in result.output and "4 of 12 kept rollouts" in result.output
    errors = str(_run("i001").exception)
    assert "did you mean 'i0001'?" in errors and "say what should be otherwise" in errors
    assert "--loss" in str(_run("i0001", "--loss", "{name: ").exception)


def test_missing_tables_and_missing_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RollbookError, match="torch is not installed"):
        what_if(run, "i0001", loss="gspo")
    monkeypatch.setattr("rollbook.views.what_if.TABLES", ("prompts", "evaluations"))
    with pytest.raises(ArtifactError, match="does not exist"):
        what_if(run, "i0001", loss="gspo")
