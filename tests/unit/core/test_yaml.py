import pytest
from ruamel.yaml import YAML

from rollbook.core.yaml import (
    YamlEntry,
    composed,
    flow,
    node_at,
    with_entries,
    with_lines,
    with_value,
    without_entries,
)

TEXT = """\
# head
a:
  b: 1 # one
  c: {d: x} # two
  e:
    - n: p # three
      m: 20 # four
"""


@pytest.mark.parametrize(
    "value",
    [
        1e-6,
        3e-4,
        1e-15,
        0.2,
        1.0,
        2,
        True,
        None,
        "dapo",
        "off",
        "no",
        "true",
        "null",
        "a: b",
        "",
        "two\nlines",
        "ünïcode",
        "1e-6",
        [0.9, 0.999],
        {"name": "cispo", "cap": 5.0, "path": "my_loss.py:Mine", "none": None},
    ],
    ids=repr,
)
def test_flow_is_read_back_as_it_was(value: object) -> None:
    assert YAML(typ="safe").load(flow(value)) == value
    assert "\n" not in flow(value)


def test_a_number_is_one_to_every_reader() -> None:
    assert flow(1e-6) == "1.0e-6", "PyYAML takes 1e-06 for text"


def test_a_value_and_its_comment_are_replaced_on_their_line() -> None:
    changed = with_value(TEXT, ("a", "e", 0, "m"), "8", "scaled")
    assert changed == TEXT.replace("m: 20 # four", "m: 8 # scaled")
    changed = with_value(TEXT, ("a", "c"), flow({"d": "z"}), "new")
    assert changed == TEXT.replace("{d: x} # two", "{d: z} # new")


def test_lines_go_before_a_line() -> None:
    number = node_at(composed(TEXT), ("a", "e", 0)).start_mark.line
    assert "  e:\n    - q\n    - n: p" in with_lines(TEXT, number, ["    - q"])


def test_an_unknown_place() -> None:
    with pytest.raises(KeyError):
        node_at(composed(TEXT), ("a", "z"))


BLOCK = YamlEntry("{b: 1}", ["", "# new", "x:", "  b: 1 # why"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "recipes:\n  a:\n    rewards:\n      - {name: n} # last\n\n# rest\nseed: 0\n",
            "      - {name: n} # last\n\n  # new\n  x:\n    b: 1 # why\n\n# rest\nseed: 0\n",
        ),
        (
            "recipes:\n  a:\n    rewards:\n      - name: n\n        weight: 1 # last\nseed: 0\n",
            "        weight: 1 # last\n\n  # new\n  x:\n    b: 1 # why\nseed: 0\n",
        ),
        ("recipes: {a: {b: 2}} # flow\n", "recipes: {a: {b: 2}, x: {b: 1}} # flow\n"),
        ("seed: 0\n", "seed: 0\n\nrecipes:\n\n  # new\n  x:\n    b: 1 # why\n"),
    ],
)
def test_blocks_keep_comments_and_layout(before: str, after: str) -> None:
    changed = with_entries(before, "recipes", {"x": BLOCK})
    assert changed.endswith(after)
    assert YAML(typ="safe").load(changed)["recipes"]["x"] == {"b": 1}


def test_entries_behind_a_text_in_block_style_come_before_what_follows() -> None:
    for mark in ("|", ">", "|+", ">-"):
        text = f"a:\n  b:\n    c: {mark}\n      one\n      # two\n\n# of d\nd: 1\n"
        found = with_entries(text, "a", {"e": YamlEntry("2")})
        assert found.index("# two") < found.index("e: 2") < found.index("# of d")
        assert found.endswith("\n# of d\nd: 1\n")


SECTION = """\
# head
i: # the loop
  # one
  a: {x: 1} # its own
  # two
  b:
    x: 2

  c: {x: 3}
# tail
z: 1
"""


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (["a"], ["  a: {x: 1} # its own"]),
        (["b"], ["  b:", "    x: 2"]),
        (["a", "c", "q"], ["  a: {x: 1} # its own", "  c: {x: 3}"]),
        ([], []),
    ],
)
def test_entries_go_and_comments_stay(names: list[str], lines: list[str]) -> None:
    expected = [line for line in SECTION.splitlines() if line not in lines]
    assert without_entries(SECTION, "i", names).splitlines() == expected


def test_a_section_without_entries_is_empty() -> None:
    found = without_entries(SECTION, "i", ["a", "b", "c"])
    assert "i: {} # the loop" in found and "# two" in found and "# tail" in found
    assert YAML(typ="safe").load(found) == {"i": {}, "z": 1}
    again = with_entries(found, "i", {"d": YamlEntry("{x: 4}")})
    assert YAML(typ="safe").load(again) == {"i": {"d": {"x": 4}}, "z": 1}


def test_entries_go_from_a_section_in_flow_style() -> None:
    text = "i: {a: {x: 1}, b: 2, c: 3} # loop\nz: 1\n"
    assert without_entries(text, "i", ["b"]) == "i: {a: {x: 1}, c: 3} # loop\nz: 1\n"
    assert without_entries(text, "i", ["a", "b", "c"]) == "i: {} # loop\nz: 1\n"
