"""Sampled rollouts as MLflow traces: prompt in, completion out, rewards as feedback.

Spans and trace infos are built here and sent as they are. MLflow's fluent API is slower, makes up ids and takes the
present for the time; these ids come from run and rollout, so sending twice changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow.entities import AssessmentError, AssessmentSource, Expectation, Feedback, Span
from mlflow.entities.assessment import Assessment
from mlflow.entities.trace_info import TraceInfo
from mlflow.entities.trace_location import TraceLocation
from mlflow.entities.trace_state import TraceState
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey

from rollbook.views.mlflow.names import shortened
from rollbook.views.mlflow.rollout_view import question
from rollbook.views.mlflow.store import TrackingStore

PREVIEW_LENGTH = 1000
INPUT_COLUMNS = ("messages", "prompt")
OUTPUT_COLUMNS = ("text",)

PART = "unweighted; one of the parts of reward"
RATIONALES = {
    "reward": "weighted sum of its parts; the answer ended by {finish_reason} after {length_tokens} tokens",
    "advantage": "what the update weighs this answer by, against the others of group {group_id}",
}

Row = Mapping[str, Any]


def send_traces(store: TrackingStore, run_id: str, rows: Sequence[Row], time_ms: int) -> None:
    """Shows rollouts under a run. They are a millisecond apart, so that they keep their order."""
    traces = [(trace_id_of(run_id, row), row, time_ms + place) for place, row in enumerate(rows)]
    if not traces:
        return
    for trace_id, row, when in traces:
        store.traces.start_trace(_info(store, run_id, trace_id, row, when))
    store.traces.log_spans(store.experiment_id, [_span(*trace) for trace in traces])


def trace_id_of(run_id: str, row: Row) -> str:
    """MLflow's form of a trace id, from run and rollout."""
    digest = hashlib.sha256(f"{run_id}/{row['rollout_id']}".encode()).hexdigest()
    return f"tr-{digest[:32]}"


def _info(store: TrackingStore, run_id: str, trace_id: str, row: Row, time_ms: int) -> TraceInfo:
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(store.experiment_id),
        request_time=time_ms,
        execution_duration=0,
        state=TraceState.OK,
        request_preview=shortened(question(row), PREVIEW_LENGTH),
        response_preview=shortened(row["text"], PREVIEW_LENGTH),
        client_request_id=row["rollout_id"],
        trace_metadata={
            TraceMetadataKey.SOURCE_RUN: run_id,
            # left out, the store works it out again from the spans of each trace
            TraceMetadataKey.TOKEN_USAGE: json.dumps(_usage(row)),
        },
        tags={TraceTagKey.TRACE_NAME: row["rollout_id"], "iteration": row["iteration"]},
        assessments=list(_assessments(row, trace_id, time_ms)),
    )


def _span(trace_id: str, row: Row, time_ms: int) -> Span:
    number = trace_id.removeprefix("tr-")
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_id,
        SpanAttributeKey.SPAN_TYPE: "LLM",
        SpanAttributeKey.INPUTS: {name: row[name] for name in INPUT_COLUMNS},
        SpanAttributeKey.OUTPUTS: {name: row[name] for name in OUTPUT_COLUMNS},
        SpanAttributeKey.CHAT_USAGE: _usage(row),
        **{
            name: value
            for name, value in row.items()
            if name not in (*INPUT_COLUMNS, *OUTPUT_COLUMNS) and value is not None
        },
    }
    return Span.from_dict(
        {
            "trace_id": _encoded(number),
            "span_id": _encoded(number[:16]),
            "parent_span_id": None,
            "name": "rollout",
            "start_time_unix_nano": time_ms * 1_000_000,
            "end_time_unix_nano": time_ms * 1_000_000,
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "events": [],
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
        }
    )


def _usage(row: Row) -> dict[str, int]:
    """Tokens of prompt and completion, under MLflow's names."""
    prompt, completion = row["prompt_length_tokens"], row["length_tokens"]
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _assessments(row: Row, trace_id: str, time_ms: int) -> Iterator[Assessment]:
    for assessment in _judgements(row):
        assessment.trace_id = trace_id
        assessment.create_time_ms = assessment.last_update_time_ms = time_ms
        yield assessment


def _judgements(row: Row) -> Iterator[Assessment]:
    """The total, every function's reward and the advantage as feedback; the reference answer as what was expected."""
    for name, value in row.items():
        if value is not None and (name in RATIONALES or name.startswith("reward_")):
            rationale = RATIONALES.get(name, PART).format(**row)
            source = AssessmentSource("CODE", name)
            yield Feedback(name, value, source=source, rationale=rationale)
    if row.get("error"):
        error = AssessmentError("REWARD_ERROR", row["error"])
        yield Feedback("reward_error", error=error, source=AssessmentSource("CODE", "rewards"))
    if row.get("reference_answer") is not None:
        source = AssessmentSource("CODE", row.get("source") or "data")
        yield Expectation("reference_answer", row["reference_answer"], source)


def _encoded(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()
