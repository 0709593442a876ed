import copy
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollbook.core.errors import ArtifactError, TrackingError
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.mlflow.store import FOLDER, REPLACED
from rollbook.views.mlflow.sync import bring_up_to_date, start_anew
from tests.processes import PYTHONPATH
from tests.unit.views.mlflow.conftest import Shown
from tests.unit.views.mlflow.project import Project

MEAN = "eval/heldout/mean_at_4"
RUN_ID = re.compile(r"(?<=/runs/)[0-9a-f]{32}")
"""In links of descriptions."""


def test_a_run_per_chain_and_one_per_iteration(finished: Project) -> None:
    assert bring_up_to_date(Run()) == ["i0001", "i0002", "i0003"]
    shown = Shown()
    [chain] = shown.chains
    assert list(shown.iterations) == ["i0001", "i0002", "i0003"]
    parents = {runs[0].data.tags["mlflow.parentRunId"] for runs in shown.iterations.values()}
    assert parents == {chain.info.run_id}
    # the base policy is step 0; 0.3 and 0.1 more per iteration
    assert shown.curve(chain, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5, 3: 0.6})
    assert shown.curve(chain, "reward") == pytest.approx({1: 0.45, 2: 0.55, 3: 0.65})


def test_times_are_those_of_the_artifacts(finished: Project) -> None:
    bring_up_to_date(Run())
    shown = Shown()
    # iteration 2: the first stage ended at 00:02:02 after a second, the last at 00:02:08
    start = 1767225600_000 + 2 * 60_000
    run = shown.iterations["i0002"][0]
    assert (run.info.start_time, run.info.end_time) == (start + 1_000, start + 8_000)
    assert shown.chains[0].info.end_time == start + 60_000 + 8_000
    assert {run.info.status for run in shown.runs} == {"FINISHED"}


def test_sending_twice_changes_nothing(finished: Project) -> None:
    bring_up_to_date(Run())
    before = {run.info.run_id: run.to_dictionary() for run in Shown().runs}
    assert bring_up_to_date(Run()) == []
    shown = Shown()
    assert {run.info.run_id: run.to_dictionary() for run in shown.runs} == before
    assert len(shown.curve(shown.chains[0], MEAN)) == 4


def test_iterations_that_were_missed_are_sent_later() -> None:
    project = Project(3).finish("i0001")
    assert bring_up_to_date(Run()) == ["i0001"]
    project.finish("i0002", "i0003")
    assert bring_up_to_date(Run()) == ["i0002", "i0003"]
    shown = Shown()
    assert len(shown.chains) == 1
    assert shown.curve(shown.chains[0], MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5, 3: 0.6})


def test_a_changed_iteration_forks_the_chain(finished: Project) -> None:
    bring_up_to_date(Run())
    [old] = Shown().chains
    finished.change("generate_rollouts", "i0002")
    assert bring_up_to_date(Run()) == []  # nothing new is finished
    finished.finish("i0002")
    assert bring_up_to_date(Run()) == ["i0002"]

    shown = Shown()
    [new] = [run for run in shown.chains if run.info.run_id != old.info.run_id]
    # i0003 on disk is still made from the old i0002 and must not be on the new curve
    assert shown.curve(new, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5})
    assert shown.curve(old, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5, 3: 0.6})
    tags = {run.info.run_id: run.data.tags for run in shown.chains}
    assert tags[old.info.run_id]["rollbook.superseded"] == new.info.run_id
    assert "rollbook.superseded" not in tags[new.info.run_id]
    parent = {
        run.data.tags["rollbook.content"]: run.data.tags["mlflow.parentRunId"]
        for runs in shown.iterations.values()
        for run in runs
    }
    assert len(shown.iterations["i0001"]) == 1  # shared, and shown under the chain that is current
    assert sorted(parent.values()) == sorted([new.info.run_id] * 2 + [old.info.run_id] * 2)

    finished.finish("i0003")
    assert bring_up_to_date(Run()) == ["i0003"]
    assert len(Shown().chains) == 2


def test_undoing_a_change_brings_the_old_chain_back(finished: Project) -> None:
    bring_up_to_date(Run())
    [old] = Shown().chains
    finished.change("generate_rollouts", "i0002")
    finished.finish("i0002", "i0003")
    bring_up_to_date(Run())
    finished.change("generate_rollouts", "i0002", "")
    finished.finish("i0002", "i0003")
    assert bring_up_to_date(Run()) == []
    shown = Shown()
    superseded = {run.info.run_id: "rollbook.superseded" in run.data.tags for run in shown.chains}
    assert superseded.pop(old.info.run_id) is False
    assert list(superseded.values()) == [True]
    [first] = shown.iterations["i0001"]
    assert first.data.tags["mlflow.parentRunId"] == old.info.run_id


def test_a_change_that_dies_out_shares_what_follows(finished: Project) -> None:
    """Other scores, the same advantages: i0003 is still what it was, under a chain whose i0002 is another."""
    bring_up_to_date(Run())
    finished.change("score_rollouts", "i0002")
    finished.finish("i0002")
    assert bring_up_to_date(Run()) == ["i0002"]
    shown = Shown()
    assert [len(runs) for runs in shown.iterations.values()] == [1, 2, 1]
    new = next(run for run in shown.chains if "rollbook.superseded" not in run.data.tags)
    assert len(shown.curve(new, MEAN)) == 4
    assert shown.iterations["i0003"][0].data.tags["mlflow.parentRunId"] == new.info.run_id


def test_another_evaluation_forks_too(finished: Project) -> None:
    """The policies are the same, the numbers on the curves are not."""
    bring_up_to_date(Run())
    finished.change("evaluate_policy", "i0001", "stricter")
    finished.change("evaluate_policy", "i0002", "stricter")
    finished.change("evaluate_policy", "i0003", "stricter")
    finished.run("evaluate_policy", "i0001", {MEAN: 0.2})
    assert bring_up_to_date(Run()) == ["i0001"]
    shown = Shown()
    new = next(run for run in shown.chains if "rollbook.superseded" not in run.data.tags)
    assert shown.curve(new, MEAN) == {0: pytest.approx(0.3), 1: 0.2}


def test_another_seed_is_another_run_and_supersedes_nothing(finished: Project) -> None:
    bring_up_to_date(Run())
    finished.configure({"i0001": "i0000", "i0002": "i0001", "i0003": "i0002"}, seed=1)
    finished.change("generate_rollouts", "i0001", "seed 1")
    finished.finish("i0001", "i0002", "i0003")
    assert len(bring_up_to_date(Run())) == 3
    chains = Shown().chains
    assert [run.data.tags["seed"] for run in chains] == ["0", "1"]
    assert not any("rollbook.superseded" in run.data.tags for run in chains)


def test_a_branch_has_its_own_curves_and_shares_its_beginning(finished: Project) -> None:
    bring_up_to_date(Run())
    keys = {"i0001": "i0000", "i0002": "i0001", "i0003": "i0002", "strict0002": "i0001"}
    finished.configure(keys)
    finished.finish("strict0002")
    assert bring_up_to_date(Run()) == ["strict0002"]
    shown = Shown()
    assert [len(runs) for runs in shown.iterations.values()] == [1, 1, 1, 1]
    main, branch = sorted(shown.chains, key=lambda run: "strict" in run.info.run_name)
    assert shown.curve(branch, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5})
    assert len(shown.curve(main, MEAN)) == 4
    assert not any("rollbook.superseded" in run.data.tags for run in shown.chains)


def test_branches_sent_together_are_runs_of_their_own(finished: Project) -> None:
    """As when a store is made anew: no run has points yet when chains choose theirs."""
    keys = {"i0001": "i0000", "i0002": "i0001", "i0003": "i0002", "strict0002": "i0001"}
    finished.configure({**keys, "later0003": "i0002"})
    finished.finish("strict0002")
    bring_up_to_date(Run())
    shown = Shown()
    # nothing of later0003 is finished: what it goes on from is shown under the first
    main, branch = sorted(shown.chains, key=lambda run: "strict" in run.info.run_name)
    assert shown.curve(main, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5, 3: 0.6})
    assert shown.curve(branch, MEAN) == pytest.approx({0: 0.3, 1: 0.4, 2: 0.5})


def test_parameters_of_a_chain_say_from_which_iteration_on_they_hold(finished: Project) -> None:
    before = {"i0001": "i0000", "i0002": "i0001", "i0003": "i0002"}
    bring_up_to_date(Run())
    yaml = YAML()
    content = yaml.load(Path("params.yaml").read_text())
    recipes, iterations = content["recipes"], content["iterations"]
    recipes["small"] = copy.deepcopy(recipes["grpo"])
    recipes["small"]["update_policy"]["learning_rate"] = 0.00005
    recipes["small"]["update_policy"]["loss"] = {"name": "gspo"}
    for key, previous in (("i0004", "i0003"), ("i0005", "i0004")):
        iterations[key] = {"previous": previous, "recipe": "small", "reference": "i0000"}
    finished.configure(before, recipes=recipes, iterations=iterations)
    finished.finish("i0004", "i0005")
    assert bring_up_to_date(Run()) == ["i0004", "i0005"]
    shown = Shown()
    [chain] = shown.chains
    assert chain.data.tags["recipe"] == "grpo (1–3), small (4–5)"
    rates = {
        n: v for n, v in chain.data.params.items() if n.endswith("update_policy.learning_rate")
    }
    assert rates == {
        "from i0001/update_policy.learning_rate": "0.0003",
        "from i0004/update_policy.learning_rate": "5e-05",
    }
    assert chain.data.params["from i0004/update_policy.loss.name"] == "gspo"
    # what stays is not said again, and an iteration's own run says all
    assert "from i0004/generate_rollouts.group_size" not in chain.data.params
    assert not [name for name in chain.data.params if name.startswith("from i0005/")]
    [fifth] = shown.iterations["i0005"]
    assert fifth.data.params["update_policy.learning_rate"] == "5e-05"
    assert fifth.data.params["generate_rollouts.group_size"] == "8"
    # the run got its new name when the others were there already
    names = {run.data.tags["chain"] for runs in shown.iterations.values() for run in runs}
    assert names == {"grpo → small, seed 0"}


def test_a_superseded_run_says_so_in_its_name(finished: Project) -> None:
    bring_up_to_date(Run())
    finished.change("generate_rollouts", "i0002")
    finished.finish("i0002")
    bring_up_to_date(Run())
    assert sorted(run.info.run_name for run in Shown().chains) == [
        "grpo, seed 0",
        "grpo, seed 0 (superseded)",
    ]
    names = [run.data.tags["chain"] for runs in Shown().iterations.values() for run in runs]
    # i0001 is shared; of i0002 there are two; nobody has made i0003 again
    assert sorted(names) == ["grpo, seed 0"] * 2 + ["grpo, seed 0 (superseded)"] * 2
    finished.change("generate_rollouts", "i0002", "")
    finished.finish("i0002", "i0003")
    bring_up_to_date(Run())
    [named, other] = sorted(Shown().chains, key=lambda run: run.info.run_name)
    assert (named.info.run_name, other.info.run_name) == (
        "grpo, seed 0",
        "grpo, seed 0 (superseded)",
    )
    assert len(Shown().curve(named, MEAN)) == 4


def test_a_run_cut_short_is_sent_again(finished: Project) -> None:
    bring_up_to_date(Run())
    shown = Shown()
    [cut] = shown.iterations["i0003"]
    [chain] = shown.chains
    # as if the process had been killed while it sent i0003
    shown.client.update_run(cut.info.run_id, status="RUNNING")
    tags = chain.data.tags["rollbook.chain.0"].rsplit(" ", 1)[0]
    shown.client.set_tag(chain.info.run_id, "rollbook.chain.0", tags)
    assert bring_up_to_date(Run()) == ["i0003"]
    shown = Shown()
    [again] = shown.iterations["i0003"]
    assert again.info.run_id != cut.info.run_id
    assert again.info.status == "FINISHED"
    assert len(shown.curve(shown.chains[0], MEAN)) == 4
    traces = shown.client.search_traces(locations=[shown.experiment_id], include_spans=False)
    assert len(traces) == 18  # 6 rollouts in each of 3 iterations, those of the removed run gone


def test_numbers_that_are_not_finite_are_counted_and_not_sent(finished: Project) -> None:
    bring_up_to_date(Run())
    shown = Shown()
    run = shown.iterations["i0001"][0]
    assert "kl" not in run.data.metrics
    assert run.data.metrics["non_finite"] == 1
    assert shown.curve(shown.chains[0], "non_finite") == {0: 0, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("value", ["high", True])
def test_a_metric_that_is_no_number_is_named(finished: Project, value: object) -> None:
    file = path_of("metrics/update_policy", "i0002")
    file.write_text(json.dumps({**json.loads(file.read_text()), "loss": value}))
    with pytest.raises(ArtifactError) as caught:
        bring_up_to_date(Run())
    assert f"{file}: " in str(caught.value) and f"loss: {value!r}, expected a number" in str(
        caught.value
    )


def test_the_base_policy_joins_the_curves_when_it_is_evaluated(finished: Project) -> None:
    evaluation = path_of("metrics/evaluate_policy", "i0000")
    kept = evaluation.read_text()
    evaluation.unlink()
    bring_up_to_date(Run())
    assert 0 not in Shown().curve(Shown().chains[0], MEAN)
    evaluation.write_text(kept)
    assert bring_up_to_date(Run()) == []
    assert Shown().curve(Shown().chains[0], MEAN)[0] == pytest.approx(0.3)
    # evaluated again, on other terms, while no iteration is: step 0 keeps its one point
    finished.run("evaluate_policy", "i0000", {MEAN: 0.1})
    bring_up_to_date(Run())
    assert Shown().curve(Shown().chains[0], MEAN)[0] == pytest.approx(0.3)


def test_rebuilding_gives_the_same_runs(finished: Project) -> None:
    bring_up_to_date(Run())
    before = _pages(Shown())
    said = _python("-P", "-m", "rollbook.cli.main", "track", "--rebuild")
    assert "sent i0001, i0002, i0003" in said
    assert str(Path(FOLDER, REPLACED, "1").resolve()) in said
    assert Path(FOLDER, REPLACED, "1", "mlflow.db").exists()
    # this process still holds the store that was moved; another spelling of the path opens the new one
    again = Shown(uri=f"sqlite:///{Path.cwd()}/./{FOLDER}/mlflow.db")
    assert _pages(again) == before


def test_no_store_that_was_replaced_is_lost(finished: Project) -> None:
    """As after rebuilds that were killed: before there was a new store, and when it was half made."""
    store, replaced = Path(FOLDER, "mlflow.db"), Path(FOLDER, REPLACED).resolve()
    original = store.read_bytes()
    assert start_anew(Run()) == replaced / "1"
    assert start_anew(Run()) is None
    store.write_bytes(b"half of a store")
    assert start_anew(Run()) == replaced / "2"
    assert (replaced / "1" / "mlflow.db").read_bytes() == original
    assert (replaced / "2" / "mlflow.db").read_bytes() == b"half of a store"


def test_a_store_is_not_emptied_where_there_is_nothing_to_send(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(Run())
    shutil.rmtree("artifacts")
    with pytest.raises(ArtifactError, match="nothing to send") as error:
        start_anew(Run())
    assert "`rollbook pull`" in error.value.hint
    assert not Path(FOLDER, REPLACED).exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/{FOLDER}/mlflow.db")
    with pytest.raises(ArtifactError, match="nothing to send"):
        start_anew(Run())  # a store that runs are deleted from
    assert len(Shown().iterations) == 3


def test_the_experiment_is_read_anew_after_sending(finished: Project) -> None:
    """While runs are sent it is read once."""
    bring_up_to_date(Run())
    shown = Shown()
    shown.client.set_experiment_tag(shown.experiment_id, "said", "since")
    assert shown.client.get_experiment(shown.experiment_id).tags["said"] == "since"


def test_another_store_is_emptied_run_by_run(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/other.db")
    shutil.copy(f"{FOLDER}/mlflow.db", "other.db")
    bring_up_to_date(Run())
    assert start_anew(Run()) is None
    shown = Shown()
    assert shown.runs == []
    assert shown.client.search_traces(locations=[shown.experiment_id]) == []
    assert shown.client.search_logged_models([shown.experiment_id]) == []
    assert len(bring_up_to_date(Run())) == 3


def _pages(shown: Shown) -> list[tuple[object, ...]]:
    """What an auditor sees of every run; ids are made anew."""
    ids = {"mlflow.parentRunId", "mlflow.user"}
    return [
        (
            run.info.run_name,
            run.info.start_time,
            run.info.end_time,
            run.data.metrics,
            run.data.params,
            {
                name: RUN_ID.sub("ID", value)
                for name, value in run.data.tags.items()
                if name not in ids
            },
            sorted((item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs),
        )
        for run in (*shown.chains, *shown.of_kind("iteration"))
    ]


def test_a_server_that_is_away_is_one_quick_clear_error(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(TrackingError, match=r"http://127\.0\.0\.1:9.*"):
        bring_up_to_date(Run())
    assert time.monotonic() - started < 15


def test_an_experiment_elsewhere_writes_into_the_main_project(
    finished: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(Run())
    main = Path.cwd()
    elsewhere = main / ".dvc" / "tmp" / "exps" / "x"
    (elsewhere / ".dvc").mkdir(parents=True)
    for item in ("params.yaml", "artifacts"):
        subprocess.run(["cp", "-r", item, elsewhere], check=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DVC_ROOT", str(main))
    monkeypatch.setenv("DVC_EXP_NAME", "puffy-daks")
    finished.change("update_policy", "i0003", "another rate")
    finished.finish("i0003")
    assert bring_up_to_date(Run()) == ["i0003"]
    assert not (elsewhere / FOLDER).exists()
    monkeypatch.chdir(main)
    shown = Shown()
    workspace, experiment = sorted(shown.chains, key=lambda run: "puffy" in run.info.run_name)
    assert experiment.data.tags["dvc.experiment"] == "puffy-daks"
    assert "rollbook.superseded" not in workspace.data.tags  # both are results, side by side
    [shared] = shown.iterations["i0001"]
    assert shared.data.tags["mlflow.parentRunId"] == workspace.info.run_id


def test_two_processes_may_create_the_store_at_once(finished: Project) -> None:
    Path(FOLDER, "mlflow.db").unlink()
    code = (
        "from rollbook.project.run.run import Run\n"
        "from rollbook.views.mlflow.sync import bring_up_to_date\n"
        "print(*bring_up_to_date(Run()))\n"
    )
    with ThreadPoolExecutor() as pool:
        said = sorted(pool.map(lambda _: _python("-c", code), range(2)))
    assert said == ["", "i0001 i0002 i0003"]
    assert [len(runs) for runs in Shown().iterations.values()] == [1, 1, 1]


def _python(*arguments: str) -> str:
    """What a program printed that ran in this project."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, *sys.path])}
    result = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_nothing_finished_opens_no_store() -> None:
    project = Project(2)
    assert bring_up_to_date(Run()) == []
    project.finish()
    assert bring_up_to_date(Run()) == []
    assert not Path(FOLDER, "artifacts").exists()


def test_an_iteration_without_its_tables_still_shows_its_numbers(finished: Project) -> None:
    """Old rollouts may have been pruned from disk."""
    path_of("rollouts", "i0002").unlink()
    assert bring_up_to_date(Run()) == ["i0001", "i0002", "i0003"]
