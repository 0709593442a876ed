"""Files of a new project besides params.yaml, for `rollbook init`. Rollbook's own repository has the same ones."""

from pathlib import Path

FOLDER = Path(__file__).parent
FILES = {
    "dvc.yaml": "stages.yaml",  # by its own name DVC would take it for a pipeline
    "rescores/dvc.yaml": "rescores.yaml",
    ".dvc/config": "dvc_config",
    ".dvc/.gitignore": "dvc_gitignore",
    ".dvc/plots/iterations.json": "plots/iterations.json",
    ".dvc/plots/page.html": "plots/page.html",
}
"""Path in a project: file in this folder."""
IGNORE_FILES = {".gitignore": "gitignore", ".dvcignore": "dvcignore"}
"""The same for files that a project may have already: lines that it lacks are added."""
