r"""Where the answer stands in a completion: behind the thought, between answer tags, in a `\boxed{…}`.

And in a reference answer: behind `####`, where the reference is a whole solution as in GSM8K (arXiv 2110.14168).
"""

from __future__ import annotations

import re

THINK, END_OF_THINK = "<think>", "</think>"
ANSWER, END_OF_ANSWER = "<answer>", "</answer>"
BOX = r"\boxed{"
ANSWER_MARK = "####"
MARKED_NUMBER = re.compile(r"(?P<sign>[+\-−]?)[$€£]?(?P<number>[.\d][\d,.]*?)\.?")
"""What people write behind the mark: a number with a currency sign before it and a full stop after it."""
ESCAPED_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
BETWEEN_BOXES = re.compile(r"(?:[\s,;$]|and\b|or\b)*+", re.IGNORECASE)
"""`\\boxed{1}, \\boxed{2} and \\boxed{3}` is one answer of three parts."""


def opens_thought(prompt: str) -> bool:
    """Whether the prompt ends with `<think>` (many chat templates do), so that the completion begins inside it."""
    return prompt.rstrip().endswith(THINK)


def behind_thought(text: str, prompt: str = "") -> str:
    """What follows the last `</think>`, up to a thought opened again; nothing in an open thought, all without one."""
    _, closed, rest = text.rpartition(END_OF_THINK)
    if closed:
        return rest.partition(THINK)[0]
    return "" if THINK in rest or opens_thought(prompt) else rest


def tagged_answer(text: str) -> str | None:
    """What stands between the last `<answer>` and its `</answer>`; None if there is no such pair."""
    before, closed, _ = text.rpartition(END_OF_ANSWER)
    _, opened, inside = before.rpartition(ANSWER)
    return inside if closed and opened else None


def final_answer(reference: str) -> str:
    """The answer of a reference: what follows the last `####`, without currency sign and full stop around a number.

    A reference without the mark is the answer as it stands.
    """
    _, mark, answer = reference.rpartition(ANSWER_MARK)
    if not mark:
        return reference
    answer = answer.strip()
    found = MARKED_NUMBER.fullmatch(answer)
    return found["sign"] + found["number"] if found else answer


def end_of_box(text: str, start: int) -> int | None:
    r"""Place of the brace that closes the box whose content begins at `start`; `\{` and `\}` do not count."""
    depth = 1
    for found in ESCAPED_OR_BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


def last_boxes(text: str) -> list[str]:
    r"""Contents of the last `\boxed{…}` and of those before it that only commas, `and` or `or` keep apart."""
    contents: list[str] = []
    upto = len(text)
    while (place := text.rfind(BOX, 0, upto)) >= 0:
        start = place + len(BOX)
        end = end_of_box(text[: upto if contents else len(text)], start)
        if end is None:
            break
        if contents and not BETWEEN_BOXES.fullmatch(text, end + 1, upto):
            break
        contents.insert(0, text[start:end])
        upto = place
    return contents
