"""The tokens that are marked as clipped are those that the loss itself, with torch, says are."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.components.losses.base import LossInputs
from rollbook.project.curve_words import USUAL_CLIPPING
from rollbook.settings.recipe_sections import UpdatePolicy
from rollbook.views.show.clipping import Objective, clipping_in_words, with_clips, with_ratios
from rollbook.views.show.facts import Token

torch = pytest.importorskip("torch")

LOSSES: list[dict[str, Any]] = [
    {"name": "dapo"},
    {"name": "grpo", "clip_low": 0.1, "delta": 1.5},
    {"name": "grpo", "clip_low": 0.1, "delta": 0.8},
    {"name": "clip_cov"},
    {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
    {"name": "rloo"},
    {"name": "cispo", "cap": 1.4, "floor": 0.7},
    {"name": "gmpo", "clip_low": 0.2, "clip_high": 0.3},
    {"name": "dppo", "clip_low": 0.1, "clip_high": 0.05},
    {"name": "dppo", "divergence": "kl", "clip_low": 0.03, "clip_high": 0.02},
]
SIZE = 24


def tokens_and_flags(
    loss: dict[str, Any], advantage: float, seed: int
) -> tuple[list[Token], list[str], Objective]:
    """A row with random log-probs, the first and the last token not trained on, and what the loss clips of it."""
    objective = Objective.of({"update": {"loss": loss, "old_logprobs": "sampling"}})
    assert objective.update is not None and objective.words
    rng = np.random.default_rng(seed)
    old = -rng.exponential(1.0, SIZE).astype(np.float32)
    policy = np.minimum(old + rng.normal(0, 0.3, SIZE), -1e-3).astype(np.float32)
    mask = np.ones(SIZE, bool)
    mask[[0, -1]] = False
    outputs = objective.update.loss(
        LossInputs(
            policy_logprobs=torch.from_numpy(policy)[None].requires_grad_(),
            advantages=torch.tensor([[advantage]]),
            loss_mask=torch.from_numpy(mask)[None],
            window_rows=1,
            window_tokens=SIZE - 2,
            max_completion_tokens=SIZE,
            old_logprobs=torch.from_numpy(old)[None],
        )
    )
    low, high = outputs.clipped_low[0].tolist(), outputs.clipped_high[0].tolist()
    flags = ["low" if a else "high" if b else "" for a, b in zip(low, high, strict=True)]
    tokens = [
        Token(
            place=place,
            id=place,
            text=None,
            special=None,
            trained=bool(mask[place]),
            sampling_logprob=float(old[place]),
            policy_logprob=float(policy[place]),
        )
        for place in range(SIZE)
    ]
    return with_ratios(tokens, objective), flags, objective


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_marks_are_those_of_the_loss(loss: dict[str, Any], advantage: float) -> None:
    clipped = 0
    for seed in range(5):
        tokens, flags, objective = tokens_and_flags(loss, advantage, seed)
        share = sum(map(bool, flags)) / (SIZE - 2)
        marked = with_clips(tokens, advantage, share, objective)
        assert [token.clipped for token in marked] == flags
        clipped += sum(map(bool, flags))
    # A delta between the bounds leaves nothing for the upper one.
    assert clipped or (advantage > 0 and loss.get("delta") == 0.8)


OWN = """
from rollbook.components.losses.base import Loss, PolicyTerm


class Halved(Loss):
    '''A bound above that is half as far.'''

    slack: float = 0.3

    def ratio_bounds(self):
        return 1 - self.slack, 1 + self.slack / 2

    def policy_term(self, tokens):
        low, high = self.ratio_bounds()
        return PolicyTerm(
            -tokens.ratio * tokens.advantages,
            (tokens.ratio < low) & (tokens.advantages < 0),
            (tokens.ratio > high) & (tokens.advantages > 0),
        )
"""


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_loss_of_ones_own_marks_by_its_bounds(tmp_path: Path, advantage: float) -> None:
    (tmp_path / "halved.py").write_text(OWN)
    loss = {"path": f"{tmp_path}/halved.py:Halved", "slack": 0.2}
    tokens, flags, objective = tokens_and_flags(loss, advantage, 0)
    share = sum(map(bool, flags)) / (SIZE - 2)
    assert any(flags)
    assert [token.clipped for token in with_clips(tokens, advantage, share, objective)] == flags


def test_nothing_is_marked_where_the_update_saw_another_share() -> None:
    tokens, flags, objective = tokens_and_flags({"name": "dapo"}, 1.0, 0)
    share = sum(map(bool, flags)) / (SIZE - 2)
    for wrong in (share + 1 / (SIZE - 2), None):
        marked = with_clips(tokens, 1.0, wrong, objective)
        assert all(token.clipped is None for token in marked)


def test_nothing_is_marked_for_a_loss_that_clips_otherwise() -> None:
    tokens, _, objective = tokens_and_flags({"name": "vespo"}, 1.0, 0)
    assert all(token.clipped is None for token in with_clips(tokens, 1.0, 0.5, objective))


def test_a_ratio_needs_what_it_was_taken_against() -> None:
    token = Token(0, 1, None, None, True, -1.0, policy_logprob=-0.5)
    measured = Objective.of({"update": {"loss": {"name": "dapo"}, "optimizer_steps": 2}})
    assert with_ratios([token], measured)[0].ratio is None
    single = Objective.of({"update": {"loss": {"name": "dapo"}, "optimizer_steps": 1}})
    assert with_ratios([token], single)[0].ratio == 1.0
    gone = Objective.of({"update": {"loss": {"name": "no_such_loss"}}})
    assert gone.update is None and gone.name == "no_such_loss"
    assert with_ratios([token], gone)[0].ratio is None


def test_a_loss_without_a_ratio_shows_none_unless_there_is_one_to_compare_with() -> None:
    token = Token(0, 1, None, None, True, -1.0, policy_logprob=-0.5)
    update = {"loss": {"name": "dpo"}, "optimizer_steps": 2}
    alone = Objective.of({"update": update})
    assert not alone.has_ratio and with_ratios([token], alone)[0].ratio is None
    beside = Objective.of({"update": {**update, "old_logprobs": "sampling"}})
    assert with_ratios([token], beside)[0].ratio == pytest.approx(math.exp(0.5))


def test_a_large_clip_share_is_usual_where_ratios_are_of_whole_answers() -> None:
    def told(**loss: Any) -> str:
        update = UpdatePolicy.model_validate({"loss": loss})
        return clipping_in_words(update.model_dump(mode="json", serialize_as_any=True)["loss"])

    assert told(name="gspo", clip_low=3e-4, clip_high=4e-4) == (
        f"ratio sequence_mean, clip_low 0.0003, clip_high 0.0004: {USUAL_CLIPPING}"
    )
    assert told(name="dapo") == "" and clipping_in_words({}) == ""
