"""The page as a file: whole, the same every time, asking for nothing, and there for every state of a run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rollbook.core.errors import ArtifactError, ConfigError
from rollbook.dvc.lock import LOCK_FILE
from rollbook.project.report import Report, read_iterations, with_reward_bounds, write_curves
from rollbook.project.run.curves import CURVES_FILE
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, write_json
from rollbook.views.page.choosing import PageLimits
from rollbook.views.page.curves import charts
from rollbook.views.page.shown import shown_chain
from rollbook.views.page.writing import PAGE, page_html, write_page
from tests.processes import PYTHONPATH
from tests.unit.settings.test_params import shipped
from tests.unit.views.page.project import HOSTILE, KEYS, ROWS, make, write_params
from tests.unit.views.show.project import edit

HEAVY = ("torch", "transformers", "datasets", "mlflow")


class Parsed(HTMLParser):
    """Tags, texts and scripts of a page; fails where tags do not close in order."""

    VOID = ("meta", "input", "br")

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.policy = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "script" and "type" not in given:
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag if tag != "script" or "type" not in given else "data")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Of a drawing: nothing to close."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().replace("data", "script") == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] not in ("data", "style"):
            self.text += data


def written(chain: str = "") -> Parsed:
    return Parsed(page_html(shown_chain(Run(), chain), PageLimits()))


def test_it_is_whole_and_links_only_to_itself(stored_run: Path) -> None:
    page = written()
    assert "Of the chain" not in page.text  # there is one
    assert all(link.startswith("#") for link in page.links)
    sections = {link[1:] for link in page.links if "/" not in link}
    assert sections <= set(page.ids) and len(page.ids) == len(set(page.ids))
    assert {"overview", "curves", "rollouts", "doctor", "lineage", "environment"} <= sections
    assert "5e84f275e8a1" in page.text and "numeric_answer: 1 if the completion" in page.text
    assert "0.500" in page.text and "0.460 – 0.540" in page.text


def test_only_its_own_scripts_may_run(stored_run: Path) -> None:
    page = written()
    digests = {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in page.scripts
    }
    assert set(re.findall(r"'sha256-([^']+)'", page.policy)) == digests
    assert len(digests) == 4
    assert page.policy.startswith("default-src 'none'; script-src ")
    assert "unsafe-eval" not in page.policy and "http" not in page.policy


def test_the_same_run_gives_the_same_bytes(own_run: Path) -> None:
    first = page_html(shown_chain(Run()), PageLimits())
    os.utime(path_of("rollouts", "i0001"), (1, 1))
    shutil.rmtree(".dvc/tmp/rollbook")  # the bundle is made again
    assert page_html(shown_chain(Run()), PageLimits()) == first


def test_hostile_completions_are_packed_and_nowhere_else(stored_run: Path) -> None:
    page = page_html(shown_chain(Run()), PageLimits())
    assert not any(text in page for text in HOSTILE)


def test_nothing_trained_yet(own_run: Path) -> None:
    shutil.rmtree("artifacts")
    LOCK_FILE.unlink()
    page = written()
    assert "No iteration has run yet" in page.text and "dvc repro" in page.text
    assert "numeric_answer" in page.text  # the plan
    assert "Curves" not in page.text


def test_what_dvc_lock_names_and_is_not_here_is_to_be_pulled(own_run: Path) -> None:
    shutil.rmtree("artifacts")
    text = written().text
    assert "No numbers are on disk. rollbook pull brings them" in text
    assert "No iteration has run yet" not in text and "No rollouts yet" not in text
    assert "The rollouts table of i0001 to i0002 is not on disk: rollbook pull brings it" in text


def test_a_folder_where_the_page_goes_is_not_taken_away(own_run: Path) -> None:
    kept = PAGE / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(ArtifactError, match="is a folder"):
        write_page(shown_chain(Run()), PageLimits())
    assert kept.read_text() == "mine"


def test_numbers_of_git_are_shown_where_metrics_were_not_pulled(own_run: Path) -> None:
    CURVES_FILE.parent.mkdir(exist_ok=True)
    write_curves(with_reward_bounds(Run(), Report(read_iterations(Run()))), CURVES_FILE)
    before, drawn = written().text, charts(shown_chain(Run()))
    shutil.rmtree("artifacts/metrics")
    shutil.rmtree("artifacts/rollouts")
    after = written()
    assert "0.460 – 0.540" in before and "0.460 – 0.540" in after.text
    assert "rollouts table of i0001 to i0002 is not on disk" in after.text
    assert charts(shown_chain(Run())) == drawn  # the band of the reward too
    shutil.rmtree("artifacts")
    assert "not looked at" in written().text


def test_a_branch_is_shown_on_demand_and_drawn_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(branch=("b0002", "i0001"))
    page = written("i0002")
    assert "grpo: i0000 to i0002" in page.text
    assert "tells of the chain i0000 to i0002" in page.text and "Others end with b0002" in page.text
    said = "Of the chain i0000 to i0002; rollbook page --chain b0002 tells of another."
    assert page.text.count(said) == 3  # above the doctor, the policies and the environments
    assert "i0002, grpo" in page.text and "b0002, other" in page.text  # the legend of the curves
    other = written()  # it has begun last
    assert "grpo → other: i0000 to b0002" in other.text and "Others end with i0002" in other.text
    with pytest.raises(ConfigError, match="did you mean"):
        written("b0003")


def test_a_workspace_off_dvc_lock_is_said(own_run: Path) -> None:
    assert "another run" not in written().text
    path = path_of("run_info/update_policy", "i0002")
    path.write_text(path.read_text() + " ")
    said = "what lies in the workspace of update_policy@i0002 is of another run than dvc.lock names"
    assert said in written().text
    assert "another run" not in written("i0001").text


def test_one_iteration_without_a_reward(own_run: Path) -> None:
    edit("scores", "i0001", reward=[None] * ROWS, reward_numeric_answer=[None] * ROWS)
    write_json({"reward": None}, path_of("metrics/score_rollouts", "i0001"))
    page = written("i0001")
    assert "1 iteration from base policy" in page.text and "0.460 – 0.540" in page.text
    assert "nan" not in page.text.lower().split()


def test_without_evaluation_and_with_several_sets(own_run: Path) -> None:
    for key in KEYS:
        path_of("metrics/evaluate_policy", key).write_text("{}")
    assert "grpo" in written().text
    for key in ("i0000", *KEYS):
        metrics = path_of("metrics/evaluate_policy", key)
        metrics.write_text('{"eval/one/mean_at_4": 0.25, "eval/two/mean_at_4": 0.75}')
    page = written()
    assert "one, mean@4" in page.text and "two, mean@4" in page.text
    assert "one mean@4" in page.text


def test_a_check_that_fails_is_said_on_the_page(own_run: Path) -> None:
    raw = shipped()
    raw["iterations"] = {"i0001": {"previous": "i0000", "recipe": "grpo", "reference": "i0000"}}
    Path("mine.py").write_text(
        "from rollbook.views.doctor.checks.base import Check\n\n"
        "class Broken(Check):\n"
        '    """Fails."""\n\n'
        "    def __call__(self, run):\n"
        "        raise ValueError('broken on purpose')\n"
    )
    raw["doctor"] = [{"path": "mine.py:Broken"}]
    write_params(raw)
    page = written()
    assert "hint:" not in page.text and "↵" not in page.text
    assert "broken on purpose" in page.text and "Rollouts" in page.text


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("metrics", "entropy", "abc"),
        ("run_info", "settings", 3),
        ("run_info", "outputs", []),
        ("run_info", "environment", "x"),
    ],
)
def test_a_damaged_file_is_told(own_run: Path, kind: str, name: str, value: object) -> None:
    path = path_of(f"{kind}/update_policy", "i0001")
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ArtifactError, match=rf"{path}: truncated or damaged \({name}: "):
        written()


@pytest.mark.parametrize("update", [3, {"loss": 3}])
def test_settings_of_an_update_that_cannot_be_read_leave_the_rest(
    own_run: Path, update: object
) -> None:
    path = path_of("run_info/update_policy", "i0001")
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "settings": {**info["settings"], "update": update}}))
    assert "Rollouts" in written().text


def test_it_is_written_where_importing_anything_heavy_fails(own_run: Path) -> None:
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in HEAVY)
    program = f"import sys\n{blocked}\nfrom rollbook.cli.main import main\nmain(['page'])\n"
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("reports/index.html: i0002, ")
    assert Path("reports/index.html").read_text() == page_html(shown_chain(Run()), PageLimits())
