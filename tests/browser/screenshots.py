"""Takes the pictures in reports/screenshots of a finished project: `python -m tests.browser.screenshots PROJECT`.

Without a PROJECT it is the current directory, after `dvc repro`. `--only page` takes a part of them.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.chromium import chromium
from tests.browser.mlflow_pages import calm_page
from tests.mlflow_server import serving

FOLDER = Path(__file__).parents[2] / "reports" / "screenshots"
LARGEST = 300_000
"""Bytes that a picture may have: they are kept in git."""
SIZES = {1440: 1000, 390: 844}
"""Width and height of a screen and of a telephone, px."""

SUM = re.compile(r"^\d+\+\d+=$")
"""A question of the default data."""
SETTLING_MS = 2_500
"""Until MLflow's tables and charts have stopped moving."""

Picture = tuple[str, bytes]
"""Name of the file without its ending, and its content."""


def page_pictures(browser: Browser, project: Path) -> Iterator[Picture]:
    """`reports/index.html` in both themes and widths: its beginning, curves, and a rollout with its group."""
    from rollbook.project.run.run import Run
    from rollbook.views.page.choosing import PageLimits
    from rollbook.views.page.shown import shown_chain
    from rollbook.views.page.writing import PAGE, write_page

    write_page(shown_chain(Run()), PageLimits())
    for scheme in ("light", "dark"):
        for width, height in SIZES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page = context.new_page()
            page.goto((project / PAGE).as_uri())
            page.wait_for_selector("html[data-explorer=ready][data-charts=drawn]")
            yield f"page-overview-{scheme}-{width}", page.screenshot()
            if width > height:
                page.locator("#curves").evaluate("section => section.scrollIntoView()")
                yield f"page-curves-{scheme}-{width}", page.screenshot()
            page.locator("#filters [name=order]").select_option("advantage down")
            page.locator("#rows tr button").first.click()
            page.wait_for_selector("#rollout .cards")
            anchor = "#rollouts" if width > height else "#rollout"
            page.evaluate(
                "anchor => { document.activeElement.blur(); document.querySelector(anchor).scrollIntoView() }",
                anchor,
            )
            yield f"page-rollouts-{scheme}-{width}", page.screenshot()
            context.close()


def mlflow_pictures(browser: Browser, project: Path) -> Iterator[Picture]:
    """MLflow: the list of runs, all iterations, curves, a run, an iteration, sampled rollouts, and one of them."""
    with serving(project) as link:
        base = link.partition("?")[0]
        page = calm_page(browser)
        page.goto(link)
        newest = page.get_by_role("row").get_by_role("link").first
        newest.wait_for()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-runs", page.screenshot()
        run = newest.get_attribute("href")
        curves, iterations, rollouts = (
            page.get_by_role("link", name=name, exact=True).first.get_attribute("href")
            for name in ("curves", "iterations", "rollouts")
        )
        page.goto(f"{base}{iterations}")
        page.get_by_text("completions/mean_length").first.wait_for()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-iterations", page.screenshot()
        page.goto(f"{base}{curves}")
        page.get_by_text("Step", exact=True).first.wait_for()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-curves", page.screenshot()
        page.goto(f"{base}{run}")
        page.get_by_text("Show more").first.click()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-run", page.screenshot()
        iteration = page.locator("td a[href*='/runs/']").last.get_attribute("href")
        page.goto(f"{base}{iteration}")
        page.get_by_text("Show more").first.wait_for()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-iteration", page.screenshot()
        page.goto(f"{base}{rollouts}")
        page.get_by_text("reference_answer").first.wait_for()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-rollouts", page.screenshot()
        page.get_by_text(SUM).last.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Assess").first.click()
        page.wait_for_timeout(SETTLING_MS)
        yield "mlflow-trace", page.screenshot()
        page.context.close()


def plots_pictures(browser: Browser, project: Path) -> Iterator[Picture]:
    """What `dvc plots show` draws, as a whole."""
    from rollbook.views.page import vega

    vega.bundle()
    subprocess.run(["dvc", "plots", "show"], cwd=project, check=True)
    page = browser.new_page(viewport={"width": 1440, "height": SIZES[1440]})
    page.goto((project / "dvc_plots" / "index.html").as_uri())
    page.locator(".vega-embed svg.marks").last.wait_for()
    yield "dvc-plots", page.screenshot(full_page=True)
    page.close()


PARTS: Mapping[str, Callable[[Browser, Path], Iterator[Picture]]] = {
    "page": page_pictures,
    "plots": plots_pictures,
    "mlflow": mlflow_pictures,
}
"""What pictures are of; each part is called in the project, with its folder."""


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    parser.add_argument("project", nargs="?", type=Path, default=Path())
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args()
    project = given.project.resolve()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, contextlib.chdir(project):
        for part in [given.only] if given.only else PARTS:
            for name, content in PARTS[part](browser, project):
                assert len(content) <= LARGEST, f"{name}: {len(content):,} bytes, too large for git"
                (FOLDER / f"{name}.png").write_bytes(content)
                print(f"{name}.png: {len(content) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
