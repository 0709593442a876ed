"""One name, `rollbook`: where its code lies, and that nothing goes by the names of folders."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "pipeline"
LIBRARY = SOURCES / "rollbook"
LAYERS = {"core", "tables", "dvc", "components", "settings", "rl", "project", "views", "cli"}
APART = {"stages", "benchmarks"}
"""Packages that lie at the top of the repository and have their tests below tests/unit too."""


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_library_is_its_packages_and_no_loose_module() -> None:
    assert [file.name for file in LIBRARY.glob("*.py")] == ["__init__.py"]
    assert {file.parent.name for file in LIBRARY.glob("*/__init__.py")} == LAYERS


def test_the_source_root_is_no_package() -> None:
    assert not (SOURCES / "__init__.py").exists()
    assert [folder.parent.name for folder in SOURCES.glob("*/__init__.py")] == ["rollbook"]


@pytest.mark.parametrize("folder", ["pipeline", "stages", "benchmarks", "tests"])
def test_nothing_is_imported_by_the_name_of_a_folder(folder: str) -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in _modules(ROOT / folder)
        for name in _imported(file)
        if name.partition(".")[0] in ("pipeline", "stages")
    }
    assert found == set()


def test_the_library_imports_no_stage_program() -> None:
    """`plan` loads their declarations by name; a program imports the library."""
    found = {
        str(file.relative_to(ROOT))
        for file in _modules(LIBRARY)
        for name in _imported(file)
        if name.startswith("rollbook.stages")
    }
    assert found == set()


def test_unit_tests_lie_as_the_packages_do() -> None:
    unit = ROOT / "tests" / "unit"
    assert list(unit.glob("test_*.py")) == []
    folders = {file.parent.relative_to(unit) for file in _modules(unit)} - {Path()}
    strange = {
        str(folder)
        for folder in folders
        if not (folder.parts[0] in APART or (LIBRARY / folder / "__init__.py").is_file())
    }
    assert strange == set()
    without_tests = {name for name in LAYERS | APART if not any((unit / name).rglob("test_*.py"))}
    assert without_tests == set()
