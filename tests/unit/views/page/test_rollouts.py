"""What the browser gets of rollouts: every text visible, every number as `rollbook show` has it."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core.text import visible
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, rows_in
from rollbook.views.page.choosing import PageLimits, enough
from rollbook.views.page.rollouts import Explored, explored
from rollbook.views.page.shown import shown_chain
from rollbook.views.page.token_views import HIGH, LOW, MASKED, SPECIAL
from rollbook.views.show.facts import RolloutFacts, Token
from rollbook.views.show.shown import facts_of
from tests.unit.views.page.project import HOSTILE, KEYS, ROWS, drop, make
from tests.unit.views.show.project import edit

ANSWERS = 320
"""Of each evaluation."""
EVALUATIONS = [f"eval:heldout/{key}" for key in KEYS]


def unpacked(text: str) -> Any:
    """What `packed` packed, as a browser reads it."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def pack(limits: PageLimits | None = None) -> Explored:
    return explored(shown_chain(Run()), limits or PageLimits())


def said_of(found: Explored, what: str) -> str:
    """All that is said to be left out of a list."""
    return " ".join(found.left_out.get(what, []))


def test_columns_are_those_of_the_tables(stored_run: Path) -> None:
    found = pack()
    assert list(found.blocks) == [*KEYS, *EVALUATIONS]
    assert not found.left_out and not found.missing
    for key in KEYS:
        block = unpacked(found.blocks[key])
        tables = {
            kind: rows_in(path_of(kind, key), path_of(kind, key)).to_pylist()
            for kind in ("rollouts", "scores", "advantages")
        }
        ids = [
            f"{key}/{block['prompt_id'][group]}/{sample}"
            for group, sample in zip(block["group"], block["sample"], strict=True)
        ]
        assert ids == [row["rollout_id"] for row in tables["rollouts"]]
        assert block["reward"] == [row["reward"] for row in tables["scores"]]
        assert block["advantage"] == pytest.approx(
            [row["advantage"] for row in tables["advantages"]], abs=1e-5
        )
        assert block["tokens"] == [len(row["completion_token_ids"]) for row in tables["rollouts"]]
        finish = [block["finish"]["words"][code] for code in block["finish"]["codes"]]
        assert finish == ["length"] * ROWS


def test_evaluation_answers_stand_beside_the_rollouts(own_run: Path) -> None:
    path = path_of("evaluations", "i0002")
    table = rows_in(path, path)
    sets = ["heldout" if place < 5 else "math/aime" for place in range(table.num_rows)]
    ids = [
        row["rollout_id"].replace("heldout", name)
        for row, name in zip(table.to_pylist(), sets, strict=True)
    ]
    groups = [each.rpartition("/")[0] for each in ids]
    edit("evaluations", "i0002", set=sets, rollout_id=ids, group_id=groups)
    found = pack()
    assert list(found.blocks)[2:] == [*EVALUATIONS, "eval:math/aime/i0002"]
    first, rest = (unpacked(found.blocks[name]) for name in list(found.blocks)[3:])
    assert (len(first["text"]), len(rest["text"])) == (5, table.num_rows - 5)
    shown = [
        f"{block['name']}/{block['prompt_id'][group]}/{sample}"
        for block in (first, rest)
        for group, sample in zip(block["group"], block["sample"], strict=True)
    ]
    assert shown == ids
    assert first["reward"] + rest["reward"] == table["reward"].to_pylist()
    assert first["greedy"] == [4] and first["advantage"] is None and first["fate"] is None
    rows = table.to_pylist()
    assert first["prompt"] == [rows[0]["prompt"]] and first["reference"] == ["5"]
    views = unpacked(found.views["eval:math/aime/i0002"])
    assert views["row"] == list(range(len(rest["text"]))) and views["ratio"] is None
    assert views["id"] == [token for row in rows[5:] for token in row["completion_token_ids"]]


def test_no_text_holds_a_character_without_a_look(stored_run: Path) -> None:
    block = unpacked(pack().blocks["i0001"])
    assert block["text"][: len(HOSTILE)] == [visible(text, lines=True) for text in HOSTILE]
    assert "bell ␇, escape ␛[2J, null ␀ and a tab⇥" in block["text"]
    assert not any(each in "".join(block["text"]) for each in "\x00\x07\x1b\u202e\u2066\u2028\t\r")


def test_tokens_are_those_of_show(own_run: Path) -> None:
    rows = rows_in(path_of("updates", "i0001"), Path()).to_pylist()
    lengths = [
        len(row["completion_token_ids"])
        for row in rows_in(path_of("rollouts", "i0001"), Path()).to_pylist()
    ]
    # Ratios of 2 where a rollout's log-probs are odd, so that the upper bound holds half of the tokens of good answers.
    sampled = [-0.05 * (place % 100) for place in range(max(lengths))]
    seen = [
        [sampled[at] + (0.693 if at % 2 else 0.0) for at in range(length)] for length in lengths
    ]
    clipped = [length // 2 / length for length in lengths]
    edit("updates", "i0001", policy_logprobs=seen, clipped_fraction=clipped)
    found = pack()
    block, views = unpacked(found.blocks["i0001"]), unpacked(found.views["i0001"])
    assert views["row"] == list(range(ROWS))
    start, marked = 0, 0
    for view, row in enumerate(views["row"]):
        facts = facts_of(Run(), rows[row]["rollout_id"])
        assert isinstance(facts, RolloutFacts)
        marks = views["marks"][view]
        stop = start + len(marks)
        assert views["spelled"][view] == 1
        assert views["id"][start:stop] == [token.id for token in facts.tokens]
        assert views["logprob"][start:stop] == [
            round(1000 * token.sampling_logprob) for token in facts.tokens
        ]
        assert [int(mark, 16) for mark in marks] == [bits(token) for token in facts.tokens]
        marked += sum(int(mark, 16) & HIGH > 0 for mark in marks)
        units = block["text"][row].encode("utf-16-le")
        assert sum(views["size"][start:stop]) * 2 == len(units)  # pieces cover the text
        start = stop
    assert marked > 0
    assert 1990 <= max(ratio for ratio in views["ratio"] if ratio) <= 2010


def bits(token: Token) -> int:
    held = {"low": LOW, "high": HIGH}.get(token.clipped or "", 0)
    return SPECIAL * bool(token.special) + MASKED * (not token.trained) + held


def test_limits_say_what_they_leave_out(stored_run: Path) -> None:
    found = pack(PageLimits(rollouts=16, tokens=400))
    blocks = {key: unpacked(text) for key, text in found.blocks.items()}
    # Evaluations get a quarter beside: of each the one group that comes first, cut.
    counts = {**dict.fromkeys(KEYS, 8), **dict.fromkeys(EVALUATIONS, 2)}
    assert {key: len(block["text"]) for key, block in blocks.items()} == counts
    assert all(len(set(block["group"])) == 1 for block in blocks.values())
    prompts = [blocks[name]["prompt_id"] for name in EVALUATIONS]
    assert prompts[0] == prompts[1]  # so that policies can be compared
    said = said_of(found, "rollouts")
    assert "evaluation" not in said  # each list says what it lacks
    assert "4 of 640 evaluation answers are on this page" in said_of(found, "evaluation answers")
    assert "16 of 32 rollouts are on this page, whole groups, some of every iteration" in said
    assert "0 of 16 rollouts are here token by token" in said


def test_what_rollouts_leave_free_is_for_evaluation_answers(stored_run: Path) -> None:
    rollouts, answers = len(KEYS) * ROWS, len(KEYS) * ANSWERS
    least = enough(rollouts, answers)
    assert not pack(PageLimits(rollouts=least)).left_out
    said = said_of(pack(PageLimits(rollouts=least - 1)), "evaluation answers")
    assert f"of {answers} evaluation answers are on this page" in said
    assert f"; `rollbook page --rollouts {least}` puts all on it." in said


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_enough_is_enough_and_no_more(rollouts: int, answers: int) -> None:
    least = enough(rollouts, answers)
    assert PageLimits(least).have_room_for(rollouts, answers)
    assert least == 0 or not PageLimits(least - 1).have_room_for(rollouts, answers)


def test_other_chains_are_here_whole_or_said_to_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(branch=("b0002", "i0001"))
    run = shown_chain(Run(), "i0002")
    both = explored(run, PageLimits())
    assert list(both.blocks)[:3] == [*KEYS, "b0002"] and "eval:heldout/b0002" in both.blocks
    assert both.chains == {
        "i0002, grpo": ["i0000", *KEYS],
        "b0002, other": ["i0000", "i0001", "b0002"],
    }
    assert not both.missing
    least = enough(3 * ROWS, 3 * ANSWERS)
    assert "b0002" in explored(run, PageLimits(rollouts=least)).blocks
    one = explored(run, PageLimits(rollouts=least - 1))
    assert "b0002" not in one.blocks and list(one.chains) == ["i0002, grpo"]
    said = "The rollouts of b0002, other are on a page of their own: `rollbook page --chain b0002`."
    assert one.missing == [said]
    cut = said_of(explored(run, PageLimits(rollouts=8)), "rollouts")
    assert f"`rollbook page --chain i0002 --rollouts {enough(2 * ROWS, 2 * ANSWERS)}`" in cut
    drop("rollouts", "b0002")
    assert "b0002 is not on disk" in explored(run, PageLimits()).missing[0]


def test_a_part_of_a_group_and_iterations_without_one_are_said(stored_run: Path) -> None:
    said = said_of(pack(PageLimits(rollouts=4)), "rollouts")
    assert "4 of 32 rollouts" in said and "of i0001, i0002 a part of a group" in said
    said = said_of(pack(PageLimits(rollouts=1)), "rollouts")
    assert "of i0002 a part of a group, none of i0001;" in said and "whole" not in said


def test_long_prompts_references_and_errors_lose_their_middle(own_run: Path) -> None:
    prompts = rows_in(path_of("prompts", "i0001"), Path()).num_rows
    edit(
        "prompts",
        "i0001",
        prompt=["\x00" * 9_000] * prompts,
        reference_answer=["5" * 9_000] * prompts,
    )
    edit("scores", "i0001", error=[*[None] * (ROWS - 1), "e" * 9_000])
    found = pack(PageLimits(characters=20_000))
    block = unpacked(found.blocks["i0001"])
    texts = [*block["prompt"], *block["reference"], *block["error"].values()]
    assert len(texts) == 2 * prompts + 1 and all("characters …" in each for each in texts)
    assert sum(map(len, texts)) < 6_000
    assert f"{len(texts)} prompts, reference answers and errors are longer" in said_of(
        found, "rollouts"
    )
    assert unpacked(pack().blocks["i0001"])["error"] == {str(ROWS - 1): "e" * 9_000}


def test_long_completions_lose_their_middle_and_no_view_is_wrong(own_run: Path) -> None:
    texts = [*["short"] * (ROWS - 1), "a" * 3_000 + "the end"]
    edit("rollouts", "i0001", completion=texts)
    found = pack(PageLimits(characters=2_000))
    block, views = unpacked(found.blocks["i0001"]), unpacked(found.views["i0001"])
    assert max(map(len, block["text"])) < 2_000
    assert block["text"][-1].endswith("the end") and "characters …" in block["text"][-1]
    assert ROWS - 1 not in views["row"]
    assert not any(views["spelled"])  # the stored tokens are of other texts: ids are shown
    assert "1 completions are longer" in said_of(found, "rollouts")


def test_what_is_not_on_disk_is_named_and_the_rest_is_shown(own_run: Path) -> None:
    drop("rollouts", "i0001")
    for kind in ("scores", "advantages", "updates", "prompts", "logprobs"):
        drop(kind, "i0002")
    found = pack()
    assert list(found.blocks) == ["i0002", *EVALUATIONS]
    assert found.missing == [
        "The rollouts table of i0001 is not on disk: `rollbook pull` brings it."
    ]
    block = unpacked(found.blocks["i0002"])
    assert block["reward"] is None and block["advantage"] is None and block["fate"] is None
    assert set(block["prompt"]) == {None}


def test_without_a_policy_tokens_are_shown_by_their_ids(own_run: Path) -> None:
    (path_of("policies", "i0000") / "tokenizer.json").unlink()
    views = unpacked(pack().views["i0001"])
    assert not any(views["spelled"]) and set(views["size"]) == {0}
    assert "tokens are shown by their ids" in views["said"]
