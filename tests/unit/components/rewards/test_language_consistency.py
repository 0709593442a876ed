from typing import Any

import pytest

from rollbook.components.rewards.unicode_text import script_of, without_surrogates
from tests.unit.components.rewards.rows import reward, row


def score(question: str, text: str, **options: Any) -> Any:
    system = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": question}
    return reward("language_consistency", **options)(row(text, messages=[system, user]))


@pytest.mark.parametrize(
    ("question", "text", "value"),
    [
        ("Сколько будет 3+4?", "Ответ 7", 1.0),
        ("Сколько будет 3+4?", "The answer is 7", 0.0),
        ("Сколько будет 3+4?", "да yes!", 0.4),
        ("What is 3+4?", "naïve café", 1.0),
        ("3加4等于几?", "答案是七", 1.0),
        ("3加4等于几?", "答案 ok", 0.5),
        ("3加4等于几?", "答えは", 1 / 3),
        ("3たす4は?", "答えは七、カタカナ", 1.0),
        ("答えは?", "漢字", 1.0),
        ("3 더하기 4는?", "정답 ok", 0.5),
        ("What?", "", 1.0),
        ("What?", "7 = 7!", 1.0),
        ("3+4=", "Ответ", 1.0),
        ("3+4=", "Ответ is", 5 / 7),
    ],
)
def test_share_of_letters_in_the_script_of_the_prompt(
    question: str, text: str, value: float
) -> None:
    assert score(question, text) == pytest.approx(value)


def test_code_and_formulas_are_no_language() -> None:
    text = "Ответ: $x = y$, `print(x)`, \\frac{1}{2}\n```python\nx = 1\n```\nда $$z$$"
    assert score("Сколько?", text) == 1.0
    assert score("Сколько?", text, count_code=True) < 0.5
    assert score("Сколько?", "да ```unclosed code") == 1.0


def test_long_texts_take_no_time() -> None:
    for text in ("$" * 200_000, "`" * 200_000, "\\a" * 100_000, "$a" * 100_000, "$$a\n" * 50_000):
        assert 0 <= score("What?", text) <= 1


def test_without_a_user_message_all_are_read() -> None:
    alone = row("да", messages=[{"role": "system", "content": "Отвечай"}])
    assert reward("language_consistency")(alone) == 1.0


@pytest.mark.parametrize(
    ("letter", "script"),
    [
        ("a", "LATIN"),
        ("Ａ", "LATIN"),
        ("я", "CYRILLIC"),
        ("〇", None),
        ("𝑥", None),
        ("ª", None),
        ("7", None),
        ("中", "HAN"),
        ("ア", "KANA"),
        ("ｱ", "KANA"),
        ("한", "HANGUL"),
        ("ا", "ARABIC"),
        ("\ud800", None),
    ],
)
def test_scripts_of_letters(letter: str, script: str | None) -> None:
    assert script_of(letter) == script


def test_lone_surrogates_are_replaced() -> None:
    assert without_surrogates("a\ud800中") == "a?中"
