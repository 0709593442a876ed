"""What README.md tells people to write about rewards is taken as it stands."""

import re
from pathlib import Path

from rollbook.core.yaml import parse_yaml
from rollbook.settings.params import parse_params
from tests.unit.settings.test_params import shipped

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Fenced blocks of the README."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_rewards_are_valid_as_shown(project: Path) -> None:
    (project / "my_rewards.py").write_text(*blocks("python"))
    for folder in re.findall(r"model: (models/my_rm)", README):
        (project / folder).mkdir(parents=True)
    raw = shipped()
    for block in blocks("yaml"):
        shown = parse_yaml(block, "README.md")
        for part in ("recipes", "rescores"):
            raw[part] = {**raw.get(part, {}), **shown.get(part, {})}
    params = parse_params(raw)
    assert {"strict", "coder", "judged", "partial"} <= params.recipes.keys()
    assert params.rescores["partial"].recipe == "partial"
    (near,) = params.recipes["partial"].score_rollouts.rewards
    assert near.label == "near"
