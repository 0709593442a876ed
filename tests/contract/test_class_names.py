"""A class has a name of its own: whoever reads `Finding` knows whose it is. MAY lists conventions, and what is left."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pipeline/rollbook", "stages")
COMPONENTS = "pipeline/rollbook/components/"
MAY = {
    "Settings": "every stage program has one: the settings that its step depends on",
    "Judge": "a reward, and what judges a replayed step",
    "Outcome": "of a program in the sandbox, and of a replayed step",
}
"""Names of several classes, with what they are."""


def places_by_name() -> dict[str, list[str]]:
    """Files that define a class of a name; one entry per class."""
    places = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(file.relative_to(ROOT).as_posix())
    return places


def is_a_component_of_several_kinds(name: str, files: list[str]) -> bool:
    """Components are classes named after their files, so `gpg` of two kinds is two classes `Gpg`."""
    kinds = {Path(file).parent for file in files}
    return len(kinds) == len(files) and all(
        file.startswith(COMPONENTS) and Path(file).stem.replace("_", "") == name.lower()
        for file in files
    )


def test_a_class_name_occurs_once() -> None:
    several = {
        name: files
        for name, files in places_by_name().items()
        if len(files) > 1 and not is_a_component_of_several_kinds(name, files)
    }
    assert {name: files for name, files in several.items() if name not in MAY} == {}
    assert several.keys() == MAY.keys(), "a name that occurs once needs no exception"


def test_components_are_excepted_and_nothing_else() -> None:
    advantages, losses = f"{COMPONENTS}advantages/", f"{COMPONENTS}losses/"
    assert is_a_component_of_several_kinds("Gpg", [f"{advantages}gpg.py", f"{losses}gpg.py"])
    assert not is_a_component_of_several_kinds("Gpg", [f"{losses}gpg.py", f"{losses}gpg.py"])
    assert not is_a_component_of_several_kinds("Gpg", [f"{losses}gpg.py", "stages/gpg.py"])
    assert not is_a_component_of_several_kinds("Gpg", [f"{losses}gpg.py", f"{advantages}pairs.py"])
