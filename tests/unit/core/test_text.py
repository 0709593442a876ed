import json

import pytest

from rollbook.core.text import json_safe, listed, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ümlauts and 漢字 🙂", "plain text, ümlauts and 漢字 🙂"),
        ("\x1b[31mred\x07\x00", "␛[31mred␇␀"),
        ("a\u202eb\u2066c", "a‹U+202E›b‹U+2066›c"),
        ("zero\u200bwidth\ufeff", "zero‹U+200B›width‹U+FEFF›"),
        ("c1 \x9b31m", "c1 ‹U+009B›31m"),
        ("\u2028\U000e0041", "‹U+2028›‹U+E0041›"),
        ("one\r\n\ttwo", "one␍↵⇥two"),
        ("typed ↵ stays", "typed ↵ stays"),
    ],
)
def test_nothing_without_a_look_gets_through(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_new_lines_are_lines_where_wanted() -> None:
    assert visible("a\nb ↵ c", lines=True) == "a↵\nb ↵ c"


def test_json_is_the_same_and_holds_no_control() -> None:
    content = {"text": "\x1b]0;title\x07 \u202e\x9b\U000e0041 é 漢"}
    written = json_safe(json.dumps(content, ensure_ascii=False))
    assert json.loads(written) == content
    assert "é 漢" in written
    assert not {"\x1b", "\x07", "\u202e", "\x9b", "\U000e0041"} & set(written)


def test_the_first_of_some_names_and_how_many_more() -> None:
    assert listed([]) == ""
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert listed(("a", "b"), 1) == "a and 1 more"
    assert listed(["a 1 → 2", "b", "c"], 2, "; ") == "a 1 → 2; b and 1 more"
