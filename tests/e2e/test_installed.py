"""A wheel in an environment of its own: a project anywhere, beside the user's files that have Rollbook's names."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.installed import Installed, build, copy_sources, install
from tests.e2e.projects import (
    ROOT,
    SMALL,
    chain,
    commit,
    edit_params,
    git,
    make_project,
    stages_run,
    table_of,
    without_torch,
)

pytestmark = pytest.mark.e2e

HOSTILE = (
    "pipeline.py",
    "rollbook.py",
    "pipeline/__init__.py",
    "pipeline/stage.py",
    "pipeline/fork_client.py",
    "stages/__init__.py",
    "stages/report.py",
)
IS_HOSTILE = """\
from pathlib import Path
Path({marks!r}, __name__).touch()
raise SystemExit("imported by mistake")
"""
MY_REWARDS = """\
def short(completions, **kwargs):
    return [1.0 / (1 + len(c[0]["content"])) for c in completions]
"""
MY_PACKAGE = """\
from my_package.numbers import HALF

def digits(completions, **kwargs):
    return [HALF * c[0]["content"].isdigit() for c in completions]
"""
REWARDS = [
    {"name": "numeric_answer", "weight": 1.0},
    {"name": "function", "path": "my_rewards.py:short", "weight": 0.1},
    {"name": "function", "path": "my_package.rewards:digits", "weight": 0.1},
]
CLIPPED_LOSS = "components/losses/clip.py"
SIGN, FLIPPED = "loss=-surrogate,", "loss=surrogate,"
HELPER = "rl/training/rows.py"
"""A helper of the update, which the upgrade changes."""
DIGEST = "from rollbook.project.environment import library_digest; print(library_digest())"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Rollbook as it lies here."""
    home = tmp_path_factory.mktemp("installed")
    return install(build(copy_sources(home / "sources")), home / "environment")


@pytest.fixture(scope="session")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A later version, with a changed helper that computes the same."""
    home = tmp_path_factory.mktemp("upgraded")
    sources = copy_sources(home / "sources")
    _edit(sources / "pyproject.toml", 'version = "', 'version = "9')
    with (sources / "pipeline/rollbook" / HELPER).open("a") as helper:
        helper.write("\nUPGRADED = True\n")
    return install(build(sources), home / "environment")


@pytest.fixture(scope="session")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the hostile modules leave a mark when they are imported."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(autouse=True)
def nothing_hostile_is_imported(marks: Path) -> Iterator[None]:
    yield
    assert [each.name for each in marks.iterdir()] == []


@pytest.fixture(scope="session")
def finished(installed: Installed, marks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations: two before the project's first commit, one after it. Look, do not touch."""
    home = tmp_path_factory.mktemp("anywhere")
    said = installed.run(home, "rollbook", "init", "my-project", "--from", "tiny").stdout
    assert "next: cd my-project && dvc repro" in said
    project = home / "my-project"
    for name in HOSTILE:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(IS_HOSTILE.format(marks=str(marks)))
    (project / "my_rewards.py").write_text(MY_REWARDS)
    (project / "my_package").mkdir()
    (project / "my_package" / "rewards.py").write_text(MY_PACKAGE)
    (project / "my_package" / "numbers.py").write_text("HALF = 0.5\n")
    edit_params(
        project,
        iterations=chain(2),
        **SMALL,
        recipes__grpo__score_rollouts__rewards=REWARDS,
        recipes__strict={"extends": "grpo", "score_rollouts": {"rewards": ["exact_match"]}},
        rescores__strict={"recipe": "strict"},
    )
    installed.run(project, "dvc", "repro")
    commit(project, "Two iterations")
    installed.run(project, "rollbook", "iterate", "3")
    ran = stages_run(installed.run(project, "dvc", "repro"))
    assert {name.partition("@")[2] for name in ran} == {"", "i0003"}
    return project


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to change at will."""
    return Path(shutil.copytree(finished, tmp_path / "project", symlinks=True))


def test_only_the_wheel_is_installed(installed: Installed, tmp_path: Path) -> None:
    code = "import rollbook, rollbook.stages; print(rollbook.__file__, rollbook.stages.__file__)"
    found = installed.run(tmp_path, "python", "-c", code).stdout.split()
    assert found == [
        str(installed.package / "__init__.py"),
        str(installed.package / "stages" / "__init__.py"),
    ]
    assert _files(ROOT / "pipeline/rollbook") <= _files(installed.package)
    beside = {each.name for each in installed.package.parent.iterdir()}
    assert not beside & {"pipeline", "stages", "tests", "benchmarks"}


def test_rewards_of_the_project_are_asked(finished: Path) -> None:
    scores = table_of(finished, "scores", "i0003")
    assert {"reward_short", "reward_digits"} <= {*scores.column_names}
    assert set(scores["reward_digits"].to_pylist()) <= {0.0, 0.5}
    info = _info(finished, "score_rollouts", "i0003")
    own = {"my_rewards.py", "my_package/rewards.py", "my_package/numbers.py"}
    assert own <= info["code"].keys()
    others = {name for name in info["code"] if not name.startswith("rollbook/")}
    assert others == own


def test_a_run_is_looked_at(installed: Installed, finished: Path) -> None:
    verified = installed.run(finished, "rollbook", "verify").stdout
    assert "as recorded" in verified and "not on this machine" not in verified
    for command in (
        ("check",),
        ("status",),
        ("doctor",),
        ("page",),
        ("lineage", "i0003"),
        ("report",),
        ("show", "i0003"),
        ("compare", "i0001", "i0003"),
    ):
        installed.run(finished, "rollbook", *command)


def test_stored_rollouts_are_scored_again(installed: Installed, project: Path) -> None:
    ran = stages_run(installed.run(project, "rollbook", "rescore", "--stage", "strict"))
    assert len(ran) == 3
    assert table_of(project, "rescores/strict", "i0003").num_rows == 96


def test_every_step_is_replayed(installed: Installed, finished: Path) -> None:
    installed.run(finished, "rollbook", "replay", "--all")
    verdict = json.loads((finished / ".rollbook/replays/all.json").read_text())
    assert verdict["verdict"] == "identical" and len(verdict["steps"]) == 3 + 3 * 7


def test_a_flipped_sign_in_the_installed_package_is_named(
    installed: Installed, finished: Path
) -> None:
    clean = "nothing that is finished runs again"
    assert clean in installed.run(finished, "rollbook", "check").stdout
    with _edited(installed.package / CLIPPED_LOSS, SIGN, FLIPPED):
        said = installed.run(finished, "rollbook", "check").stdout
        assert "from update_policy@i0001 on" in said
        assert f"- code rollbook/{CLIPPED_LOSS}: changed" in said
        stale = json.loads(installed.run(finished, "rollbook", "status", "--json").stdout)
        assert CLIPPED_LOSS in json.dumps(stale)
        refused = installed.run(finished, "rollbook", "replay", "update_policy@i0001", check=False)
        assert refused.returncode == 2
        assert f"where rollbook/{CLIPPED_LOSS} differs" in refused.stdout
    assert clean in installed.run(finished, "rollbook", "check").stdout


def test_an_upgrade_is_named_with_its_versions(upgraded: Installed, finished: Path) -> None:
    said = upgraded.run(finished, "rollbook", "check").stdout
    assert "@i0001 on; they took" in said
    assert "- package rollbook: 0.1.0 → 90.1.0" in said
    assert f"- code rollbook/{HELPER}: changed" in said
    status = upgraded.run(finished, "rollbook", "status").stdout
    assert "package (rollbook 0.1.0 → 90.1.0)" in status


@pytest.mark.parametrize("key", ["i0001", "i0003"])  # before the first commit, and after it
def test_replay_names_another_package_than_a_step_ran_with(
    upgraded: Installed, project: Path, key: str
) -> None:
    step = f"update_policy@{key}"
    refused = upgraded.run(project, "rollbook", "replay", step, check=False)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    library = _info(project, "update_policy", key)["environment"]["library"]
    assert f"{step} ran with rollbook 0.1.0 (files {library[:12]})" in refused.stdout
    assert f"where rollbook/{HELPER} differs" in refused.stdout
    assert "install the one that it ran with" in refused.stdout


def test_replay_goes_on_with_the_package_that_is_installed(
    upgraded: Installed, project: Path
) -> None:
    step = "update_policy@i0003"
    upgraded.run(project, "rollbook", "replay", step, "--with-code", "worktree")
    [verdict] = json.loads((project / f".rollbook/replays/{step}.json").read_text())["steps"]
    assert verdict["outcome"] == "same content"  # tables hold the digest of what made them
    changed = {each["what"]: (each["then"], each["now"]) for each in verdict["environment"]}
    assert changed == {"package rollbook": ("0.1.0", "90.1.0")}


def test_a_replay_with_the_code_of_a_commit_runs_the_installed_package(
    installed: Installed, project: Path
) -> None:
    commit(project, "Three iterations")
    step = "score_rollouts@i0003"
    said = installed.run(project, "rollbook", "replay", step, "--with-code", "HEAD").stdout
    assert "identical" in said


def test_without_torch(
    installed: Installed, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    light = without_torch(tmp_path_factory.mktemp("without_torch"))

    def run(*command: str) -> str:
        return installed.run(project, *command, variables=light).stdout

    assert "as recorded" in run("rollbook", "verify")
    assert "nothing that is finished runs again" in run("rollbook", "check")
    assert "i0003" in run("rollbook", "report")
    now = run("rollbook", "rescore", "my_rewards.py:short", "--iterations", "i0001")
    assert "i0001: 96 rollouts in 24 groups" in now
    assert run("rollbook", "rescore", "--stage", "strict").count("Running stage '") == 3
    for command in (
        "status",
        "doctor",
        "page",
        "lineage i0003",
        "compare i0001 i0003",
        "show i0003",
    ):
        run("rollbook", *command.split())


def test_init_beside_other_things(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Mine\n")
    (tmp_path / "rollbook.py").write_text("raise SystemExit('mine')\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "Mine")
    (tmp_path / "inside").mkdir()
    for folder in (tmp_path, tmp_path / "inside"):
        assert "git repository" not in installed.run(folder, "rollbook", "init", ".").stdout
        edit_params(folder, iterations=chain(1), **SMALL)
        assert "1 iterations" in installed.run(folder, "rollbook", "check").stdout
        ran = stages_run(installed.run(folder, "dvc", "repro", "prepare_data"))
        assert ran == ["check", "prepare_data"]
        info = _info(folder, "prepare_data", "i0000")
        assert info["environment"]["git"]["commit"] == git(tmp_path, "rev-parse", "HEAD").strip()
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    assert (tmp_path / ".gitignore").read_text().startswith("*.log\n")
    ignored = git(tmp_path, "status", "--porcelain", "--untracked-files=all")
    assert "artifacts/" not in ignored


def test_a_checkout_of_other_code_runs_its_own(installed: Installed, tmp_path: Path) -> None:
    """Neither the installed package nor a mixture of both, whatever is on the path."""
    checkout = make_project(tmp_path / "checkout", iterations=1)
    _edit(checkout / "pipeline/rollbook/cli/check.py", ": all valid", ": all valid, said here")
    assert "all valid, said here" in installed.run(checkout, "rollbook", "check").stdout
    installed.run(checkout, "dvc", "repro", "prepare_data")
    recorded = _info(checkout, "prepare_data", "i0000")["environment"]["library"]
    root = {"PYTHONPATH": str(checkout / "pipeline")}
    own = installed.run(checkout, "python", "-P", "-c", DIGEST, variables=root).stdout.strip()
    other = installed.run(tmp_path, "python", "-P", "-c", DIGEST).stdout.strip()
    assert recorded == own != other


def _files(folder: Path) -> set[Path]:
    """What the package needs to run, by path."""
    files = (each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
    return {each for each in files if each.suffix not in (".pyc", ".md")}


def _info(project: Path, stage: str, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (project / f"artifacts/run_info/{stage}/{key}.json").read_text()
    )
    return found


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@contextmanager
def _edited(file: Path, old: str, new: str) -> Iterator[None]:
    before = file.read_text()
    _edit(file, old, new)
    try:
        yield
    finally:
        file.write_text(before)
