"""repetition_penalty: a penalty for n-grams of tokens that come again in the completion.

    max_penalty · (1 − distinct n-grams / all n-grams)       0 for completions shorter than n

arXiv 2502.03373, appendix C.2, in TRL's form (`get_repetition_penalty_reward`): one number for the completion, where
the paper charges each repeated token. GRPO has no such term.
"""

from __future__ import annotations

from pydantic import NonPositiveFloat, PositiveInt

from rollbook.components.rewards.base import Reward, RewardInput


class RepetitionPenalty(Reward):
    """Looks at token ids, so it does not depend on the language.

    Attributes:
        ngram_size: tokens of an n-gram.
        max_penalty: what a completion that only repeats itself comes near to.
    """

    ngram_size: PositiveInt = 3
    max_penalty: NonPositiveFloat = -1.0

    def __call__(self, row: RewardInput) -> float:
        ids = row.completion_token_ids
        ngrams = list(zip(*(ids[start:] for start in range(self.ngram_size)), strict=False))
        distinct = len(set(ngrams))
        if distinct == len(ngrams):
            return 0.0
        return self.max_penalty * (1 - distinct / len(ngrams))
