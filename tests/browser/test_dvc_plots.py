"""`dvc plots show` in a real browser: curves of every chain are drawn, and nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from rollbook.project.report import Report, ReportedPolicy, write_curves
from rollbook.project.run.curves import CURVES_FILE
from rollbook.views.page import vega
from tests.e2e.projects import make_project, run

PLOTS = 7
"""Of dvc.yaml."""


def iteration(key: str, step: int) -> ReportedPolicy:
    mean = {f"eval/heldout/mean_at_4{bound}": 0.3 + step / 10 for bound in ("", "_low", "_high")}
    training = {"reward": 0.5, "kl": 0.1 * step} if step else {}
    return ReportedPolicy(key, step, "grpo", {**mean, **training})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the curves of two chains, written by `dvc plots show` into a page."""
    folder = make_project(tmp_path_factory.mktemp("plots") / "project")
    keys = [("i0000", 0), ("i0001", 1), ("i0002", 2), ("strict0002", 2), ("strict0003", 3)]
    bounds = {key: (0.4, 0.6) for key, step in keys if step}
    report = Report([iteration(*each) for each in keys], reward_bounds=bounds)
    write_curves(report, folder / CURVES_FILE)
    said = run(folder, "dvc", "plots", "show").stdout
    assert (folder / "dvc_plots" / "index.html").as_uri() in said
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        vega.bundle()
    return folder


@pytest.fixture(scope="module")
def drawn(browser: Browser, project: Path) -> Iterator[Page]:
    """The page in a browser without a network, once all plots are there; it asked for two files."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((project / "dvc_plots" / "index.html").as_uri())
    page.wait_for_function(f"document.querySelectorAll('.vega-embed svg.marks').length === {PLOTS}")
    assert [Path(url).name for url in asked] == ["index.html", "vega.js"]
    assert all(url.startswith("file:") for url in asked)
    yield page
    context.close()


def marks(page: Page, plot: str) -> dict[str, int]:
    """How many lines, bands and points a plot has; the element is named by the title."""
    kinds = {"lines": "line", "bands": "area", "points": "symbol"}
    return {
        kind: page.locator(f"#{plot} .mark-{mark}.role-mark path").count()
        for kind, mark in kinds.items()
    }


def legend(page: Page, plot: str) -> list[str]:
    """What tells the lines of a plot apart, besides revisions."""
    texts = page.locator(f"#{plot} .role-legend text").all_text_contents()
    return [text for text in texts if text not in ("rev", "workspace", "curve")]


def test_every_chain_is_a_line_with_its_interval(drawn: Page) -> None:
    plot = "Evaluation_by_iteration__mean_over_samples"
    assert marks(drawn, plot) == {"lines": 2, "bands": 2, "points": 5}
    assert legend(drawn, plot) == ["heldout, chain i", "heldout, chain strict"]


def test_training_begins_after_the_base_policy(drawn: Page) -> None:
    reward = {"lines": 2, "bands": 2, "points": 4}
    assert marks(drawn, "Training_reward_by_iteration") == reward
    assert marks(drawn, "KL_to_the_reference_by_iteration") == {**reward, "bands": 0}
    assert legend(drawn, "Training_reward_by_iteration") == [
        "training, chain i",
        "training, chain strict",
    ]


def test_a_plot_without_values_says_so(drawn: Page) -> None:
    def said(plot: str) -> list[str]:
        return drawn.locator(f"#{plot} .mark-text.role-mark text").all_text_contents()

    assert said("Clipped_tokens_by_iteration") == ["not measured in these runs"]
    assert said("Training_reward_by_iteration") == []
    widths = drawn.locator(".vega-embed svg.marks").evaluate_all(
        "all => all.map(e => +e.getAttribute('width'))"
    )
    assert max(widths) < 1000, "an empty legend can make a plot as wide as it likes"


def test_without_the_library_the_page_says_what_to_do(
    browser: Browser, project: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "dvc_plots" / "index.html"
    alone.parent.mkdir()
    alone.write_text((project / "dvc_plots" / "index.html").read_text())
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(alone.as_uri())
    assert "rollbook page makes it" in page.locator("body > p").inner_text()
    assert all(url.startswith("file:") for url in asked)
    context.close()
