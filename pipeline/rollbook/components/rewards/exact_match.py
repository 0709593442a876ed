"""exact_match: 1 if the completion's clean text equals the reference answer, else 0.

Both sides are normalised the same way first; `extract` cuts the answer out of the completion, not out of the
reference. Where there is no reference answer, the reward does not apply.
"""

from __future__ import annotations

import re

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.patterns import ExtractingRegex


class ExactMatch(Reward):
    """Compares texts.

    Attributes:
        strip: leave out space around both texts.
        ignore_case: compare case-folded (`Straße` = `STRASSE`).
        collapse_whitespace: count any run of white space as one space.
        extract: regular expression (`.` also matches line ends) whose one group is the answer; the last place where it
            matches counts, and a completion without one scores 0. `re` has no time limit, see `patterns.py`.
    """

    strip: bool = True
    ignore_case: bool = False
    collapse_whitespace: bool = False
    extract: ExtractingRegex | None = None

    def __call__(self, row: RewardInput) -> float | None:
        if row.reference_answer is None:
            return None
        answer = self._extracted(row.text)
        return float(
            answer is not None
            and self._normalised(answer) == self._normalised(row.reference_answer)
        )

    def _extracted(self, text: str) -> str | None:
        if self.extract is None:
            return text
        found = re.findall(self.extract, text, re.DOTALL)  # re keeps compiled patterns
        return found[-1] if found else None

    def _normalised(self, text: str) -> str:
        if self.collapse_whitespace:
            text = re.sub(r"\s+", " ", text)
        if self.ignore_case:
            text = text.casefold()
        return text.strip() if self.strip else text
