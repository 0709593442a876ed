r"""math_answer: 1 if the completion's answer equals the reference mathematically, else 0.

Fractions, decimals, percent (50% = 0.5 = 50), roots, intervals, sets, matrices, equations, units and LaTeX are compared
by math-verify 0.9 (Hugging Face, on SymPy). The answer is taken from behind the last `</think>`, then from
`<answer>…</answer>` if there is one, then as `math_equality.py` says: the last `\boxed{…}`, a text that is an
expression as a whole, or the last one found. A thought that was opened, by the prompt or the completion, and not closed
has no answer.

Answers are compared in a child process that is ended at `limit`: correct in threads and in worker processes, and also
for arithmetic that nothing else can interrupt. What a completion causes is its own fault: an answer that takes too
long, such as `9^{9^{9}}`, is wrong and scores 0. A reference answer that cannot be read, or takes too long, is an error
of the row. Where there is no reference answer, the reward does not apply.

Logged are `<label>_answer`, the answer as it was read, and `<label>_reason`, why nothing was compared.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollbook.components.rewards.answers import behind_thought, tagged_answer
from rollbook.components.rewards.base import Reward, RewardInput, RewardResult
from rollbook.components.rewards.math_child import compare, start


class MathAnswer(Reward):
    r"""Compares mathematics.

    Attributes:
        where: `anywhere`, or `boxed`: only what stands in `\boxed{…}` counts. Anywhere, the last number of a text that
            tries many is its answer; boxed, a guess has to be meant.
        limit: seconds of processor time for one answer, so that a busy machine changes no verdict; `time_limit` is
            not needed beside it. Default: that of math-verify.
    """

    where: Literal["anywhere", "boxed"] = "anywhere"
    limit: Annotated[float, Field(gt=0, le=3600)] = 5.0

    def prepare(self) -> None:
        start()

    def __call__(self, row: RewardInput) -> RewardResult:
        if row.reference_answer is None:
            return RewardResult(None)
        text = behind_thought(row.text, row.prompt)
        tagged = tagged_answer(text)
        verdict = compare(
            row.reference_answer,
            text if tagged is None else tagged,
            self.where == "boxed",
            self.limit,
        )
        label = self.title
        logged = {"answer": verdict.answer, "reason": verdict.reason}
        return RewardResult(
            float(verdict.equal),
            log={f"{label}_{name}": text for name, text in logged.items() if text is not None},
        )
