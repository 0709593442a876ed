"""The run in MLflow that shows an iteration. The project's own store is asked directly: importing MLflow takes seconds.

Nothing is written. Where the store is a server, or holds something else than expected, there is no link but what to
look for.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.config import BASE_KEY
from pipeline.showing.facts import Tracked
from pipeline.tracking.store import is_default, tracking_uri

SERVER = "http://127.0.0.1:5000"
"""Where `make ui` and `rollbook ui` serve unless told otherwise."""
QUERY = """
SELECT runs.run_uuid, runs.experiment_id FROM runs
JOIN tags AS made ON made.run_uuid = runs.run_uuid AND made.key = 'policy_digest.out' AND made.value = :digest
JOIN tags AS of ON of.run_uuid = runs.run_uuid AND of.key = 'iteration' AND of.value = :key
WHERE runs.lifecycle_stage = 'active' AND runs.status = 'FINISHED'
ORDER BY runs.end_time DESC LIMIT 1
"""


def tracked(key: str, digest: str) -> Tracked:
    """The run of an iteration that made a policy.

    Args:
        key: of the iteration.
        digest: of the policy.
    """
    if key == BASE_KEY:
        return Tracked("", "", "no run of its own: it is step 0 of the run of every chain from it")
    search = f"tags.`policy_digest.out` = '{digest}'"
    uri = tracking_uri()
    if not is_default():
        return Tracked("", "", f"in the MLflow at {uri}, search runs for {search}")
    file = Path(uri.removeprefix("sqlite:///"))
    if not file.is_file():
        return Tracked("", "", "there is no MLflow store here; `rollbook track` makes it")
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0.2)) as store:
            found = store.execute(QUERY, {"digest": digest, "key": key}).fetchone()
    except sqlite3.Error:  # busy, or laid out by another MLflow
        return Tracked("", "", f"`make ui`, then search runs for {search}")
    if found is None:
        return Tracked("", "", "not in the MLflow store yet; `rollbook track` sends it")
    run, experiment = found
    page = f"{SERVER}/#/experiments/{experiment}/runs/{run}"
    return Tracked(str(run), page, f"`make ui`, then {page}")
