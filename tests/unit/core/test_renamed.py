"""A file of the user's own that imports the old names is told the new ones."""

import re
import sys
from pathlib import Path

import pytest

from rollbook.components.rewards.outcomes import error_text
from rollbook.core.errors import ConfigError
from rollbook.core.registry import load_object
from rollbook.core.renamed import RENAMED, new_name
from rollbook.settings.params import parse_params
from tests.unit.settings.test_params import shipped

MIGRATION = Path(__file__).parents[3] / "docs" / "migration.md"


@pytest.fixture(params=["installed", "checkout"])
def place(request: pytest.FixtureRequest, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a `pipeline` that can be imported; in a checkout there is a folder of that name."""
    folders = [each for each in sys.path if not Path(each or ".", "pipeline").is_dir()]
    if request.param == "checkout":
        (project / "pipeline").mkdir()
        folders.append(str(project))
    monkeypatch.setattr(sys, "path", folders)
    for name in [each for each in sys.modules if each.split(".")[0] in ("pipeline", "stages")]:
        monkeypatch.delitem(sys.modules, name)
    yield project
    for name in [each for each in sys.modules if each.split(".")[0] in ("pipeline", "stages")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "from pipeline.rewards.base import Reward",
            "`pipeline.rewards.base` is `rollbook.components.rewards.base` now",
        ),
        ("from pipeline import load", "`pipeline` is `rollbook` now"),
        ("import pipeline\nload = pipeline.load", "`pipeline` is `rollbook` now"),
        (
            "from stages.score_rollouts import STAGE",
            "`stages.score_rollouts` is `rollbook.stages.score_rollouts` now",
        ),
        (
            "import pipeline.losses.base, pipeline.tokens",
            "`pipeline.losses.base` is `rollbook.components.losses.base` now; "
            "`pipeline.tokens` is `rollbook.rl.tokens` now",
        ),
    ],
)
def test_an_old_import_names_the_new_module(place: Path, line: str, told: str) -> None:
    (place / "mine.py").write_text(
        f"import re\n{line}\n\ndef f(completions, **columns):\n    pass\n"
    )
    with pytest.raises(ValueError, match=f"^mine.py cannot be imported: .*{re.escape(told)}$"):
        load_object("mine.py:f")


def test_a_helper_of_the_users_file_is_read_too(place: Path) -> None:
    (place / "aid.py").write_text("from pipeline.ids import seed_of\n")
    (place / "mine.py").write_text("from aid import seed_of\n")
    with pytest.raises(ValueError, match=r"`pipeline.ids` is `rollbook.core.ids` now$"):
        load_object("mine.py:f")


def test_params_yaml_may_name_an_old_module(place: Path) -> None:
    raw = shipped()
    reward = {"path": "pipeline.rewards.math_answer:MathAnswer"}
    raw["recipes"]["grpo"]["score_rollouts"] = {"rewards": [reward]}
    told = "`pipeline.rewards.math_answer` is `rollbook.components.rewards.math_answer` now"
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse_params(raw)


def test_an_import_inside_a_reward_is_told_where_it_fails(place: Path) -> None:
    (place / "mine.py").write_text("def f():\n    from pipeline.ragged import lengths\n")
    with pytest.raises(ImportError) as caught:
        load_object("mine.py:f")()
    assert error_text(caught.value).endswith("; `pipeline.ragged` is `rollbook.core.ragged` now")


def test_other_packages_and_a_pipeline_of_the_users_own_are_left_alone(place: Path) -> None:
    (place / "other.py").write_text("import no_such_package\n")
    with pytest.raises(ValueError, match=r"No module named 'no_such_package'$"):
        load_object("other.py:f")
    (place / "pipeline").mkdir(exist_ok=True)
    (place / "pipeline" / "__init__.py").touch()
    (place / "mine.py").write_text("from pipeline import load\n")
    with pytest.raises(ValueError, match="cannot import name 'load'") as caught:
        load_object("mine.py:f")
    assert "rollbook" not in str(caught.value)


def test_modules_that_have_another_name_are_there() -> None:
    for old, new in RENAMED.items():
        assert new_name(f"pipeline.{old}") == f"rollbook.{new}", old


def test_the_table_in_the_documents_is_right() -> None:
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| `([a-z_.]+)` \|", MIGRATION.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 10
    for old, new in rows:
        assert new_name(old) == new
    assert new_name("pipeline.no_such_module") is None
    assert new_name("numpy.linalg") is None
