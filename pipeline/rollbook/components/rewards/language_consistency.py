"""language_consistency: share of the completion's letters that are in the script the prompt is written in.

    letters of the prompt's script / all letters            in [0, 1]; 1 for a completion without letters

After the language consistency reward of DeepSeek-R1, arXiv 2501.12948 §2.3.2, which counts words of the target language
in the chain of thought; GRPO has no such term. Here letters are counted, by script: no model is needed, and English
among Chinese or Russian is seen, but not English among French.

The script is the commonest of the last user message; of a prompt without letters, that of the completion itself, so
that only a mixture costs. Japanese is Han and kana together. Letters in code and formulas do not count. An empty
completion gets 1: it is meant to be added to a reward for the answer.
"""

from __future__ import annotations

from collections import Counter

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.unicode_text import scripts_in


class LanguageConsistency(Reward):
    """Counts letters of the clean text.

    Attributes:
        count_code: count letters in code and formulas too.
    """

    count_code: bool = False

    def __call__(self, row: RewardInput) -> float:
        found = scripts_in(row.text, self.count_code)
        asked = scripts_in(question_of(row), self.count_code)
        allowed = main_scripts(asked or found)
        letters = sum(found.values())
        return sum(found[script] for script in allowed) / letters if letters else 1.0


def question_of(row: RewardInput) -> str:
    """The last user message, or all messages where there is none. System prompts are often in another language."""
    asked = [message["content"] for message in row.messages if message["role"] == "user"]
    return asked[-1] if asked else "\n".join(message["content"] for message in row.messages)


def main_scripts(found: Counter[str]) -> frozenset[str]:
    """The commonest script, the first by name among equals; where it is Han or kana, both if the text uses kana."""
    if not found:
        return frozenset()
    commonest = min(found, key=lambda script: (-found[script], script))
    if commonest in ("HAN", "KANA") and found["KANA"]:
        return frozenset({"HAN", "KANA"})
    return frozenset({commonest})
