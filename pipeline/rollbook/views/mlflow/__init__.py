"""MLflow as a view of the artifacts: written from disk, never the only place where anything is.

Nothing else imports mlflow. It reads these variables when it is imported, so they are set here;
what the user sets himself wins.
"""

import os

for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A server that is away must not keep training waiting.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}.items():
    os.environ.setdefault(_name, _value)
