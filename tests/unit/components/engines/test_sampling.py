import math

import numpy as np
import pytest
import torch

from rollbook.components.engines.base import Sampling
from rollbook.components.engines.sampling import (
    IN_CACHE,
    choose,
    next_tokens,
    sampling_logprobs,
    uniforms,
)

# Probabilities 0.4 0.3 0.2 0.1, in an order that is not sorted.
PROBABILITIES = torch.tensor([[0.2, 0.4, 0.1, 0.3]])
LOGITS = PROBABILITIES.log() + 5.0
SAMPLED = torch.tensor([False])


def _probabilities(**sampling: float) -> list[float]:
    logprobs = sampling_logprobs(LOGITS, Sampling.model_validate(sampling))
    assert logprobs.dtype == torch.float32
    return [round(value, 5) for value in logprobs.exp()[0].tolist()]


def test_uniforms_are_splitmix64_of_seed_and_position() -> None:
    # Java's SplittableRandom and the reference C code give for seed 1234567:
    # 6457827717110365317, 3203168211198807973, 9817491932198370423 (the first outputs).
    # Here the state is mix(seed), so position p of a row is output p+1 of a generator started at mix(seed).
    def mixed(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    assert mixed(1234567 + 0x9E3779B97F4A7C15) == 6457827717110365317
    for position in (0, 1, 511):
        counter = (mixed(1234567) + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
        got = uniforms(np.array([1234567], dtype=np.int64), position)
        assert got[0] == (mixed(counter) >> 11) / 2**53


def test_uniforms_of_many_seeds_and_positions_are_uniform_and_unrelated() -> None:
    seeds = np.arange(20_000, dtype=np.int64)
    first, second = uniforms(seeds, 0), uniforms(seeds, 1)
    assert first.min() >= 0
    assert first.max() < 1
    # Mean 1/2 ± 4·sqrt(1/12/20000) = ± 0.008; correlations ± 4/sqrt(20000) = ± 0.028.
    assert abs(first.mean() - 0.5) < 0.008
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.028
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.028
    # 20 bins of 1000 each: chi-squared with 19 degrees of freedom stays below 43.8 in 99.9 % of cases.
    counts = np.histogram(first, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8


def test_a_uniform_depends_on_its_own_seed_alone() -> None:
    seeds = np.array([7, 2**62, 0, 7], dtype=np.int64)
    together = uniforms(seeds, 3)
    assert together[0] == together[3]
    assert together[1] == uniforms(seeds[1:2], 3)[0]


def test_temperature_divides_logits() -> None:
    assert _probabilities() == [0.2, 0.4, 0.1, 0.3]
    # p^2 / Σ p^2 with Σ p^2 = 0.04 + 0.16 + 0.01 + 0.09 = 0.3
    assert _probabilities(temperature=0.5) == [
        round(value / 0.3, 5) for value in (0.04, 0.16, 0.01, 0.09)
    ]


def test_top_k_keeps_the_k_likeliest_renormalised() -> None:
    assert _probabilities(top_k=2) == [0, round(4 / 7, 5), 0, round(3 / 7, 5)]
    assert _probabilities(top_k=1) == [0, 1, 0, 0]
    assert _probabilities(top_k=9) == [0.2, 0.4, 0.1, 0.3]


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    assert _probabilities(top_p=0.39) == [0, 1, 0, 0]
    assert _probabilities(top_p=0.41) == [
        0,
        round(4 / 7, 5),
        0,
        round(3 / 7, 5),
    ]  # 0.4 does not reach
    assert _probabilities(top_p=0.71) == [round(2 / 9, 5), round(4 / 9, 5), 0, round(3 / 9, 5)]
    assert _probabilities(top_p=1e-6) == [0, 1, 0, 0]  # never nothing


def test_min_p_is_a_share_of_the_likeliest() -> None:
    # 0.6·0.4 = 0.24: only 0.4 and 0.3 stay.
    assert _probabilities(min_p=0.6) == [0, round(4 / 7, 5), 0, round(3 / 7, 5)]


def test_top_p_is_measured_on_what_top_k_left() -> None:
    # After top_k 3 the masses are 4/9, 3/9, 2/9; 0.75 < 7/9, so the third goes.
    # Measured on all tokens it would stay: 0.7 < 0.75.
    assert _probabilities(top_k=3, top_p=0.75) == [0, round(4 / 7, 5), 0, round(3 / 7, 5)]


@pytest.mark.parametrize(
    ("uniform", "token"),
    # CDF in the order of ids: 0.2, 0.6, 0.7, 1.0
    [(0.0, 0), (0.1999, 0), (0.2001, 1), (0.5999, 1), (0.6001, 2), (0.7001, 3), (1 - 2**-53, 3)],
)
def test_a_token_is_where_its_cdf_passes_the_uniform(uniform: float, token: int) -> None:
    logprobs = sampling_logprobs(LOGITS, Sampling())
    ids, chosen = choose(logprobs, torch.tensor([uniform], dtype=torch.float64), SAMPLED)
    assert ids.tolist() == [token]
    assert chosen[0] == logprobs[0, token]


def test_a_token_cut_away_is_never_chosen() -> None:
    logprobs = sampling_logprobs(LOGITS, Sampling(top_k=2))
    for uniform in (0.0, 4 / 7 - 1e-9, 4 / 7 + 1e-9, 1 - 2**-53):
        ids, chosen = choose(logprobs, torch.tensor([uniform], dtype=torch.float64), SAMPLED)
        assert ids.item() in (1, 3)
        assert math.isfinite(chosen.item())


def test_greedy_rows_take_the_likeliest_beside_sampled_rows() -> None:
    logprobs = sampling_logprobs(LOGITS.expand(2, 4), Sampling())
    ids, chosen = choose(
        logprobs, torch.tensor([0.99, 0.99], dtype=torch.float64), torch.tensor([True, False])
    )
    assert ids.tolist() == [1, 3]
    assert chosen.exp().tolist() == pytest.approx([0.4, 0.3])


def test_frequencies_follow_the_distribution() -> None:
    seeds = np.arange(20_000, dtype=np.int64)
    logprobs = sampling_logprobs(LOGITS.expand(len(seeds), 4), Sampling())
    ids, _ = choose(
        logprobs, torch.from_numpy(uniforms(seeds, 5)), torch.zeros(len(seeds), dtype=torch.bool)
    )
    shares = np.bincount(ids.numpy(), minlength=4) / len(seeds)
    # Standard error at most sqrt(0.24/20000) = 0.0035; four of them.
    assert np.abs(shares - np.array([0.2, 0.4, 0.1, 0.3])).max() < 0.014


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 9}, {"top_p": 0.5}])
def test_rows_in_parts_are_chosen_as_rows_at_once(sampling: dict[str, float]) -> None:
    settings, rows = Sampling.model_validate(sampling), 25
    logits = 3 * torch.randn(rows, IN_CACHE // 4 + 1, generator=torch.Generator().manual_seed(0))
    uniform, greedy = torch.from_numpy(uniforms(np.arange(rows), 0)), torch.arange(rows) % 5 == 0
    ids, logprobs = next_tokens(logits, settings, uniform, greedy)
    whole = sampling_logprobs(logits, settings)
    expected, own = choose(whole, uniform, greedy)
    assert torch.equal(ids, expected)
    # Rows at once and in parts may add up the exponentials of a row in another order. That moves their sum, and so a
    # log-prob, by about √16,385 · 2^-24 = 8e-6.
    torch.testing.assert_close(logprobs, own, rtol=0, atol=1e-5)
    # The definition, without a search: how many tokens' CDF is not above the uniform's share of the total.
    cdf = (whole.double().exp() * 2.0**50).long().cumsum(-1)
    counted = (cdf <= (uniform[:, None] * cdf[:, -1:]).floor().long()).sum(-1)
    assert torch.equal(ids, whole.argmax(-1).where(greedy, counted))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("greedy", [True, False])
def test_probabilities_that_are_no_numbers_show_in_the_logprob(broken: float, greedy: bool) -> None:
    logits = LOGITS.expand(2, 4).clone()
    logits[1, 2] = broken
    _, logprobs = next_tokens(
        logits, Sampling(), torch.full((2,), 0.99, dtype=torch.float64), torch.tensor([greedy] * 2)
    )
    assert logprobs.isnan().tolist() == [False, True]
