"""What an iteration read and made, as MLflow points to it: path, DVC's md5, no bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, LoggedModelStatus
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL

from rollbook.project.plan import load_stage
from rollbook.project.plan_file import ITERATION_STAGES
from rollbook.project.run.run import Run
from rollbook.tables.artifacts import is_table, path_of
from rollbook.views.mlflow.chains import FinishedIteration
from rollbook.views.mlflow.descriptions import NOTE, policy_text
from rollbook.views.mlflow.store import TrackingStore


@dataclass(frozen=True)
class Artifact:
    """A table or folder that an iteration read or made.

    Attributes:
        content: its content hash.
        md5: DVC's, or what stands for it where DVC does not know the file yet.
        made: by this iteration.
    """

    path: Path
    content: str
    md5: str
    made: bool

    @property
    def kind(self) -> str:
        """Such as `rollouts`."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """Such as `rollouts/i0003`."""
        return f"{self.kind}/{self.path.stem}"


def artifacts_of(run: Run, step: FinishedIteration) -> list[Artifact]:
    """All tables and folders that the iteration's stages read, then those that they made, by name."""
    contents: dict[Path, tuple[str, bool]] = {}
    for name in ITERATION_STAGES:
        declared, info = load_stage(name), step.infos[name]
        for item in declared.inputs:
            if item.was_read(info.inputs):
                path = item.path(step.key, run.params)
                contents.setdefault(path, (info.inputs[item.label], False))
        for made in declared.outputs:
            if made.label in info.outputs:
                contents[made.path(step.key)] = (info.outputs[made.label], True)
    return [
        Artifact(path, content, run.md5s.get(path.as_posix(), f"content:{content[:24]}"), made)
        for path, (content, made) in sorted(
            contents.items(), key=lambda item: (item[1][1], item[0])
        )
    ]


def link_policy(
    store: TrackingStore, run_id: str, step: FinishedIteration, artifacts: list[Artifact]
) -> str:
    """The policy as a model that stays where it is: path and hashes, no bytes."""
    policy = path_of("policies", step.key)
    artifact = next(item for item in artifacts if item.path == policy)
    model = store.client.create_logged_model(
        store.experiment_id,
        name=f"policy-{step.key}",
        source_run_id=run_id,
        tags={
            MLFLOW_MODEL_IS_EXTERNAL: "true",
            "path": artifact.path.as_posix(),
            "md5": artifact.md5,
            "digest": artifact.content,
            NOTE: policy_text(step, store.experiment_id, run_id),
        },
        params={"iteration": step.key, "previous": step.previous, "recipe": step.recipe},
        model_type="policy",
    )
    store.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    store.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step.number)])
    return model.model_id


def dataset_of(run: Run, artifact: Artifact) -> DatasetInput:
    """What `mlflow.data.MetaDataset` becomes in the store; MLflow offers no import of its local source class."""
    table = run.find_table(artifact.kind, artifact.path.stem) if is_table(artifact.kind) else None
    dataset = Dataset(
        name=artifact.name,
        digest=artifact.md5,
        source_type="local",
        source=json.dumps({"uri": artifact.path.as_posix()}),
        profile=json.dumps({"num_rows": table.rows}) if table else None,
    )
    context = InputTag("mlflow.data.context", "made" if artifact.made else "read")
    return DatasetInput(dataset, [context])
