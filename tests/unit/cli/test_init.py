"""`rollbook init`: a project in a new folder, beside other things, and never over somebody's files."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.cli.main import cli
from rollbook.project.template import FILES, FOLDER, IGNORE_FILES
from rollbook.settings.examples import examples, read_example

ROOT = Path(__file__).parents[3]


def init(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["init", *arguments])


@pytest.mark.parametrize("path", FILES)
def test_the_repository_itself_has_the_files_of_the_template(path: str) -> None:
    assert (ROOT / path).read_text() == (FOLDER / FILES[path]).read_text()


@pytest.mark.parametrize("path", IGNORE_FILES)
def test_the_repository_ignores_what_the_template_ignores(path: str) -> None:
    wanted = (FOLDER / IGNORE_FILES[path]).read_text().splitlines()
    assert set(wanted) <= set((ROOT / path).read_text().splitlines())


@pytest.mark.parametrize("name", examples())
def test_a_new_folder_becomes_a_project_and_a_repository(project: Path, name: str) -> None:
    result = init("mine", "--from", name)
    assert result.exit_code == 0, result.output
    assert "git repository" in result.output and "next: cd mine && " in result.output
    assert Path("mine/params.yaml").read_text() == read_example(name).text
    found = {
        path.relative_to("mine").as_posix() for path in Path("mine").rglob("*") if path.is_file()
    }
    own = {path for path in found if not path.startswith(".git/")}
    assert own == {"params.yaml", *FILES, *IGNORE_FILES}
    assert Path("mine/.git").is_dir()


def test_a_repository_keeps_what_it_has(project: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path(".gitignore").write_text("*.log\n/artifacts/")
    Path("pipeline.py").write_text("raise SystemExit('mine')\n")
    shutil.rmtree(".dvc")
    result = init(".")
    assert result.exit_code == 0, result.output
    assert "git repository" not in result.output
    lines = Path(".gitignore").read_text().splitlines()
    assert lines[:2] == ["*.log", "/artifacts/"] and "/mlflow/" in lines
    assert lines.count("/artifacts/") == 1
    assert Path("pipeline.py").read_text() == "raise SystemExit('mine')\n"
    again = init(".")
    assert again.exit_code == 0 and "all files were there already" in again.output


@pytest.mark.parametrize("path", ["params.yaml", "dvc.yaml", ".dvc/config", "rescores/dvc.yaml"])
def test_a_file_in_the_way_is_named_and_nothing_is_written(project: Path, path: str) -> None:
    shutil.rmtree(".dvc")
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("mine: 1\n")
    before = sorted(Path().rglob("*"))
    result = init(".")
    assert result.exit_code == 1 and path in str(result.exception)
    assert sorted(Path().rglob("*")) == before and Path(path).read_text() == "mine: 1\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".dvc", b""),
        ("rescores", b""),
        (".dvc/plots", b""),
        (".gitignore", b"\xff\n"),
        (".gitignore", None),
    ],
)
def test_what_is_no_folder_or_no_text_is_named_and_nothing_is_written(
    project: Path, path: str, content: bytes | None
) -> None:
    shutil.rmtree(".dvc")
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).mkdir() if content is None else Path(path).write_bytes(content)
    before = sorted(Path().rglob("*"))
    result = init(".")
    assert result.exit_code == 1 and f" has {path} already" in str(result.exception)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_file_is_no_folder(project: Path, folder: str) -> None:
    Path("taken").write_text("x")
    result = init(folder)
    assert result.exit_code == 1 and "is a file" in str(result.exception)
