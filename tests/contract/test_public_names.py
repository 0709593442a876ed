"""What `import rollbook` offers: it is there, documented and light, and importing the name alone imports no library."""

import inspect
import subprocess
import sys

import pytest

import rollbook
from rollbook.core.component import Component
from tests.contract.test_lightness import HEAVY

LAZY = ("polars", "pandas", "pyarrow", "pydantic", "pandera", "numpy")


def _imported_by(code: str, watched: tuple[str, ...]) -> set[str]:
    report = f"{code}\nimport sys\nprint(*(name for name in {watched!r} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_importing_rollbook_imports_no_library() -> None:
    assert _imported_by("import rollbook", (*HEAVY, *LAZY)) == set()


def test_all_public_names_together_are_light() -> None:
    names = ", ".join(rollbook.__all__)
    assert _imported_by(f"from rollbook import {names}", HEAVY) == set()


@pytest.mark.parametrize("name", rollbook.__all__)
def test_a_public_name_is_the_object_that_its_module_has(name: str) -> None:
    found = getattr(rollbook, name)
    assert inspect.getdoc(found), name
    if name != "load":
        module, _, attribute = rollbook.PUBLIC[name].partition(":")
        assert found is getattr(sys.modules[module], attribute)
    if hasattr(found, "kind"):
        assert issubclass(found, Component)


def test_public_names_are_listed() -> None:
    assert sorted(rollbook.__all__) == sorted([*rollbook.PUBLIC, "load"])
    assert set(rollbook.__all__) <= set(dir(rollbook))
    with pytest.raises(AttributeError, match="no attribute 'Rewards'"):
        _ = rollbook.Rewards


def test_every_kind_that_a_path_may_name_has_its_base_class() -> None:
    kinds = {getattr(getattr(rollbook, name), "kind", None) for name in rollbook.__all__} - {None}
    assert kinds == {
        *("sources", "rewards", "advantages", "losses", "critics", "engines", "policies"),
        "doctor.checks",
    }
