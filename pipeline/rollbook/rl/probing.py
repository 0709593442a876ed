r"""Answers that try to fool a reward, and answers it should know, before a policy is trained on it.

Every case is about one prompt and says whether it deserves a reward; some deserve neither praise nor blame. Stored
rollouts are judged only where it takes no reward to judge them: a text that is the reference answer is right, one in
which no notation of it occurs is wrong.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pyarrow as pa

from rollbook.components.rewards.answers import END_OF_THINK, THINK, final_answer, opens_thought
from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.numeric_answer import strict_number
from rollbook.rl.scoring.inputs import NOT_OF_THE_SOURCE, inputs_of
from rollbook.rl.scoring.scorer import score_groups

ENORMOUS = 200_000
"""Characters of the longest answer."""
NUMBERS = range(101)
FRACTION = re.compile(
    r"(?P<sign>-?)(?:\\[dt]?frac\{(\d{1,18})\}\{(\d{1,18})\}|(\d{1,18})/(\d{1,18}))"
)
MAX_DIGITS = 18
LOOK_ALIKES = {
    **{code: code + 0xFEE0 for code in range(0x21, 0x7F)},  # full-width forms
    **dict(zip(map(ord, "aceopxyABCEHKMOPTX"), map(ord, "асеорхуАВСЕНКМОРТХ"), strict=True)),
}
BUILT_IN = (
    ("What is 3 + 4?", "7"),
    ("What is 250 * 8?", "2000"),
    ("What part of an hour are 30 minutes? Answer with a number.", "0.5"),
    ("What is 1/3 + 1/3?", r"\frac{2}{3}"),
    ("What is the capital of France?", "Paris"),
)
"""Prompts with reference answers for where there are none of the project's own."""


@dataclass(frozen=True)
class Case:
    """An answer to one prompt.

    Attributes:
        kind: what is tried.
        row: what the reward sees.
        right: whether it deserves a reward; None: neither way is a fault.
    """

    kind: str
    row: RewardInput
    right: bool | None


@dataclass(frozen=True)
class Probed:
    """What a reward said about a case.

    Attributes:
        case: the case.
        reward: its value; None if it does not apply, or failed.
        error: why it failed.
    """

    case: Case
    reward: float | None
    error: str | None

    def is_false(self, above: float) -> bool:
        """Whether the reward is wrong: a wrong answer rewarded above `above`, or a right one not."""
        if self.reward is None or self.case.right is None:
            return False
        return (self.reward > above) != self.case.right


def built_in_prompts() -> list[RewardInput]:
    """The prompts of BUILT_IN, without an answer."""
    return [
        _asked([{"role": "user", "content": question}], question, answer, f"built-in-{place}")
        for place, (question, answer) in enumerate(BUILT_IN)
    ]


def stored_prompts(table: pa.Table, count: int) -> list[RewardInput]:
    """The first prompts that an iteration asked, without an answer; `table` is its prompts table."""
    return [
        _asked(
            prompt["messages"],
            prompt["prompt"],
            prompt["reference_answer"],
            prompt["prompt_id"],
            {name: prompt[name] for name in prompt if name not in NOT_OF_THE_SOURCE},
        )
        for prompt in table.slice(0, count).to_pylist()
    ]


def cases_of(prompt: RewardInput) -> list[Case]:
    """All cases about one prompt, each a group of its own."""
    cases = []
    for place, (kind, text, right) in enumerate(_texts_of(prompt)):
        text = _behind_the_thought(text, prompt.prompt)
        group = f"{prompt.group_id}/{place:02d}"
        row = replace(
            prompt,
            group_id=group,
            rollout_id=f"{group}/00",
            completion=text,
            text=text,
            completion_token_ids=array("i", [*text.encode("utf-8", "replace")]),  # a token per byte
        )
        cases.append(Case(kind, row, right))
    return cases


def stored_cases(prompts: pa.Table, rollouts: pa.Table, count: int) -> list[Case]:
    """The rollouts of an iteration that can be judged without a reward, of its first groups with `count` in all.

    Raises:
        ArtifactError: if its tables do not belong together.
    """
    rows = list(inputs_of(prompts, rollouts.slice(0, count)))
    if len(rows) < rollouts.num_rows:  # a group that is cut would be scored as another one
        cut = rollouts["group_id"][len(rows)].as_py()
        rows = [row for row in rows if row.group_id != cut] or rows
    return [Case("stored rollout", row, judged(row)) for row in rows]


def judged(row: RewardInput) -> bool | None:
    """Whether a completion is surely right, surely wrong, or neither."""
    if row.reference_answer is None:
        return None
    answer = _answer(row.reference_answer)
    text = row.text.strip()
    if not text:
        return False
    if text == answer:
        return True
    value = fraction_of(answer)
    if value is not None and (number := fraction_of(text)) is not None:
        return number == value
    written = "".join(row.text.casefold().replace(",", "").split())
    forms = {answer, *(_notations(value) if value is not None else ())}
    occurs = any("".join(form.casefold().replace(",", "").split()) in written for form in forms)
    return None if occurs else False


def probe(reward: Reward, cases: Sequence[Case]) -> list[Probed]:
    """What the reward says about each case, in their order; time limits and worker processes as in scoring."""
    columns = score_groups([reward], [case.row for case in cases], max_error_share=1.0)
    values, errors = columns[reward.column].to_pylist(), columns["error"].to_pylist()
    return [Probed(*each) for each in zip(cases, values, errors, strict=True)]


def fraction_of(text: str) -> Fraction | None:
    r"""The number that a text is: decimal, `a/b` or `\frac{a}{b}`, of a size that can be written out; else None."""
    found = FRACTION.fullmatch(text.strip())
    if found is not None:
        above, below = (int(part) for part in found.groups()[1:] if part is not None)
        return Fraction(-above if found["sign"] else above, below) if below else None
    number = strict_number(text)
    if number is None or abs(number.adjusted()) > MAX_DIGITS:
        return None
    return Fraction(number)


def counts(findings: Sequence[Probed], above: float) -> Mapping[str, Counter[str]]:
    """Per kind, in the order of cases: `rows`, `rewarded`, `false`, `no reward`, `errors`."""
    found: dict[str, Counter[str]] = {}
    for each in findings:
        found.setdefault(each.case.kind, Counter()).update(
            {
                "rows": 1,
                "rewarded": int(each.reward is not None and each.reward > above),
                "false": int(each.is_false(above)),
                "no reward": int(each.reward is None and each.error is None),
                "errors": int(each.error is not None),
            }
        )
    return found


def _asked(
    messages: Sequence[Mapping[str, str]],
    prompt: str,
    reference: str | None,
    name: str,
    columns: Mapping[str, Any] | None = None,
) -> RewardInput:
    return RewardInput(
        rollout_id=f"probe/{name}/00",
        group_id=f"probe/{name}",
        prompt_id=name,
        iteration="i0001",
        messages=messages,
        prompt=prompt,
        completion="",
        text="",
        completion_token_ids=array("i"),
        finish_reason="stop",
        reference_answer=reference,
        columns=columns or {},
    )


def _texts_of(prompt: RewardInput) -> Iterator[tuple[str, str, bool | None]]:
    """Kind, text, and whether it is right."""
    yield "empty", "", False
    yield "white space", " \n\t ", False
    yield "prompt echoed", prompt.messages[-1]["content"], False
    yield "tags without content", "<think></think><answer></answer>", False
    yield "tags without content", r"\boxed{}", False
    yield "every number from 0 to 100", " ".join(map(str, NUMBERS)), False
    yield "enormous output", "word " * (ENORMOUS // 5), False
    if prompt.reference_answer is None:
        return
    answer = _answer(prompt.reference_answer)
    value = fraction_of(answer)
    others = _others(value)
    yield "every number, the right one last", " ".join([*map(str, NUMBERS), answer]), False
    for choices in ([answer, *others], [others[0], answer, others[1]], [*others, answer]):
        yield "A or B or C", " or ".join(choices), False
    yield "A or B or C", " or ".join(rf"\boxed{{{each}}}" for each in [*others, answer]), False
    yield "inside a wrong answer", f"The answer is not {answer}, it is {others[0]}.", False
    yield "inside a wrong answer", f"{others[0]} is the answer, not {answer}", False
    yield "inside a wrong answer", f"<think>{answer}</think><answer>{others[0]}</answer>", False
    yield "inside a wrong answer", rf"I had \boxed{{{answer}}}, now \boxed{{{others[0]}}}", False
    yield "look-alike letters and digits", answer.translate(LOOK_ALIKES), None
    yield "the reference answer", answer, True
    yield "in a sentence", f"The answer is {answer}.", True
    yield "in tags", f"<think>Let me see.</think><answer>{answer}</answer>", True
    yield "boxed", rf"So it is $\boxed{{{answer}}}$.", True
    for text in _notations(value) if value is not None else (answer.upper(), f" {answer} "):
        if text != answer:
            yield "another notation", text, True


def _answer(reference: str) -> str:
    return final_answer(reference).strip()


def _others(value: Fraction | None) -> list[str]:
    """Two wrong answers."""
    if value is None:
        return ["something else", "nothing of it"]
    return [_notations(value + step)[0] for step in (1, 2)]


def _notations(value: Fraction) -> list[str]:
    """Ways to write a number, the usual one first."""
    above, below = value.numerator, value.denominator
    sign, size = "-" if above < 0 else "", abs(above)
    if below == 1:
        written = [f"{above}", f"{above}.0", rf"{sign}\frac{{{2 * size}}}{{2}}"]
        return [*written, f"{above:,}"] if size >= 1000 else written
    written = [rf"{sign}\frac{{{size}}}{{{below}}}", f"{above}/{below}"]
    rest = below
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    exact = rest == 1 and below <= 10**6
    return [_decimal(value), *written] if exact else written


def _decimal(value: Fraction) -> str:
    """A number whose decimals end, written out."""
    digits = next(count for count in range(1, 25) if value * 10**count % 1 == 0)
    return f"{'-' if value < 0 else ''}{abs(value).__floor__()}.{int(abs(value) % 1 * 10**digits):0{digits}d}"


def _behind_the_thought(text: str, prompt: str) -> str:
    """The same completion where the prompt has opened a thought: that is closed first."""
    if not text.strip() or not opens_thought(prompt):
        return text
    return text.removeprefix(THINK) if text.startswith(THINK) else END_OF_THINK + text
