"""MLflow's web server, in the process that has MLflow imported already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import uvicorn  # before mlflow.server, which takes it for the sign that it serves and then guards its pages
from mlflow import server
from mlflow.cli import cli


def serve(uri: str, artifacts: str, host: str, port: int) -> None:
    """Serves a store until it is stopped: MLflow's own `ui` command, without the process it starts for the server.

    That process imports all of MLflow again, which takes longer than anything else between the command and the page.
    `_exec_cmd`, by which MLflow starts it, is no public name; a release that has it no more starts the process.

    Args:
        uri: address of the store.
        artifacts: folder or address of files of experiments that have none of their own.
        host: address to listen on.
        port: of the server.
    """
    # Jobs are MLflow's own evaluations on the server; nothing here uses them, and their workers cost seconds.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    # Its gateway to language models is not used either, and covers the page of rollouts with an offer to ask one.
    os.environ.setdefault("MLFLOW_ENABLE_AI_GATEWAY", "false")
    if hasattr(server, "_exec_cmd"):
        server._exec_cmd = _in_this_process
    options = {
        "--backend-store-uri": uri,
        "--default-artifact-root": artifacts,
        "--host": host,
        "--port": str(port),
        "--workers": "1",
    }
    cli(["ui", *(word for option in options.items() for word in option)])


def _in_this_process(command: Sequence[str], *, extra_env: Mapping[str, str], **_: Any) -> NoReturn:
    """What MLflow would start: `python -m uvicorn …`, with more in its environment."""
    os.environ.update(extra_env)
    uvicorn.main(command[3:], standalone_mode=False)
    sys.exit()
