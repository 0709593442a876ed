import numpy as np
import pytest
import torch

from rollbook.components.losses.masks import on_policy, top_entropy


def test_the_most_uncertain_tokens_ties_included() -> None:
    entropies = np.array([0.1, 0.9, 0.5, 9.0, 0.5, 0.3])
    trained = np.array([True, True, True, False, True, True])
    # of [0.1, 0.3, 0.5, 0.5, 0.9] the 0.6-quantile is the place 2.4: between 0.5 and 0.5
    assert top_entropy(entropies, trained, 0.4).tolist() == [0, 1, 1, 0, 1, 0]
    # place 3.2: 0.5 + 0.2 * 0.4
    assert top_entropy(entropies, trained, 0.2).tolist() == [0, 1, 0, 0, 0, 0]
    assert top_entropy(entropies, trained, 1.0).tolist() == trained.tolist()
    assert top_entropy(entropies, trained, 0.0).tolist() == [0, 1, 0, 0, 0, 0]


def test_nothing_to_choose_from_is_nothing() -> None:
    assert not top_entropy(np.array([np.nan, 1.0]), np.zeros(2, bool), 0.5).any()
    assert top_entropy(np.empty(0), np.empty(0, bool), 0.5).shape == (0,)
    assert top_entropy(np.array([1.0]), np.ones(1, bool), 0.2).tolist() == [True]


def test_the_token_that_is_the_threshold_is_kept_whatever_the_precision() -> None:
    # 0.1 is larger in float32 than in float64: compared across precisions it would be below itself.
    entropies = np.array([0.1, 0.05, 0.02])
    assert top_entropy(entropies, np.ones(3, bool), 0.0).tolist() == [1, 0, 0]
    assert top_entropy(entropies, np.ones(3, bool), 0.5).tolist() == [1, 1, 0]


@pytest.mark.parametrize("share", [0.2, 0.35, 0.45, 0.5, 0.9])
def test_agrees_with_the_quantile_of_torch(share: float) -> None:
    generator = np.random.default_rng(0)
    for count in range(1, 120):
        entropies = generator.integers(0, 40, count) / 16
        trained = generator.random(count) < 0.8
        if trained.any():
            values = torch.from_numpy(entropies).float()
            threshold = torch.quantile(values[torch.from_numpy(trained)], 1 - share)
            want = (values >= threshold).numpy() & trained
            assert top_entropy(entropies, trained, share).tolist() == want.tolist()


def test_a_row_is_dropped_only_if_bad_and_drifted() -> None:
    policy = torch.tensor([[-1.0, -1.0, 0.0]] * 3)
    sampling = torch.tensor([[-0.8, -0.6, 0.0], [-0.8, -0.6, 0.0], [-1.0, -0.9, 0.0]])
    mask = torch.tensor([[True, True, False]] * 3)
    advantages = torch.tensor([[-1.0], [1.0], [-1.0]])
    # drifts of (0.2 + 0.4) / 2, the same, and 0.1 / 2
    keep = on_policy(policy, sampling, advantages, mask, 0.2)
    assert keep[:, 0].tolist() == [False, True, True]
    assert keep.shape == (3, 3)
    assert on_policy(policy, sampling, advantages, mask, 0.31).all()
