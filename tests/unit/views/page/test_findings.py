"""Findings on the page: graded, safe, and leading to the rollouts that they name."""

from dataclasses import replace

from rollbook.core.errors import RollbookError
from rollbook.views.doctor import Change, Finding
from rollbook.views.doctor.diagnosis import Diagnosis
from rollbook.views.page.findings import findings_html, findings_tile, linked

FOUND = Finding(
    check="clip_share",
    grade="serious",
    iterations=["i0001", "i0002"],
    title="<b>half</b> of all tokens",
    evidence=["such as i0001/0123456789abcdef/02", "in group i0002/0123456789abcdef"],
    cause="the learning rate",
    change=Change("recipes.grpo.update_policy.learning_rate", "0.1", "0.01"),
)


def diagnosis(*findings: Finding, missing: tuple[str, ...] = ()) -> Diagnosis:
    return Diagnosis(["i0001", "i0002"], ["clip_share", "length"], findings, missing)


def test_a_finding_says_what_to_change_and_where_to_look() -> None:
    html = findings_html(diagnosis(FOUND))
    assert 'class="finding serious"' in html
    assert "&lt;b&gt;half&lt;/b&gt;" in html and "<b>" not in html
    assert '<a href="#i0001/0123456789abcdef/02">i0001/0123456789abcdef/02</a>' in html
    assert '<a href="#i0002/0123456789abcdef">' in html
    assert "recipes.grpo.update_policy.learning_rate: 0.1 → 0.01" in html


def test_code_is_set_off_and_texts_of_anyone_are_left_alone() -> None:
    hostile = "`</code><script>alert(1)</script>` and `one more"
    found = replace(FOUND, title=hostile, cause="`rollbook show` says which", evidence=["said `x`"])
    html = findings_html(diagnosis(found, missing=("artifacts/x",)))
    assert "<code>&lt;/code&gt;&lt;script&gt;alert(1)&lt;/script&gt;</code> and `one more" in html
    assert "<dd><code>rollbook show</code> says which</dd>" in html
    assert "<code>rollbook pull</code> brings what was made" in html
    assert "<li>said `x`</li>" in html  # an answer, as it was given
    assert "<script" not in html
    failed = RollbookError("`x` failed", "leave it out with `doctor: [{off: true}]`")
    assert findings_html(failed) == (
        '<p class="bad">✗ <code>x</code> failed; leave it out with <code>doctor: [{off: true}]</code></p>'
    )


def test_ids_of_evaluations_lead_to_their_answers() -> None:
    name = "eval:math/aime/i0001/0123456789abcdef/02"
    assert linked(f"such as {name} is") == f'such as <a href="#{name}">{name}</a> is'
    assert linked("x/i0001/0123456789abcdef/02").count("<a") == 0
    spaced = "eval:held out &amp; seen/i0001/0123456789abcdef"
    assert linked(f"{name}, {spaced}") == "".join(
        (f'<a href="#{name}">{name}</a>, ', f'<a href="#{spaced}">{spaced}</a>')
    )


def test_the_tile_counts_the_worst_first() -> None:
    note = Finding("length", "note", ["i0001"], "", [], "", FOUND.change)
    tile = findings_tile(diagnosis(FOUND, note, note))
    assert (tile.value, tile.note) == ("1 serious, 2 note", "2 checks")
    assert findings_tile(diagnosis()).value == "healthy"


def test_suggestions_that_differ_and_what_was_not_looked_at_are_told() -> None:
    other = replace(FOUND, check="kl_drift", change=replace(FOUND.change, suggested="0.5"))
    html = findings_html(replace(diagnosis(FOUND, other), outdated=["artifacts/<y>", "z"]))
    assert "suggestions differ: recipes.grpo.update_policy.learning_rate: 0.01 (clip_share)" in html
    assert "not looked at: artifacts/&lt;y&gt; and 1 more" in html


def test_silence_is_told_from_not_having_looked() -> None:
    assert "2 checks found nothing" in findings_html(diagnosis())
    for left_out in ("missing", "outdated", "empty"):
        some = replace(diagnosis(), **{left_out: ["artifacts/x"]})
        assert findings_tile(some).value == "not all looked at"
    assert "not looked at: artifacts/x" in findings_html(diagnosis(missing=("artifacts/x",)))
    nothing = Diagnosis([], ["length"], [], [])
    assert findings_html(nothing) == ""
    assert findings_tile(nothing).value == "not looked at"
    assert findings_tile(replace(nothing, base=True)).value == "healthy"
    assert "no &lt;luck&gt;" in findings_html(RollbookError("no <luck>"))
