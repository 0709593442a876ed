"""What a step records of the package that it ran with."""

import os
from pathlib import Path

import pytest

from rollbook.project import environment


@pytest.fixture
def package(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rollbook as a small package of two files."""
    folder = project / "site-packages" / "rollbook"
    (folder / "rl").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rl" / "loss.py").write_text("sign = -1\n")
    monkeypatch.setattr(environment, "library_folders", lambda: {"rollbook": folder})
    return folder


def test_the_digest_is_that_of_names_and_contents(package: Path) -> None:
    before = environment.library_digest()
    assert len(before) == 64 and environment.library_digest() == before
    (package / "rl" / "loss.py").write_text("sign = +1\n")
    changed = environment.library_digest()
    (package / "rl" / "loss.py").rename(package / "rl" / "losses.py")
    renamed = environment.library_digest()
    (package / "rl" / "losses.py").rename(package / "rl" / "loss.py")
    (package / "rl" / "loss.py").write_text("sign = -1\n")
    assert len({before, changed, renamed}) == 3
    assert environment.library_digest() == before


def test_what_python_compiles_does_not_count(package: Path) -> None:
    before = environment.library_digest()
    (package / "rl" / "__pycache__").mkdir()
    (package / "rl" / "__pycache__" / "loss.cpython-311.pyc").write_bytes(b"x")
    assert environment.library_digest() == before


def test_files_that_did_not_change_are_not_read_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    hash_of = environment.sha256_of
    monkeypatch.setattr(
        environment, "sha256_of", lambda file: (read.append(file.name), hash_of(file))[1]
    )
    before = environment.library_digest()
    assert sorted(read) == ["__init__.py", "loss.py"]
    assert environment.library_digest() == before and len(read) == 2
    os.utime(package / "rl" / "loss.py", ns=(0, 0))
    assert environment.library_digest() == before and len(read) == 4


def test_it_is_recorded(project: Path) -> None:
    assert environment.environment().library == environment.library_digest()
