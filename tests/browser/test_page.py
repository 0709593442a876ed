"""`reports/index.html` in a real browser, opened as a file: what it shows, what it does, and what it must never do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from rollbook.core.text import visible
from rollbook.project.run.run import Run
from rollbook.views.page.choosing import PageLimits
from rollbook.views.page.shown import shown_chain
from rollbook.views.page.writing import write_page
from tests.unit.views.page import project as made
from tests.unit.views.show.project import edit

OWNED = "document.title = 'owned'"
PROMPT = "<script>document.title = 'owned'</script> \u202e2+3="
SHOWN = (1440, 390)
JUDGED = ((1440, "light"), (390, "dark"))
"""Looks that axe judges: each layout and each set of colours once."""
SERIOUS = ("serious", "critical")
READY = "html[data-explorer=ready][data-charts=drawn]"


@dataclass
class Seen:
    """A page, and all that went on while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, row: int) -> None:
        """Opens a rollout of the list and waits until it is shown."""
        button = self.page.locator("#rows button").nth(row)
        name = button.get_attribute("title")
        button.click()
        self.page.wait_for_selector(f"#rollout h3:has-text('{name}')")

    def found(self) -> str:
        """How many rollouts fit, as the page says."""
        return self.page.locator("#found").inner_text()

    def set(self, name: str, value: str) -> str:
        """Sets a filter and gives the new count."""
        element = self.page.locator(f"#filters [name={name}]")
        if element.evaluate("element => element.tagName") == "SELECT":
            element.select_option(value)
        else:
            element.fill(value)
        self.page.evaluate("document.getElementById('filters').requestSubmit()")
        return self.found()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with hostile prompts and completions."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.make(rows=64, texts=made.HOSTILE, branch=("b0002", "i0001"))
        made.say("i0002", ["The answer is 5.", "Perhaps 6?", "long " * 400])
        edit("prompts", "i0001", prompt=[PROMPT] * 8)
        edit("rollouts", "i0002", finish_reason=["stop"] * 48 + ["length"] * 16)
        edit("evaluations", "i0002", completion=["evaluated"] * 320)
        write_page(shown_chain(Run(), "i0002"), PageLimits())
    return folder / "reports" / "index.html"


def look(browser: Browser, file: Path, width: int = 1440, scheme: str = "light") -> Seen:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    seen = Seen(context.new_page())
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("console", lambda message: seen.complaints.append(message.text))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.goto(file.as_uri())
    seen.page.wait_for_selector(READY)
    return seen


@pytest.fixture(scope="module")
def opened(browser: Browser, file: Path) -> Iterator[Seen]:
    """One look that several tests share; each clears the filters first."""
    seen = look(browser, file)
    yield seen
    seen.page.context.close()


@pytest.fixture
def seen(opened: Seen) -> Seen:
    opened.page.locator("#filters button[type=reset]").click()
    # `wait_for_function` evaluates text in the page, which its policy forbids.
    expect(opened.page.locator("#found")).to_have_text("1–25 of 128")
    return opened


def test_it_opens_from_a_file_and_asks_for_nothing(seen: Seen, file: Path) -> None:
    seen.open(2)
    assert seen.requests == [file.as_uri()]
    assert seen.complaints == []
    assert seen.page.locator(".chart svg").count() == len(seen.page.query_selector_all(".chart"))
    assert seen.page.locator(".chart svg").count() >= 4
    points = seen.page.locator(".chart").first.locator(".mark-symbol.role-mark path")
    # Two series of the base and two iterations, and of the branch from i0001 on.
    assert points.count() == 6 + 4
    points.nth(5).hover()
    expect(seen.page.locator("#vg-tooltip-element")).to_contain_text("i0002")
    assert seen.complaints == []


def test_every_chart_shows_what_it_is_told(seen: Seen) -> None:
    figures = seen.page.locator("figure")
    titles = figures.locator("figcaption").all_inner_texts()
    drawn = {}
    for place, title in enumerate(titles):
        marks = figures.nth(place).locator(".chart .mark-symbol.role-mark path")
        boxes = [mark.bounding_box() for mark in marks.all()]
        frame = figures.nth(place).locator(".chart").bounding_box()
        assert frame is not None
        for box in boxes:
            assert box is not None and box["width"] > 1
            assert frame["x"] <= box["x"] <= frame["x"] + frame["width"]
            assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
        drawn[title] = len(boxes)
        assert figures.nth(place).locator(".chart .mark-line path").count() >= 2
    # Of training: i0001 and i0002, then i0001 again, where the branch starts, and b0002.
    assert drawn == {"Evaluation": 10, **dict.fromkeys(titles[1:], 4)}
    assert {"Training reward", "Policy entropy", "Gradient norm"} <= set(titles)
    norms = figures.nth(titles.index("Gradient norm")).locator(".chart").inner_text().split()
    assert "1.5" in norms  # of every iteration
    axis = figures.nth(titles.index("Gradient norm")).locator(".chart [aria-label^=Y-axis]")
    assert "from 1.3 to 1.7" in (axis.get_attribute("aria-label") or "")  # around a flat line
    told = figures.locator("p.sub").all_inner_texts()
    assert told[0] == "share of answers right, with 95 % intervals"
    assert "as in gspo" in told[titles.index("Clipped tokens")]


def test_chains_are_drawn_as_the_reader_chooses(seen: Seen) -> None:
    points = seen.page.locator(".chart").first.locator(".mark-symbol.role-mark path")
    boxes = seen.page.locator("#chains input")
    assert boxes.count() == 2 and "b0002, other" in seen.page.locator("#chains").inner_text()
    colors = seen.page.locator(".swatch").evaluate_all(
        "all => all.map(each => getComputedStyle(each).backgroundColor)"
    )
    drawn = points.evaluate_all("all => all.map(each => getComputedStyle(each).fill)")
    assert set(drawn) == set(colors) and len(set(colors)) == 2
    boxes.nth(0).uncheck()
    expect(points).to_have_count(4)
    # A chain keeps its colour.
    left = points.evaluate_all("all => all.map(each => getComputedStyle(each).fill)")
    assert set(left) == {colors[1]}
    boxes.nth(0).focus()
    seen.page.keyboard.press("Space")
    expect(points).to_have_count(10)


def test_nothing_else_could_be_asked_for_or_run(browser: Browser, file: Path) -> None:
    seen = look(browser, file)
    failed = seen.page.evaluate(
        "async () => { const script = document.createElement('script');"
        f'script.textContent = "{OWNED}"; document.body.append(script);'
        "try { await fetch('https://example.org/') } catch { return true } }"
    )
    assert failed is True
    assert seen.requests == [file.as_uri()]
    assert all("Content Security Policy" in each for each in seen.complaints)
    assert seen.page.title() != "owned"
    seen.page.context.close()


def test_hostile_texts_are_texts(seen: Seen) -> None:
    title = seen.page.title()
    for row, text in enumerate(made.HOSTILE):
        seen.open(row)
        shown = seen.page.locator("#rollout pre.strip").evaluate("element => element.textContent")
        assert shown == visible(text, lines=True)
        assert (
            seen.page.locator("#rollout").evaluate(
                "element => element.querySelectorAll('script, img, style, a').length"
            )
            == 0
        )
    assert visible(PROMPT, lines=True) in seen.page.locator("#rollout").inner_text()
    assert "‹U+202E›" in seen.page.locator("#rollout pre").first.inner_text()
    assert seen.page.title() == title
    assert seen.page.locator("h1").count() == 1
    assert seen.complaints == []


def test_filters_find_what_is_there(seen: Seen) -> None:
    assert seen.found() == "1–25 of 128"
    assert seen.set("iteration", "i0002") == "1–25 of 64"
    assert seen.set("finish", "length") == "1–16 of 16"
    assert seen.set("reward-low", "0.5") == "1–8 of 8"
    assert seen.set("reward-high", "0.75") == "no rollout fits"
    seen.set("reward-high", "")
    seen.set("reward-low", "")
    seen.set("finish", "")
    assert seen.set("text", "PERHAPS 6") == "1–21 of 21"
    assert seen.set("text", "") == "1–25 of 64"
    assert seen.set("advantage-high", "0") == "1–25 of 32"
    assert seen.set("iteration", "") == "1–25 of 64"
    seen.set("advantage-high", "")
    assert seen.set("text", "‹u+202e›2+3") == "1–25 of 64"  # of prompts too


def test_evaluation_answers_are_filtered_and_opened_alike(seen: Seen) -> None:
    iterations = "all => all.filter(each => !each.disabled).map(each => each.textContent)"
    options = seen.page.locator("#filters [name=iteration] option")
    assert options.evaluate_all(iterations) == ["all", "i0001", "i0002"]
    seen.set("advantage-low", "0.5")
    assert seen.set("of", "heldout") == "1–25 of 640"  # advantages do not count here
    assert seen.page.locator("[name=advantage-low]").is_disabled()
    assert seen.set("iteration", "i0002") == "1–25 of 320"
    assert seen.set("reward-low", "1") == "1–25 of 128"
    assert seen.set("text", "nowhere") == "no rollout fits"
    assert seen.set("text", "EVALUATED") == "1–25 of 128"
    seen.open(0)
    assert "#eval:heldout/i0002/" in seen.page.url
    pane = seen.page.locator("#rollout")
    assert pane.locator(".cards li").count() == 5
    assert "answer 04, greedy" in pane.locator(".cards").inner_text()
    assert "advantage" not in pane.inner_text()
    seen.set("of", "")
    assert seen.page.locator("[name=advantage-low]").is_enabled()
    assert seen.complaints == []


def test_the_reader_chooses_the_chain_of_the_rollouts(seen: Seen) -> None:
    chain = seen.page.locator("#filters [name=chain] option")
    assert chain.all_inner_texts() == ["i0002, grpo", "b0002, other", "all"]
    iterations = "all => all.filter(each => !each.disabled).map(each => each.textContent)"
    options = seen.page.locator("#filters [name=iteration] option")
    seen.set("iteration", "i0002")
    assert seen.set("chain", "b0002, other") == "1–25 of 128"  # i0002 is not of it
    assert options.evaluate_all(iterations) == ["all", "i0001", "b0002"]
    assert seen.set("iteration", "b0002") == "1–25 of 64"
    seen.open(0)
    assert "#b0002/" in seen.page.url
    assert seen.set("of", "heldout") == "1–25 of 320"
    seen.set("iteration", "")
    assert seen.set("chain", "") == "1–25 of 960"
    seen.set("of", "")
    seen.page.locator("#filters button[type=reset]").click()
    expect(seen.page.locator("#found")).to_have_text("1–25 of 128")
    assert "Of the chain i0000 to i0002" in seen.page.locator("#doctor").inner_text()


def test_each_list_says_what_it_lacks(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made.make(keys=["i0001"])
    write_page(shown_chain(Run()), PageLimits(rollouts=made.ROWS))
    seen = look(browser, tmp_path / "reports" / "index.html")
    notes = seen.page.locator("#rollouts [data-of]:visible")
    assert notes.count() == 0  # all rollouts are here
    assert seen.page.locator("#filters [name=chain]").count() == 0  # there is one
    seen.set("of", "heldout")
    assert notes.count() == 1
    assert "evaluation answers are on this page" in notes.inner_text()
    command = notes.locator("code").inner_text()
    assert command.startswith("rollbook page --rollouts ") and "`" not in notes.inner_text()
    seen.page.context.close()
    write_page(shown_chain(Run()), PageLimits(rollouts=int(command.split()[-1])))
    seen = look(browser, tmp_path / "reports" / "index.html")
    assert seen.set("of", "heldout") == "1–25 of 320"
    assert seen.page.locator("#rollouts [data-of]").count() == 0
    seen.page.context.close()


@pytest.mark.parametrize("width", SHOWN)
def test_every_section_can_be_gone_to(browser: Browser, file: Path, width: int) -> None:
    seen = look(browser, file, width)
    links = seen.page.locator("header nav a")
    assert links.count() == seen.page.locator("main > section").count() >= 6
    for link in links.all():
        box = link.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        assert link.evaluate(
            "element => { const { left, top, width, height } = element.getBoundingClientRect();"
            "return document.elementFromPoint(left + width / 2, top + height / 2) === element }"
        )
        link.focus()
        seen.page.keyboard.press("Enter")
        anchor = link.get_attribute("href") or ""
        heading, header = (
            seen.page.locator(each).bounding_box() for each in (f"{anchor} > h2", "header")
        )
        assert heading is not None and header is not None
        assert heading["y"] >= header["height"]  # nothing lies over it
    seen.page.context.close()


def test_order_and_leaves(seen: Seen) -> None:
    seen.set("order", "tokens down")
    lengths = [int(each) for each in seen.page.locator("#rows td:nth-child(3)").all_inner_texts()]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 1_000
    names = []
    for _ in range(6):
        names += seen.page.locator("#rows button").evaluate_all(
            "all => all.map(each => each.title)"
        )
        if seen.page.locator("#next").is_enabled():
            seen.page.locator("#next").click()
    assert len(names) == len(set(names)) == 128
    assert seen.found() == "126–128 of 128"


def test_a_group_side_by_side(seen: Seen) -> None:
    seen.open(3)
    assert seen.page.locator("#rollout .cards li").count() == 8
    assert "reward 1, advantage +" in seen.page.locator("#rollout .cards").inner_text()
    seen.page.locator("#rollout .cards button").nth(5).click()
    seen.page.wait_for_selector("#rollout h3:has-text('/05')")
    assert seen.page.locator(".cards li.open button").inner_text() == "answer 05"
    assert seen.page.url.endswith("/05")


def test_tokens_by_likelihood(seen: Seen) -> None:
    seen.set("text", "long long")
    seen.open(0)
    classes = seen.page.locator("#rollout .strip .t").evaluate_all(
        "all => all.slice(0, 100).map(each => [...each.classList].find(name => /^h\\d$/.test(name)) || '')"
    )
    # Token n was stored with log-prob -0.05 n: p falls below 0.9, 0.5, 0.1 and 0.01 in turn.
    assert classes[:4] == ["", "", "", "h1"]
    assert classes[14] == "h2" and classes[47] == "h3" and classes[95] == "h4"
    title = seen.page.locator("#rollout .strip .t").nth(20).get_attribute("title") or ""
    assert "log-prob -1.000, p 0.368" in title


def test_keys_alone_are_enough(browser: Browser, file: Path) -> None:
    seen = look(browser, file)
    keys = seen.page.keyboard
    focus = "document.activeElement"
    keys.press("Tab")
    assert seen.page.evaluate(f"{focus}.className") == "skip"
    assert seen.page.evaluate(f"{focus}.getBoundingClientRect().left") >= 0
    reached = set()
    for _ in range(80):
        keys.press("Tab")
        assert seen.page.evaluate(f"getComputedStyle({focus}).outlineStyle") != "none"
        reached.add(seen.page.evaluate(f"{focus}.id || {focus}.name || {focus}.value"))
        if seen.page.evaluate(f"{focus}.closest('#rows') !== null"):
            break
    controls = seen.page.locator("#theme, #chains input, #filters input, #filters select")
    wanted = controls.evaluate_all("all => all.map(each => each.id || each.name || each.value)")
    assert set(wanted) - reached == set() and len(wanted) == 13
    first = seen.page.evaluate(f"{focus}.title")
    keys.press("ArrowDown")
    second = seen.page.evaluate(f"{focus}.title")
    assert second != first and second.startswith("i0001/")
    keys.press("Enter")
    seen.page.wait_for_selector(f"#rollout h3:has-text('{second}')")
    assert second in seen.page.evaluate(f"{focus}.textContent")
    keys.press("Escape")
    assert seen.page.evaluate(f"{focus}.title") == second
    seen.page.context.close()


def test_a_link_opens_its_rollout(browser: Browser, file: Path, seen: Seen) -> None:
    seen.open(6)
    linked = Seen(browser.new_page())
    linked.page.goto(seen.page.url)
    linked.page.wait_for_selector(READY)
    linked.page.wait_for_selector("#rollout h3:has-text('/06')")
    linked.page.goto(seen.page.url.rpartition("/")[0])  # of its group
    linked.page.wait_for_selector("#rollout h3:has-text('/00')")
    linked.page.goto(f"{file.as_uri()}#i0009/0000000000000000/00")
    linked.page.wait_for_selector("#rollout p:has-text('not on this page')")
    linked.page.on("pageerror", lambda error: linked.complaints.append(str(error)))
    linked.page.goto(f"{file.as_uri()}#100%25/%")
    linked.page.wait_for_selector("#rollout p:has-text('100%25/% is not on this page')")
    assert linked.complaints == []
    linked.page.close()


def test_the_rollout_that_was_opened_last_is_shown(browser: Browser, file: Path) -> None:
    """Also where the tokens of the one before it take longer to unpack."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(
        "const text = Response.prototype.text;"
        "Response.prototype.text = async function () {"
        "  const [read, held] = [text.call(this), window.held]; await held; return read; };"
    )
    seen = Seen(context.new_page())
    seen.page.goto(file.as_uri())
    seen.page.wait_for_selector(READY)
    seen.page.evaluate(
        "() => { window.held = new Promise((resume) => { window.resume = resume; }); }"
    )
    seen.page.locator("#rows button").first.click()  # of i0001, whose tokens wait
    seen.page.evaluate("window.held = null")
    seen.set("iteration", "i0002")
    seen.open(0)
    second = seen.page.locator("#rollout h3").first.inner_text()
    seen.page.evaluate("window.resume()")
    seen.page.evaluate("new Promise((resume) => setTimeout(resume, 200))")
    assert seen.page.locator("#rollout h3").first.inner_text() == second
    assert "i0002" in second
    context.close()


def test_long_texts_are_cut_until_they_are_asked_for(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made.make(keys=["i0001"])
    long, hebrew = "word " * 2_000, "\u05e9\u05dc\u05d5\u05dd 5 \u05e2\u05d5\u05dc\u05dd"
    made.say("i0001", [hebrew, long])
    edit("prompts", "i0001", prompt=["\x00" * 7_000] * 2)
    edit("scores", "i0001", reward=[None] * made.ROWS)
    write_page(shown_chain(Run()), PageLimits())
    seen = look(browser, tmp_path / "reports" / "index.html", width=390)
    assert seen.page.locator("#chains").count() == 0  # there is one
    seen.open(0)
    assert seen.page.locator("#rollout > pre .sign").count() == 6_000
    seen.page.locator("#rollout button", has_text="All 7,000 characters").click()
    assert seen.page.locator("#rollout > pre .sign").count() == 7_000
    assert hebrew in seen.page.locator("#rollout pre.strip").inner_text()
    cards = seen.page.locator("#rollout .cards li")
    assert "reward –" in cards.nth(1).inner_text()
    assert "characters …" in cards.nth(1).inner_text()
    seen.open(1)
    strip = seen.page.locator("#rollout pre.strip")
    assert strip.locator(".t").count() == 1_000
    seen.page.locator("#rollout button", has_text="All 10,").click()
    assert strip.evaluate("element => element.textContent") == visible(long, lines=True)
    assert seen.page.evaluate("document.activeElement.className") == "strip"
    seen.set("order", "reward down")
    assert seen.found() == "1–16 of 16"
    assert seen.set("reward-low", "0") == "no rollout fits"
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
    assert seen.complaints == []
    seen.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SHOWN)
def test_it_fits_and_everyone_can_read_it(
    browser: Browser, file: Path, width: int, scheme: str
) -> None:
    seen = look(browser, file, width, scheme)
    seen.open(1)
    seen.page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true })")
    seen.page.wait_for_selector("#rollout details td")
    room = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert room[0] <= room[1] == width
    light = seen.page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (sum(light) > 600) == (scheme == "light")
    if (width, scheme) in JUDGED:
        found = Axe().run(seen.page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in SERIOUS] == []
    seen.page.context.close()


def test_the_reader_may_choose_the_theme(browser: Browser, file: Path) -> None:
    seen = look(browser, file)
    ink = "getComputedStyle(document.querySelector('.chart text')).fill"
    before = seen.page.evaluate(ink)
    seen.page.evaluate("delete document.documentElement.dataset.charts")
    seen.page.locator("#theme").select_option("dark")
    seen.page.wait_for_selector("html[data-theme=dark][data-charts=drawn]")
    assert seen.page.evaluate(ink) != before
    assert (
        seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
    )
    seen.page.context.close()
