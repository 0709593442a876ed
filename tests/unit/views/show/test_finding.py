import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollbook.core.errors import ArtifactError
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import path_of
from rollbook.views.show.facts import PromptFacts, RolloutFacts
from rollbook.views.show.finding import Found, _one, find
from rollbook.views.show.shown import facts_of
from tests.unit.views.show.project import edit, names


def found(text: str) -> Found:
    return find(Run(), text)


def test_whole_ids(looked_at: Path) -> None:
    ids = names()
    assert found(ids["rollout"]) == Found("rollout", ids["rollout"], "i0002")
    assert found(ids["group"]) == Found("group", ids["group"], "i0002")
    assert found(ids["prompt"]) == Found("prompt", ids["prompt"])
    assert found(ids["evaluation"]) == Found("rollout", ids["evaluation"], "i0002")
    assert found(ids["evaluation"]).table == "evaluations"
    assert found("i0002") == Found("policy", "i0002", "i0002")
    assert found(ids["evaluated"]) == Found("prompt", ids["evaluated"])


def test_beginnings(looked_at: Path) -> None:
    ids = names()
    prompt = ids["prompt"]
    assert found(f"i0002/{prompt[:6]}").id == ids["group"]
    assert found(f"i0002/{prompt[:6]}/03").id == ids["rollout"]
    assert found(f"{ids['group']}/").id == ids["group"]
    assert found(prompt[:9]).id == prompt
    head, key, evaluated, place = ids["evaluation"].split("/")
    assert found(f"{head}/{key}/{evaluated[:7]}/{place}").id == ids["evaluation"]
    digest = Run().policy_digest("i0001")
    assert found(digest[:20]) == Found("policy", "i0001", "i0001")
    assert found(digest) == Found("policy", "i0001", "i0001")


def test_a_beginning_of_several_ids_names_them(looked_at: Path) -> None:
    ids = names()
    with pytest.raises(ArtifactError, match="beginning of 8 ids") as error:
        found(f"{ids['group']}/0")
    assert str(error.value).count(ids["group"]) == 9
    with pytest.raises(ArtifactError, match="beginning of 3 ids") as error:
        found("i00")
    assert "policy i0000" in str(error.value)
    with pytest.raises(ArtifactError, match=r"beginning of 64 ids") as error:
        found("eval:heldout/i0001/")
    assert "and 54 more" in str(error.value)
    assert str(error.value).count("\n  eval:heldout/i0001/") == 10


def test_unknown_ids_name_the_nearest(looked_at: Path) -> None:
    ids = names()
    wrong = f"{ids['prompt'][:-1]}{'0' if ids['prompt'][-1] != '0' else '1'}"
    with pytest.raises(ArtifactError, match=f"nearest: {ids['prompt']}"):
        found(wrong)
    with pytest.raises(ArtifactError, match=f"nearest: {ids['group']}"):
        found(f"i0002/{wrong}")
    with pytest.raises(ArtifactError, match=r"'i0007/.*'\n.*nearest: i000"):
        found(f"i0007/{ids['prompt']}")
    with pytest.raises(ArtifactError, match=r"nearest: .*/00"):
        found(f"{ids['group']}/12")
    with pytest.raises(ArtifactError, match="nearest: eval:heldout/i0002"):
        found(f"eval:heldin/i0002/{ids['evaluated']}")
    with pytest.raises(ArtifactError, match="no rollout, group, prompt or policy 'hello'"):
        found("hello")
    with pytest.raises(ArtifactError, match="more parts than an id"):
        found(f"{ids['rollout']}/1/2")


def test_where_nothing_is_it_says_so(project: Path) -> None:
    with pytest.raises(ArtifactError, match="`rollbook pull` brings"):
        found("4a7f")
    with pytest.raises(ArtifactError, match="no rollouts on disk"):
        found("i0001/4a7f")
    with pytest.raises(ArtifactError, match="no evaluations on disk"):
        found("eval:heldout/i0001/4a7f")


def test_a_whole_id_is_not_the_beginning_of_another() -> None:
    names = ["i0001/a/10", "i0001/a/100"]
    assert _one("", names, "i0001/a/10") == "i0001/a/10"
    assert _one("", names, "i0001/a/100") == "i0001/a/100"
    with pytest.raises(ArtifactError, match="2 ids"):
        _one("i0001/a/1", names, "i0001/a/1")


@pytest.mark.parametrize("name", ["math/aime", "math/aime2024"])
def test_names_of_sets_may_hold_slashes(changeable: Path, name: str) -> None:
    rows = pq.read_table(path_of("evaluations", "i0002"))
    named = {
        column: [text.replace("heldout", name) for text in rows[column].to_pylist()]
        for column in ("rollout_id", "group_id", "set")
    }
    edit("evaluations", "i0002", **named)
    whole = names()["evaluation"].replace("heldout", name)
    assert found(whole) == Found("rollout", whole, "i0002")
    group, _, sample = whole.rpartition("/")
    assert found(group) == Found("group", group, "i0002")
    assert found(f"{group[:-4]}/{sample}").id == whole
    shown = facts_of(Run(), whole)
    assert isinstance(shown, RolloutFacts) and shown.evaluation_set == name
    over_time = facts_of(Run(), whole, over_time=True)
    assert isinstance(over_time, PromptFacts)
    assert [each.evaluation_set for each in over_time.occurrences] == ["heldout", name]


def test_a_folder_a_number_and_the_same_end(looked_at: Path) -> None:
    ids = names()
    assert found("artifacts/policies/i0002/") == Found("policy", "i0002", "i0002")
    assert ids["rollout"].endswith("/03") and found(f"{ids['group']}/3").id == ids["rollout"]
    with pytest.raises(ArtifactError, match="nearest: i0002, i0001, i0000"):
        found("i0099")
    with pytest.raises(ArtifactError, match="nearest: i0002,"):
        find(Run(), "i2")


def test_what_is_recorded_and_not_here_is_pulled(changeable: Path) -> None:
    """As in a fresh clone, and with only a part of it pulled."""
    md5s = f"  a:\n    outs:\n    - path: artifacts/policies/i0009\n      md5: {'0' * 32}.dir\n"
    Path("dvc.lock").write_text(f"stages:\n{md5s}")
    for whole in (True, False):
        with pytest.raises(ArtifactError) as error:
            found("i0009")
        assert error.value.hint.startswith("`rollbook pull` brings")
        if whole:
            shutil.rmtree("artifacts")
    with pytest.raises(ArtifactError) as error:
        found("i0009/")
    assert error.value.hint.startswith("`rollbook pull` brings")
