"""MLflow's pages of a finished project, from the real server in a real browser: what an auditor reads on each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from rollbook.project.run.run import Run
from tests.browser.mlflow_pages import calm_page
from tests.mlflow_server import serving
from tests.unit.views.mlflow.project import Project

KEYS = ("i0001", "i0002", "i0003", "other0003")
"""The last one is a branch: other answers from i0002 on."""
JUDGED_BY = (
    "recipe",
    "eval/heldout/mean_at_4",
    "reward",
    "frac_reward_zero_std",
    "clip_ratio/region_mean",
    "kl_old",
    "completions/mean_length",
)
IS_WHOLE = """label => {
    const text = document.createRange();
    text.selectNodeContents(label);
    const head = label.closest(".ag-header-cell").getBoundingClientRect();
    return text.getBoundingClientRect().right <= head.right && head.right <= innerWidth;
}"""
"""Whether a name fits into the head of its column, and that onto the screen."""
ASKED_MS = 1_767_225_600_000


@dataclass
class Pages:
    """One page that goes from place to place, and ids of what is to be seen.

    Attributes:
        link: that `rollbook ui` printed.
        runs: ids of runs by name.
        outside: addresses asked for that are not the server's.
        errors: that scripts of the page did not catch.
    """

    page: Page
    link: str
    runs: dict[str, str]
    experiment_id: str
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        """Of the server, as the browser shows it: without the token."""
        return self.link.partition("?")[0]

    def open(self, place: str) -> Page:
        """Opens a place of the experiment."""
        self.page.goto(f"{self.base}#/experiments/{self.experiment_id}/{place}")
        return self.page

    def follow(self, name: str) -> Page:
        """Opens a link of a description here, loaded anew as in the tab of its own that a click opens.

        Without that, a slow answer for the page before may come last and be what is shown.
        """
        place = self.page.get_by_role("link", name=name, exact=True).first.get_attribute("href")
        self.page.goto(f"{self.base}{place}")
        self.page.reload()
        return self.page

    def sees(self, *texts: str) -> None:
        """Waits until all texts are visible."""
        for text in texts:
            expect(self.page.get_by_text(text).locator("visible=true").first).to_be_visible()


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    expect.set_options(timeout=30_000)
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "DVC_"))]:
            patch.delenv(name)
        runs, experiment_id = _tracked(folder)
        with serving(folder) as link:
            page = calm_page(browser)
            page.goto(link)  # the browser has the cookie from now on
            made = Pages(page, link, runs, experiment_id)
            page.on("pageerror", lambda error: made.errors.append(str(error)))
            page.on("request", lambda request: _note(request.url, made))
            yield made
            page.context.close()
    expect.set_options(timeout=5_000)


def _tracked(folder: Path) -> tuple[dict[str, str], str]:
    """A project of two chains, its runs in MLflow and a re-score among them."""
    from mlflow.tracking import MlflowClient

    from rollbook.views.mlflow.rescore_runs import ASKED_ABOUT, Answers
    from rollbook.views.mlflow.store import tracking_uri
    from rollbook.views.mlflow.sync import bring_up_to_date

    (folder / ".dvc").mkdir()
    project = Project(3)
    previous = {"i0001": "i0000", "i0002": "i0001", "i0003": "i0002", "other0003": "i0002"}
    project.configure(previous)
    project.finish(*KEYS)
    infos = {
        stage: json.loads(Path(f"artifacts/run_info/{stage}/i0003.json").read_text())
        for stage in ASKED_ABOUT
    }
    asked = Answers(
        "length",
        {"rewards": [{"name": "length"}]},
        {
            "i0003": {
                "old_reward": 0.65,
                "reward": 0.25,
                "sign_flips": 3,
                "groups_gained": 1,
                "groups_lost": 2,
            }
        },
        {"i0003": {table: infos[stage]["outputs"][table] for stage, table in ASKED_ABOUT.items()}},
        ASKED_MS,
    )
    bring_up_to_date(Run(), [asked])
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("rollbook")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    return {run.info.run_name or "": run.info.run_id for run in found}, experiment.experiment_id


def _note(url: str, pages: Pages) -> None:
    if not url.startswith((pages.base, "data:", "blob:")):
        pages.outside.append(url)


def test_the_printed_link_opens_the_runs_with_their_evaluation(pages: Pages) -> None:
    pages.page.goto(pages.link)
    pages.sees("grpo, seed 0", "grpo, seed 0 · other", "Rollbook", "iterations")
    assert "token" not in pages.page.url and pages.page.evaluate("document.cookie") == ""
    pages.sees("eval/heldout/mean_at_4", "eval/heldout/greedy", "reward")
    # 0.3 at the base and 0.1 more an iteration, greedy 0.1 above
    row = pages.page.get_by_role("row").filter(has_text="0.6").filter(has_text="0.7")
    expect(row.first).to_be_visible()


def test_every_iteration_is_a_row_with_what_it_is_judged_by(pages: Pages) -> None:
    """On a screen of 1,440 px, without a click: no row is folded away, no name of a column cut off."""
    pages.page.goto(pages.link)
    page = pages.follow("iterations")
    for key in KEYS:
        expect(page.get_by_role("link", name=key, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="grpo, seed 0", exact=True)).to_have_count(0)
    for name in JUDGED_BY:
        label = page.locator(".ag-header-cell").get_by_text(name, exact=True)
        expect(label).to_be_visible()
        assert label.evaluate(IS_WHOLE), f"{name} is cut off"
    # the reward of i0003, 0.65, beside its evaluation, 0.6
    row = page.locator(".ag-center-cols-container").get_by_role("row").filter(has_text="0.65")
    expect(row.first).to_contain_text("0.6")


def test_curves_go_by_iteration_and_show_both_runs(pages: Pages) -> None:
    pages.page.goto(pages.link)
    pages.follow("curves")
    pages.sees("Evaluation", "Training", "eval/heldout/mean_at_4", "Step")
    legend = pages.page.get_by_text("grpo, seed 0 · other (eval/heldout/mean_at_4)")
    expect(legend.first).to_be_visible()
    expect(pages.page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible()


def test_a_run_says_what_came_out_and_by_which_recipe(pages: Pages) -> None:
    pages.open(f"runs/{pages.runs['grpo, seed 0']}")
    pages.sees("heldout 0.300 → 0.600", "[0.580, 0.620]", "i0001 to i0003, seed 0")
    pages.page.get_by_text("Show more").first.click()
    pages.sees(
        "256 an iteration",
        "8 answers to each prompt",
        "reward: numeric_answer",
        "loss: dapo",
        "nats per token",
    )
    pages.sees("0.500 [0.480, 0.520]")
    for key in ("i0001", "i0002", "re-scored: length"):
        expect(pages.page.get_by_role("link", name=key).first).to_be_visible()
    first = pages.page.get_by_role("row").filter(has_text="eval/heldout/mean_at_4").first
    expect(first).to_be_visible()


def test_an_iteration_names_what_it_read_and_made(pages: Pages) -> None:
    pages.open(f"runs/{pages.runs['grpo, seed 0']}")
    run = pages.follow("i0002")
    pages.sees("heldout 0.500 [0.480, 0.520]", "Policy i0001 → i0002", "grpo, seed 0")
    pages.sees("data/evaluation", "policy-i0002", "c0ffee")
    run.get_by_text("data/evaluation").first.click()
    pages.sees("rollouts/i0002", "content:")


def test_the_table_of_groups_can_be_read(pages: Pages) -> None:
    run = pages.open(f"runs/{pages.runs['i0002']}/artifacts")
    run.get_by_text("groups").first.click()
    run.get_by_text("i0002.csv").first.click()
    pages.sees("reward_mean", "1+2=", "3 ¦ 4", "1.0 0.0")


def test_sampled_rollouts_have_their_rewards_as_feedback(pages: Pages) -> None:
    run = pages.open(f"runs/{pages.runs['i0002']}/traces")
    pages.sees("reward", "advantage", "2+3=")
    run.get_by_text("3+4=").first.click()
    pages.sees("Inputs", "User", "Outputs")
    run.get_by_role("dialog").get_by_role("button", name="Assess").first.click()
    pages.sees("Feedback (3)", "reward_numeric_answer", "Expectations (1)", "reference_answer")


def test_all_sampled_rollouts_are_one_click_away(pages: Pages) -> None:
    pages.page.goto(pages.link)
    pages.follow("rollouts")
    pages.sees("1+2=", "reward", "advantage")
    heads = pages.page.get_by_role("columnheader").all_inner_texts()
    named = [
        head for head in heads if head in {"Input", "Output", "reward", "reward_numeric_answer"}
    ]
    assert named == ["reward", "Input", "Output"]
    expect(pages.page.get_by_text("Detect Issues")).to_have_count(0)


def test_a_policy_is_a_model_with_its_evaluation(pages: Pages) -> None:
    models = pages.open("models")
    models.get_by_role("link", name="policy-i0003").click()
    pages.sees("Made from i0002", "artifacts/policies/i0003", "eval/heldout/mean_at_4")
    pages.sees("data/evaluation")


def test_two_runs_side_by_side(pages: Pages) -> None:
    both = [pages.runs[name] for name in ("grpo, seed 0", "grpo, seed 0 · other")]
    runs, experiments = json.dumps(both), json.dumps([pages.experiment_id])
    pages.page.goto(f"{pages.base}#/compare-runs?runs={runs}&experiments={experiments}")
    pages.sees("grpo, seed 0 · other", "eval/heldout/mean_at_4", "update_policy.learning_rate")


def test_a_rescore_stands_beside_the_run_it_asks_about(pages: Pages) -> None:
    pages.open(f"runs/{pages.runs['re-scored: length']}")
    pages.sees("What length says about stored rollouts", "grpo, seed 0", "sign_flips")


def test_pages_ask_nothing_of_the_world_and_break_nowhere(pages: Pages) -> None:
    pages.page.goto(pages.link)
    pages.sees("grpo, seed 0")
    assert pages.outside == []
    assert pages.errors == []
