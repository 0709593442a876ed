import io
import math
import statistics
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from rollbook.cli.report import print_table
from rollbook.project.report import (
    COLUMNS,
    Lift,
    Report,
    ReportedPolicy,
    curve_rows,
    curves_of,
    evaluation_scores,
    read_report,
    reward_bounds,
    summary,
    with_reward_bounds,
    write_curves,
)
from rollbook.project.run.curves import CURVES_FILE, REWARD_BOUNDS, read_curves
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of, read_table, write_json, write_table
from tests.unit.views.mlflow.project import Project

RIGHT_OF = {"i0000": 0, "i0001": 2, "i0002": 4}


def iteration(number: int, mean: float, **metrics: float) -> ReportedPolicy:
    scores = {
        "eval/heldout/mean_at_4": mean,
        "eval/heldout/mean_at_4_low": mean - 0.05,
        "eval/heldout/mean_at_4_high": mean + 0.05,
        "eval/heldout/pass_at_4": mean + 0.2,
        "eval/heldout/greedy": mean + 0.1,
    }
    return ReportedPolicy(f"i{number:04d}", number, "grpo" if number else "", {**scores, **metrics})


@pytest.fixture
def report() -> Report:
    iterations = [iteration(0, 0.25), iteration(1, 0.5, reward=0.4), iteration(2, 0.45, reward=0.6)]
    return Report(iterations, {"heldout": Lift(0.2, 0.125, 0.275)})


def test_scores_are_read_whatever_the_number_of_samples() -> None:
    metrics = {
        "eval/gsm8k/hard/mean_at_16": 0.5,
        "eval/gsm8k/hard/mean_at_16_high": 0.75,
        "eval/gsm8k/hard/pass_at_16": 0.9,
        "eval/gsm8k/hard/greedy_low": 0.1,
        "eval/gsm8k/hard/mean_at_16_lenient": 0.99,
        "eval/gsm8k/hard/prompts": 64.0,
        "eval/other/greedy": None,
        "reward": 1.0,
    }
    assert evaluation_scores(metrics) == {
        "gsm8k/hard": {
            "mean": 0.5,
            "mean_high": 0.75,
            "pass": 0.9,
            "samples": 16,
            "greedy_low": 0.1,
        }
    }


def test_one_row_per_iteration_and_set(report: Report) -> None:
    rows = curve_rows(report)
    assert [row["iteration"] for row in rows] == ["i0000", "i0001", "i0002"]
    assert list(rows[1]) == list(COLUMNS)
    assert (rows[1]["step"], rows[1]["set"], rows[1]["mean"]) == (1, "heldout", 0.5)
    assert (rows[1]["mean_low"], rows[1]["mean_high"]) == (0.45, 0.55)
    assert (rows[0]["reward"], rows[1]["reward"]) == (None, 0.4)


def test_an_iteration_without_evaluation_has_a_row_without_scores() -> None:
    [row] = curve_rows(Report([ReportedPolicy("i0001", 1, "grpo", {"reward": 0.5})]))
    assert (row["set"], row["mean"], row["reward"]) == ("", None, 0.5)


def test_the_summary_compares_last_and_best_with_the_base(report: Report) -> None:
    found = summary(report)
    assert found["iterations"] == 2
    assert found["base"]["heldout"]["mean_at_4"] == 0.25
    assert found["last"]["heldout"]["mean_at_4_low"] == 0.4
    assert "mean_at_4_low" not in found["base"]["heldout"]
    assert found["best"]["iteration"] == "i0001"
    assert found["lift"] == {"heldout": {"difference": 0.2, "low": 0.125, "high": 0.275}}
    assert found["training"] == {"reward": 0.6}


def test_the_best_of_equals_is_the_earlier_one() -> None:
    best = Report([iteration(0, 0.1), iteration(1, 0.5), iteration(2, 0.5)]).best
    assert best is not None
    assert best.key == "i0001"


def test_last_is_the_last_that_was_evaluated() -> None:
    skipped = ReportedPolicy("i0002", 2, "grpo", {"reward": 0.9})
    found = summary(Report([iteration(0, 0.25), iteration(1, 0.5), skipped]))
    assert found["last_iteration"] == "i0002"
    assert found["last"]["heldout"]["mean_at_4"] == 0.5
    assert found["training"]["reward"] == 0.9


def shown(report: Report) -> str:
    stream = io.StringIO()
    print_table(report, Console(file=stream, width=120))
    return stream.getvalue()


def test_the_table_ends_with_the_lift_and_what_to_type_next(report: Report, project: Path) -> None:
    lines = shown(report).splitlines()
    [last] = [line for line in lines if line.strip().startswith("i0002")]
    for cell in ("grpo", "0.450 [0.400, 0.500]", "0.550", "0.650", "0.600"):
        assert cell in last
    assert any("+0.200 [+0.125, +0.275]" in line for line in lines)
    commands = [line.strip() for line in lines[-3:]]
    assert commands[0].endswith("rollbook ui")
    assert "rollbook iterate 6 && dvc repro" in commands[1]
    assert "rollbook.load" in commands[2]


def test_a_checkout_has_a_shorter_word_for_the_ui(
    report: Report, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    assert "  make ui\n" in shown(report)


def test_a_long_run_is_thinned_and_keeps_its_ends() -> None:
    text = shown(Report([iteration(number, 0.5) for number in range(200)]))
    assert "i0000" in text
    assert "i0199" in text
    assert len(text.splitlines()) < 40


def evaluate(key: str) -> None:
    """Answers of 4 prompts, two samples each: `RIGHT_OF[key]` of the prompts are right both times, then the
    greedy one, which is right always and must not count."""
    table, _ = read_table(path_of("evaluations", "i0000"), "evaluations")
    one = table.slice(0, 1).to_pylist()[0]
    rows = []
    for prompt in range(4):
        for sample in range(3):
            group = f"eval:heldout/{key}/{prompt:016x}"
            rows.append(
                {
                    **one,
                    "group_id": group,
                    "rollout_id": f"{group}/{sample:02d}",
                    "prompt_id": f"{prompt:016x}",
                    "iteration": key,
                    "sample_index": sample,
                    "greedy": sample == 2,
                    "reward": 1.0 if sample == 2 else float(prompt < RIGHT_OF[key]),
                }
            )
    write_table(pa.Table.from_pylist(rows, table.schema), "evaluations", key)


def test_a_report_is_read_from_disk(project: Path) -> None:
    Project(3).finish("i0001", "i0002")
    for key in ("i0000", "i0001", "i0002"):
        evaluate(key)
    report = read_report(Run())
    assert [(item.key, item.step) for item in report.iterations] == [
        ("i0000", 0),
        ("i0001", 1),
        ("i0002", 2),
    ]
    # base 0 of 4 prompts right, i0002 all: every prompt differs by 1
    assert report.lift == {"heldout": Lift(1.0, 1.0, 1.0)}
    assert curve_rows(report)[2]["entropy"] == 1.5


def test_the_reward_has_an_interval_clustered_by_prompt(project: Path) -> None:
    Project(2).finish("i0001", "i0002")
    scores, _ = read_table(path_of("scores", "i0001"), "scores")
    means = scores.group_by("prompt_id").aggregate([("reward", "mean")])["reward_mean"].to_pylist()
    # rows of one prompt count once: its deviation is taken over the means of prompts
    half = 1.959964 * statistics.stdev(means) / math.sqrt(len(means))
    low, high = reward_bounds(Run(), "i0001")
    assert (low, high) == pytest.approx(
        (statistics.mean(means) - half, statistics.mean(means) + half), abs=2e-6
    )
    write_curves(with_reward_bounds(Run(), read_report(Run())), Path("curves.csv"))
    base, first, _ = read_curves(Path("curves.csv"))
    assert [base[name] for name in REWARD_BOUNDS] == [None, None]
    assert [first[name] for name in REWARD_BOUNDS] == [low, high]
    path_of("scores", "i0001").unlink()
    assert reward_bounds(Run(), "i0001") == (None, None)


def test_curves_of_older_code_have_no_interval_of_the_reward(
    report: Report, tmp_path: Path
) -> None:
    file = tmp_path / "curves.csv"
    write_curves(report, file)
    rows = [line.rsplit(",", len(REWARD_BOUNDS))[0] for line in file.read_text().splitlines()]
    file.write_text("\n".join(rows))
    assert read_curves(file)[1]["reward"] == 0.4
    assert read_curves(file)[1]["reward_low"] is None


def test_only_configured_iterations_count_each_at_its_place_in_the_chain(project: Path) -> None:
    finished = Project(3).finish("i0001", "i0002", "i0003")
    finished.configure({"i0001": "i0000", "i0002": "i0001", "strict0002": "i0001"})
    finished.finish("strict0002")
    rows = curve_rows(read_report(Run()))
    assert [(row["iteration"], row["step"]) for row in rows] == [
        ("i0000", 0),
        ("i0001", 1),
        ("i0002", 2),
        ("strict0002", 2),
    ]


def test_a_policy_evaluated_on_nothing_has_no_lift(project: Path) -> None:
    Project(1).finish("i0001")
    for key in ("i0000", "i0001"):
        write_json({}, path_of("metrics/evaluate_policy", key))
    report = read_report(Run())
    assert report.lift == {}
    assert summary(report)["last"] == {}
    assert "i0001" in shown(report)


def test_greedy_rollouts_are_left_out_by_their_ids(project: Path) -> None:
    Project(1).finish("i0001")
    both = {kind: read_table(path_of(kind, "i0001"), kind)[0] for kind in ("rollouts", "scores")}
    ids = both["rollouts"]["rollout_id"].to_pylist()
    # Of every prompt the second answer is greedy, and the scores stand the other way round.
    greedy = pa.array([each.endswith("01") for each in ids])
    at = both["rollouts"].column_names.index("greedy")
    rollouts = write_table(both["rollouts"].set_column(at, "greedy", greedy), "rollouts", "i0001")
    backwards = both["scores"].take(list(range(len(ids)))[::-1])
    write_table(backwards, "scores", "i0001", {"rollouts": rollouts.content_hash})
    firsts = [1.0, 1.0, 0.0]
    half = 1.959964 * statistics.stdev(firsts) / math.sqrt(3)
    expected = (statistics.mean(firsts) - half, statistics.mean(firsts) + half)
    assert reward_bounds(Run(), "i0001") == pytest.approx(expected, abs=2e-6)

    write_table(backwards, "scores", "i0001", {"rollouts": "of those that lay there before"})
    assert reward_bounds(Run(), "i0001") == (None, None)
    write_table(
        backwards.slice(0, len(ids) - 1), "scores", "i0001", {"rollouts": rollouts.content_hash}
    )
    assert reward_bounds(Run(), "i0001") == (None, None)


def test_curves_are_those_on_disk_or_those_of_git(project: Path) -> None:
    assert curves_of(Run()) == []
    Project(1).finish("i0001")
    CURVES_FILE.parent.mkdir()
    write_curves(with_reward_bounds(Run(), read_report(Run())), CURVES_FILE)
    found = curves_of(Run())
    assert found[1]["reward_low"] is not None
    path_of("metrics/evaluate_policy", "i0000").unlink()
    assert curves_of(Run()) == found
