"""Finished batches of a generation, kept until the stage has written its table, so that a killed one goes on.

A batch is kept whole or not at all, and none of its rows is generated again, so the table gets the bytes that an
undisturbed run gives it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollbook.components.engines.base import Completion, GenerationRequest
from rollbook.core.atomic import replacing
from rollbook.core.scratch import SCRATCH

FOLDER = SCRATCH / "generation"
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file can raise; it is then as if it were not there."""


@dataclass(frozen=True)
class KeptBatches:
    """The finished batches of one stage under one key.

    Attributes:
        stage: name of the program.
        key: hash of everything that decides a completion's bits.
    """

    stage: str
    key: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.stage / self.key

    def read(self, requests: Sequence[GenerationRequest]) -> list[Completion] | None:
        """The completions of a batch, or None if it is not there or damaged."""
        try:
            with np.load(self._file(requests), allow_pickle=False) as stored:
                ids, logprobs, lengths, reasons = (
                    stored[name] for name in ("ids", "logprobs", "lengths", "reasons")
                )
        except DAMAGE:
            return None
        edges = lengths.cumsum()[:-1]
        rows = zip(np.split(ids, edges), np.split(logprobs, edges), reasons.tolist(), strict=True)
        return [Completion(some.tolist(), own.tolist(), reason) for some, own, reason in rows]

    def write(
        self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]
    ) -> None:
        """Keeps a finished batch.

        Raises:
            ArtifactError: if it cannot be written, such as on a full disk.
        """
        with replacing(self._file(requests)) as file:
            np.savez(
                file,
                ids=np.array([id_ for each in completions for id_ in each.token_ids], np.int64),
                logprobs=np.array([x for each in completions for x in each.logprobs], np.float64),
                lengths=np.array([len(each.token_ids) for each in completions], np.int64),
                reasons=np.array([each.finish_reason for each in completions], np.str_),
            )

    def forget(self) -> None:
        """Removes what is kept."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget_others(self) -> None:
        """Removes what this stage left under other keys: of other settings, code, inputs or iterations."""
        for folder in self.folder.parent.glob("*"):
            if folder != self.folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _file(self, requests: Sequence[GenerationRequest]) -> Path:
        asked = [[list(each.prompt_token_ids), each.seed, each.greedy] for each in requests]
        return self.folder / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}.npz"
