"""How checks are found, configured and asked, and what the command does with what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from rollbook.cli.main import cli
from rollbook.components.rewards.repetition_penalty import RepetitionPenalty
from rollbook.core.component import Component
from rollbook.core.errors import ArtifactError, ConfigError, RollbookError
from rollbook.core.field_docs import headline_of, text_on
from rollbook.core.ids import BASE_KEY
from rollbook.core.registry import build, menu
from rollbook.project.plan import load_stage
from rollbook.project.run.iteration import AS_RUN
from rollbook.rl.scoring.inputs import inputs_of
from rollbook.settings.params import parse_params
from rollbook.tables.artifacts import path_of, read_table, schema_of, write_json, write_table
from rollbook.views.doctor import Change, Finding
from rollbook.views.doctor.chain import chain_reading_of
from rollbook.views.doctor.checks.base import Check
from rollbook.views.doctor.conflicts import conflicts_of
from rollbook.views.doctor.diagnosis import diagnose, diagnosis_of, every_check
from rollbook.views.doctor.rollouts import NGRAM
from tests.doctor.stored import (
    GROUPS,
    KEYS,
    MIXED,
    RIGHT,
    metrics,
    params_of,
    store,
    store_evaluation,
)
from tests.in_process import chain_of, run_of
from tests.processes import PYTHONPATH
from tests.unit.settings.test_params import problems, shipped

OWN = '''
from rollbook.views.doctor.checks.base import Check, change_of

class LongRun(Check):
    """A check of the project's own."""

    most: int = 2
    """Iterations; chosen by us."""

    def __call__(self, run):
        if len(run.keys) > self.most:
            place = "update_policy.learning_rate"
            yield self.finding(
                "note", run.keys, "long", ["it is"], "patience", change_of(run.iterations[-1], place, 1e-9)
            )

class Broken(Check):
    def __call__(self, run):
        raise ValueError("no such luck")
'''

NONSENSE = """
from dataclasses import replace
import numpy as np
from rollbook.views.doctor import Change
from rollbook.views.doctor.checks.base import Check

class Nonsense(Check):
    def __call__(self, run):
        found = self.finding("note", ["i0001"], "t", ["e"], "c", Change("a", "1", "2"))
        {line}
        yield found
"""
TALKING = """
from rollbook.views.doctor import Change
from rollbook.views.doctor.checks.base import Check

print("loaded")

class Talking(Check):
    def __call__(self, run):
        print("asked")
        yield self.finding("note", ["i0001"], "\\x1b[2J\\u202e", ["e"], "c", Change("a", "1", "2"))
"""


def _clips(*shares: float) -> None:
    for key, share in zip(KEYS, shares, strict=True):
        metrics(key, clip_ratio__region_mean=share)


def _write_params(**changes: object) -> None:
    raw = shipped()
    raw["iterations"] = chain_of("grpo", KEYS)
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump({**raw, **changes}, file)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", menu("doctor.checks"))
def test_every_threshold_says_what_it_is_and_every_check_what_it_is_about(name: str) -> None:
    check = build("doctor.checks", name)
    assert headline_of(type(check))
    for field in type(check).model_fields.keys() - Component.model_fields.keys():
        assert len(text_on(type(check), field).split()) > 3, field
    assert isinstance(check, Check)
    assert not check.off


@pytest.mark.parametrize("name", menu("doctor.checks"))
def test_nothing_is_said_of_a_project_that_has_run_nothing(project: Path, name: str) -> None:
    check = build("doctor.checks", name)
    assert isinstance(check, Check)
    assert list(check(chain_reading_of(run_of(params_of())))) == []


@pytest.mark.parametrize("name", menu("doctor.checks"))
def test_nothing_is_said_where_only_metrics_are_on_disk(project: Path, name: str) -> None:
    """Metrics that a healthy run has; its tables were not pulled."""
    for key in KEYS:
        metrics(key, entropy=0.5, kl_old=0.01, ratio__max=2.0, clip_ratio__region_mean=0.1)
    check = build("doctor.checks", name)
    assert isinstance(check, Check)
    assert list(check(chain_reading_of(run_of(params_of())))) == []


def test_the_recipe_is_read_where_the_stages_keep_it() -> None:
    for stage, name in AS_RUN.items():
        assert load_stage(stage).settings.places()[name] == stage


def test_iterations_of_few_prompts_are_looked_at_together(project: Path) -> None:
    for key in KEYS:
        store(key, [MIXED] * 7)
    [(reading, rollouts)] = chain_reading_of(run_of(params_of())).scored
    assert reading.keys == KEYS
    assert reading.name == "i0001–i0003"
    assert len(rollouts.group_ids) == 21
    assert len(rollouts.rewards) == len(rollouts.answers) == 84


def test_rewards_have_a_range_where_two_differ(project: Path) -> None:
    store("i0001", [RIGHT] * GROUPS)
    assert chain_reading_of(run_of(params_of())).reward_range is None
    store("i0002", [[0.25, None]] * GROUPS)
    assert chain_reading_of(run_of(params_of())).reward_range == (0.25, 1.0)


def test_what_was_run_counts_and_not_what_params_yaml_says_since(project: Path) -> None:
    """A finding does not go away by an edit that has not been run."""
    store("i0001", [MIXED[:2]] * GROUPS)
    pairs = params_of(recipes__grpo__generate_rollouts__group_size=2)
    for stage, name in AS_RUN.items():
        settings = {
            name: getattr(pairs.recipe_of("i0001"), stage).model_dump(
                mode="json", serialize_as_any=True
            )
        }
        path = path_of(f"run_info/{stage}", "i0001")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"settings": settings}))
    assert "group_size" in {each.check for each in diagnose(run=run_of(params_of()))}


def test_repetition_is_that_of_the_reward_of_this_name(project: Path) -> None:
    texts = ["abcabcabc", "aaaa", "ab", "", "abcdef"]
    store("i0001", [[0.0] * len(texts)] * GROUPS, [texts] * GROUPS)
    [(_, rollouts)] = chain_reading_of(run_of(params_of())).scored
    penalty = RepetitionPenalty(ngram_size=NGRAM, max_penalty=-1.0)
    rows = inputs_of(
        *(read_table(path_of(kind, "i0001"), kind)[0] for kind in ("prompts", "rollouts"))
    )
    expected = [-penalty(row) for row in rows]
    assert rollouts.repetition.tolist() == pytest.approx(expected)
    assert max(expected) == 0.5


# --- settings -------------------------------------------------------------------------------------


def test_thresholds_are_settings(project: Path) -> None:
    _clips(0.2, 0.2, 0.2)
    assert [each.check for each in diagnose(run=run_of(params_of()))] == ["clip_share"]
    assert diagnose(run=run_of(params_of(doctor=[{"name": "clip_share", "limit": 0.4}]))) == []
    assert diagnose(run=run_of(params_of(doctor=[{"name": "clip_share", "off": True}]))) == []


def test_a_check_of_the_projects_own(project: Path) -> None:
    _clips(0.1, 0.1, 0.1)
    Path("mine.py").write_text(OWN)
    [found] = diagnose(run=run_of(params_of(doctor=[{"path": "mine.py:LongRun"}])))
    assert found == Finding(
        "LongRun",
        "note",
        KEYS,
        "long",
        ("it is",),
        "patience",
        Change("recipes.grpo.update_policy.learning_rate", "0.0003", "1.0e-9"),
    )
    assert diagnose(run=run_of(params_of(doctor=[{"path": "mine.py:LongRun", "most": 3}]))) == []


def test_a_check_that_breaks_is_named(project: Path) -> None:
    Path("mine.py").write_text(OWN)
    with pytest.raises(RollbookError, match="Broken failed: ValueError: no such luck") as told:
        diagnose(run=run_of(params_of(doctor=[{"path": "mine.py:Broken"}])))
    assert '{path: "mine.py:Broken", off: true}' in told.value.hint
    assert diagnose(run=run_of(params_of(doctor=[{"path": "mine.py:Broken", "off": True}]))) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("yield 'hello'", "TypeError: it yielded str, expected a Finding"),
        ("yield replace(found, grade='fatal')", "finding.grade: "),
        ("yield replace(found, iterations=None)", "finding.iterations: "),
        ("yield replace(found, change='lower lr')", "finding.change: "),
        ("yield replace(found, title=np.float64(0.5))", "finding.title: "),
        ("yield replace(found, evidence=[np.int64(3)])", "finding.evidence.0: "),
    ],
)
def test_a_check_that_gives_nonsense_is_named(project: Path, line: str, said: str) -> None:
    Path("mine.py").write_text(NONSENSE.format(line=line))
    with pytest.raises(RollbookError, match=f"check Nonsense failed: {said}"):
        diagnose(run=run_of(params_of(doctor=[{"path": "mine.py:Nonsense"}])))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "clip_shares"}], "did you mean 'clip_share'"),
        ([{"name": "clip_share", "limits": 0.4}], "did you mean 'limit'"),
        ([{"name": "clip_share", "limit": 1.4}], "less than or equal to 1"),
        ([{"name": "clip_share"}, {"name": "clip_share", "off": True}], "'clip_share' twice"),
        ([{"name": "base"}], "there is no 'base' in doctor.checks"),
        ([{"name": "clip_share", "path": "mine.py:LongRun"}], "leave out name or path"),
    ],
)
def test_wrong_entries(entries: list[dict[str, object]], said: str) -> None:
    [problem] = problems(shipped(doctor=entries))
    assert said in problem


def test_the_section_changes_no_digest() -> None:
    plain, own = (
        parse_params(shipped(**more))
        for more in ({}, {"doctor": [{"name": "clip_share", "limit": 0.4}]})
    )
    stage = load_stage("update_policy").settings
    assert stage.of(plain, "i0001") == stage.of(own, "i0001")


# --- findings -------------------------------------------------------------------------------------


def test_the_worst_comes_first(project: Path) -> None:
    _clips(0.2, 0.2, 0.2)
    store("i0003", [RIGHT] * GROUPS)
    grades = [each.grade for each in diagnose(run=run_of(params_of()))]
    assert grades == ["serious", "warning"]


def test_another_chain(project: Path) -> None:
    raw = shipped()
    raw["iterations"] = {**chain_of("grpo", KEYS), **chain_of("grpo", ["b0001"])}
    run = run_of(parse_params(raw))
    _clips(0.2, 0.2, 0.2)
    metrics("b0001", clip_ratio__region_mean=0.1)
    assert list(diagnosis_of(run).iterations) == ["b0001"]
    assert list(diagnosis_of(run, "i0003").iterations) == list(KEYS)
    assert list(diagnosis_of(run, "i0002").iterations) == list(KEYS[:2])
    assert list(diagnosis_of(run, "i0000").iterations) == []
    with pytest.raises(ConfigError, match="did you mean 'i0003'"):
        diagnose("i0004", run)


def test_what_is_not_on_disk_is_said(project: Path) -> None:
    store("i0001", [MIXED] * GROUPS)
    path_of("scores", "i0001").unlink()
    assert diagnosis_of(run_of(params_of())).missing == ["artifacts/scores/i0001.parquet"]


def test_tables_of_every_stage_that_checks_read_are_missed(project: Path) -> None:
    stages = ("compute_advantages", "update_policy")
    for stage, key in (("prepare_data", BASE_KEY), *((stage, "i0001") for stage in stages)):
        write_json({"rows": 1}, path_of(f"metrics/{stage}", key))
    assert diagnosis_of(run_of(params_of())).missing == [
        "artifacts/data/train.parquet",
        "artifacts/data/evaluation.parquet",
        "artifacts/advantages/i0001.parquet",
        "artifacts/optimizer_steps/i0001.parquet",
    ]


def test_metrics_that_are_gone_or_hold_nothing_are_missed(project: Path) -> None:
    store("i0001", [MIXED] * GROUPS)
    gone = path_of("metrics/generate_rollouts", "i0001")
    gone.unlink()
    emptied = path_of("metrics/score_rollouts", "i0001")
    write_json({}, emptied)
    found = diagnosis_of(run_of(params_of()))
    assert (found.missing, found.empty) == ([gone.as_posix()], [emptied.as_posix()])
    assert any(f"without anything to look at: {emptied}" in each for each in found.remarks)


@pytest.mark.filterwarnings("error")
def test_tables_without_a_row_are_told(project: Path) -> None:
    store("i0001", [MIXED] * GROUPS)
    for kind in ("rollouts", "scores"):
        table, facts = read_table(path_of(kind, "i0001"), kind)
        write_table(table.slice(0, 0), kind, "i0001", facts.inputs)
    found = diagnosis_of(run_of(params_of()))
    assert found.findings == []
    assert found.empty == ["artifacts/rollouts/i0001.parquet"]


@pytest.mark.parametrize("text", ['"abc"', "Infinity", "1e400", "[1]", "true"])
def test_metrics_that_are_no_numbers_are_told(project: Path, text: str) -> None:
    """The file is to blame, and not the check that reads it."""
    path = path_of("metrics/update_policy", "i0001")
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"entropy": {text}}}')
    with pytest.raises(ArtifactError, match=r"update_policy/i0001\.json: truncated or damaged"):
        diagnose(run=run_of(params_of()))


def test_scores_of_other_rollouts_are_not_looked_at(project: Path) -> None:
    """As while an iteration is made again: its rollouts are new, and its scores are still those of the old ones."""
    for key in KEYS[:2]:
        store(key, [RIGHT] * GROUPS)
    scores, _ = read_table(path_of("scores", "i0002"), "scores")
    write_table(scores, "scores", "i0002", {"rollouts": "those that lay there before"})
    found = diagnosis_of(run_of(params_of()))
    assert found.outdated == ["artifacts/scores/i0002.parquet"]
    assert [each.iterations for each in found.findings if each.check == "reward_values"] == [
        ("i0001",)
    ]


def test_advantages_of_other_scores_are_told(project: Path) -> None:
    store("i0001", [MIXED] * GROUPS)
    scores, _ = read_table(path_of("scores", "i0001"), "scores")
    rows = len(scores)
    columns = {
        **{name: scores[name] for name in ("rollout_id", "group_id", "prompt_id", "iteration")},
        "advantage": [0.5] * rows,
        **dict.fromkeys(
            ("token_advantages", "token_returns", "group_mean", "group_std"), [None] * rows
        ),
        **dict.fromkeys(("informative", "kept"), [True] * rows),
    }
    write_table(
        schema_of("advantages").build(columns), "advantages", "i0001", {"scores": "of another run"}
    )
    found = diagnosis_of(run_of(params_of()))
    assert found.outdated == ["artifacts/advantages/i0001.parquet"]
    [(_, rollouts)] = chain_reading_of(run_of(params_of())).scored
    assert rollouts.advantages is None
    assert any("made from other tables" in remark for remark in found.remarks)


def test_scores_are_joined_by_id(project: Path) -> None:
    store("i0001", [[0.0, 1.0, 2.0, 3.0]] * GROUPS)
    scores, _ = read_table(path_of("scores", "i0001"), "scores")
    write_table(scores.take(list(range(len(scores)))[::-1]), "scores", "i0001")
    [(_, rollouts)] = chain_reading_of(run_of(params_of())).scored
    assert rollouts.rewards.tolist() == [0.0, 1.0, 2.0, 3.0] * GROUPS


def _suggestion(check: str, value: str, now: str = "0.1", setting: str = "a.rate") -> Finding:
    return Finding(check, "warning", KEYS, "", (), "", Change(setting, now, value))


@pytest.mark.parametrize(
    ("findings", "opposite"),
    [
        ([_suggestion("up", "0.2"), _suggestion("down", "0.05")], [True]),
        ([_suggestion("down", "0.01"), _suggestion("less", "0.05")], [False]),
        ([_suggestion("down", "0.01"), _suggestion("same", "0.01")], []),
        ([_suggestion("down", "0.01"), _suggestion("other", "0.05", setting="b.rate")], []),
        ([_suggestion("words", "another one"), _suggestion("down", "0.05")], []),
        ([_suggestion("twice", "0.01"), _suggestion("twice", "0.05")], []),
    ],
)
def test_numbers_that_do_not_agree_are_told(findings: list[Finding], opposite: list[bool]) -> None:
    assert [each.opposite for each in conflicts_of(findings)] == opposite


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "arguments", "code"),
    [
        ((0.1, 0.1, 0.1), ["--fail-on", "note"], 0),
        ((0.2, 0.2, 0.2), [], 0),
        ((0.2, 0.2, 0.2), ["--fail-on", "warning"], 1),
        ((0.2, 0.2, 0.2), ["--fail-on", "never"], 0),
    ],
)
def test_exit_codes(
    project: Path, shares: tuple[float, ...], arguments: list[str], code: int
) -> None:
    _write_params()
    _clips(*shares)
    result = _run(*arguments)
    assert result.exit_code == code, result.output


def test_nothing_to_look_at_is_no_clean_bill(project: Path) -> None:
    _write_params()
    result = _run()
    assert isinstance(result.exception, RollbookError)
    assert "nothing of this run is in the workspace yet" in str(result.exception)
    metrics("i0001", loss=0.1)
    assert _run().exit_code == 0


def test_a_folder_without_a_project_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "run from the project's folder" in str(_run().exception)


def test_before_training_the_base_policy_is_looked_at(project: Path) -> None:
    _write_params()
    store_evaluation(BASE_KEY, [0.0, 1.0] * 20, length=8)
    result = _run()
    assert result.exit_code == 1
    assert "SERIOUS token_limit i0000" in result.output
    assert "checks of what is there before training" in result.output


@pytest.mark.parametrize(
    ("coefficient", "place"),
    [(4.0, "kl_coef"), ({"start": 4.0, "target": 0.05}, "kl_coef.start")],
    ids=["fixed", "follows a target"],
)
def test_suggestions_that_contradict_each_other_are_printed_together(
    project: Path, coefficient: object, place: str
) -> None:
    loss = {"name": "dapo", "kl_coef": coefficient}
    recipes = shipped(recipes__grpo__update_policy__loss=loss)["recipes"]
    _write_params(recipes=recipes)
    for key in KEYS:
        metrics(key, kl=0.9, kl_coef=4.0, advantages__std=1.0)
    said = " ".join(_run().output.split())
    assert f"suggestions differ: recipes.grpo.update_policy.loss.{place}: 12.0 (kl_drift)" in said
    assert "(kl_strength): these contradict each other" in said
    [conflict] = json.loads(_run("--json").output)["conflicts"]
    assert conflict["opposite"]


def test_a_serious_finding_fails(project: Path) -> None:
    _write_params()
    metrics("i0001", kl_old=5.0, ratio__max=300.0)
    result = _run()
    assert result.exit_code == 1
    first, *_, last = result.output.strip().splitlines()
    assert first == "SERIOUS ratio_blowup i0001: an update moved the policy by 5 nats per token"
    assert "  change: recipes.grpo.update_policy.learning_rate: 0.0003 → 3.0e-5" in result.output
    assert last.endswith(": 1 serious finding")


def test_json(project: Path) -> None:
    _write_params()
    _clips(0.2, 0.2, 0.2)
    content = json.loads(_run("--json").output)
    [finding] = content["findings"]
    assert finding["check"] == "clip_share"
    assert finding["iterations"] == list(KEYS)
    assert finding["change"]["setting"] == "recipes.grpo.update_policy.learning_rate"
    assert set(content["checks"]) == set(menu("doctor.checks"))


def test_what_a_check_prints_is_no_part_of_the_answer(project: Path) -> None:
    Path("mine.py").write_text(TALKING)
    _write_params(doctor=[{"path": "mine.py:Talking"}])
    metrics("i0001", loss=0.1)
    result = _run("--json")
    [finding] = json.loads(result.stdout)["findings"]
    assert finding["check"] == "Talking"
    assert result.stderr.splitlines() == ["loaded", "asked"]


def test_texts_of_a_check_cannot_move_the_cursor(project: Path) -> None:
    Path("mine.py").write_text(TALKING)
    _write_params(doctor=[{"path": "mine.py:Talking"}])
    metrics("i0001", loss=0.1)
    assert "NOTE Talking i0001: ␛[2J‹U+202E›" in _run().stdout


def test_the_list_cannot_move_the_cursor_either(project: Path) -> None:
    Path("mine.py").write_text(f'"""\x1b[2Jmine"""\n{TALKING}')
    _write_params(doctor=[{"path": "mine.py:Talking"}])
    assert "Talking: ␛[2Jmine\n" in _run("--list").stdout
    listed = _run("--list", "--json").stdout
    assert "\x1b" not in listed and json.loads(listed)["Talking"]["about"] == "\x1b[2Jmine"


def test_the_list_has_the_thresholds_as_they_stand(project: Path) -> None:
    _write_params(
        doctor=[{"name": "clip_share", "limit": 0.4}, {"name": "truncation", "off": True}]
    )
    said = _run("--list").output
    assert "  limit: 0.4  share of tokens held by a bound" in said
    assert "and what they are rewarded (off)" in said
    content = json.loads(_run("--list", "--json").output)
    assert content["clip_share"]["thresholds"]["limit"]["value"] == 0.4
    assert content.keys() == {check.name for check in every_check(None)}


def test_it_works_without_torch_and_imports_nothing_heavy(project: Path) -> None:
    _write_params()
    store("i0001", [MIXED] * GROUPS)
    code = (
        "import sys\n"
        "heavy = ('torch', 'transformers', 'datasets', 'mlflow')\n"
        "for name in heavy: sys.modules[name] = None\n"
        "from rollbook.views.doctor import diagnose\n"
        "print(len(diagnose()))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": PYTHONPATH, "PATH": "/usr/bin:/bin"},
    )
    assert result.stdout.strip() == "0", result.stderr
