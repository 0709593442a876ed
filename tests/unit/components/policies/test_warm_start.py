import math
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.components.policies import warm_start as module
from rollbook.components.policies.base import WarmStartExample
from rollbook.components.policies.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID
from rollbook.components.policies.warm_start import Pair, encoded, warm_start

PAIRS = [Pair([1, 4, 10 + place, 5], [20 + place, 2]) for place in range(8)]


def _example(text: str, answer: str | None) -> WarmStartExample:
    return WarmStartExample([{"role": "user", "content": text}], answer)


class Recorder(torch.nn.Module):
    """Predicts the same distribution everywhere, and keeps what it is shown."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(64))
        self.seen: list[tuple[list[list[int]], list[list[int]]]] = []

    def forward(self, input_ids: Any, labels: Any) -> Any:
        self.seen.append((input_ids.tolist(), labels.tolist()))
        loss = torch.nn.functional.cross_entropy(
            self.logits.expand(*labels.shape, 64).transpose(1, 2), labels, ignore_index=-100
        )
        return type("Output", (), {"loss": loss})


def _trained(**options: Any) -> Recorder:
    model = Recorder()
    settings = {"steps": 40, "batch_size": 16, "learning_rate": 0.1, "wrong_share": 0.5, "seed": 3}
    warm_start(model, PAIRS, **{**settings, **options})
    return model


def _wrong_shares(model: Recorder) -> list[float]:
    """Share of rows of each batch whose answer is not their prompt's."""
    return [float(np.mean([row[4] != row[2] + 10 for row in ids])) for ids, _ in model.seen]


def test_prompts_are_rendered_and_answers_end() -> None:
    pairs = encoded([_example("5+7=", "12"), _example("no answer", None)], 100)
    (pair,) = pairs
    assert pair.prompt[0] == BOS_ID
    assert len(pair.prompt) == 1 + 1 + 4 + 1  # BOS, user, "5+7=", assistant
    assert len(pair.answer) == 3
    assert pair.answer[-1] == EOS_ID


def test_prompts_that_leave_no_room_for_any_answer_are_left_out() -> None:
    examples = [_example("a" * 10, "1"), _example("b", "12345")]
    # 13 tokens of prompt and at most 5 + 1 of an answer, its own or the other's.
    assert len(encoded(examples, 19)) == 2
    assert len(encoded(examples, 18)) == 1
    assert encoded([], 19) == []


def test_answers_are_right_at_first_and_partly_wrong_later() -> None:
    shares = _wrong_shares(_trained())
    assert shares[:20] == [0.0] * 20
    # Half of 320 rows get a random answer, one in eight of which is right by chance: 0.4375 ± 4·0.028.
    assert abs(np.mean(shares[20:]) - 0.4375) < 0.11
    assert not any(_wrong_shares(_trained(wrong_share=0.0)))


def test_only_answers_are_learned() -> None:
    ids, labels = (np.array(part) for part in _trained().seen[0])
    assert (labels[:, :4] == -100).all()
    assert (labels[:, 4:] == ids[:, 4:]).all()


def test_rows_are_padded_on_the_right_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [Pair([1, 7], [9, 9, 2]), Pair([1, 7, 7, 7], [8, 2])]
    ids, labels = module._batch(pairs, [(0, 0), (1, 1), (0, 1)])
    assert ids.tolist() == [
        [1, 7, 9, 9, 2, PAD_ID],
        [1, 7, 7, 7, 8, 2],
        [1, 7, 8, 2, PAD_ID, PAD_ID],
    ]
    assert labels.tolist() == [
        [-100, -100, 9, 9, 2, -100],
        [-100, -100, -100, -100, 8, 2],
        [-100, -100, 8, 2, -100, -100],
    ]


def test_long_prompts_make_batches_smaller() -> None:
    long = [Pair([1] * 5000, [2])]
    model = Recorder()
    warm_start(model, long, steps=1, batch_size=128, learning_rate=0.1, wrong_share=0, seed=0)
    assert len(model.seen[0][0]) == 3  # 16384 // 5001


def test_the_seed_decides_what_is_seen() -> None:
    assert _trained().seen == _trained().seen
    assert _trained(seed=4).seen != _trained().seen
    assert _trained(seed=-1).seen != _trained().seen


def test_it_learns_and_reports_its_last_loss() -> None:
    model = Recorder()
    arguments: Any = {"batch_size": 16, "learning_rate": 0.1, "wrong_share": 0.5, "seed": 3}
    first = warm_start(model, PAIRS, steps=1, **arguments)
    assert first == pytest.approx(math.log(64))
    assert warm_start(model, PAIRS, steps=60, **arguments) < math.log(64) - 0.1
    assert not model.training


def test_matrices_and_the_rest_are_trained_by_different_optimizers() -> None:
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(5, 4),
            "inside": torch.nn.Linear(4, 4),
            "norm": torch.nn.RMSNorm(4),
        }
    )
    muon, adam = module._optimizers(model, 0.02)
    assert isinstance(muon, torch.optim.Muon)
    assert [tuple(p.shape) for p in muon.param_groups[0]["params"]] == [(4, 4)]
    assert sorted(tuple(p.shape) for p in adam.param_groups[0]["params"]) == [(4,), (4,), (5, 4)]
    assert muon.param_groups[0]["lr"] == 0.02


def test_without_examples_nothing_happens() -> None:
    model = Recorder()
    arguments: Any = {"batch_size": 16, "learning_rate": 0.1, "wrong_share": 0.5, "seed": 3}
    assert math.isnan(warm_start(model, [], steps=5, **arguments))
    assert math.isnan(warm_start(model, PAIRS, steps=0, **arguments))
    assert model.seen == []


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [module._schedule(step, 100) for step in range(100)]
    # Step 0: a fifth of the warm-up of 5 steps; the cosine has hardly begun.
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[4]
    assert rates[4] == pytest.approx(1.0, abs=0.01)
    assert rates[50] == pytest.approx(0.05 + 0.95 * 0.5)
    assert rates[99] == pytest.approx(0.05, abs=0.001)
    assert rates[5:] == sorted(rates[5:], reverse=True)
