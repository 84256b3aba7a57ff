"""Queries of CloudWatch Logs Insights, and their results."""

from typing import Final, Literal

import msgspec

from headrace.platform.state.records import Kind, RecordPart

QueryState = Literal["Running", "Complete", "Failed", "Cancelled", "Timeout"]


class LogQuerySpec(RecordPart, frozen=True, kw_only=True):
    query: str
    groups: list[str]
    start_s: float
    end_s: float
    limit: int


class LogQueryStatus(RecordPart, frozen=True, kw_only=True):
    state: QueryState = "Running"
    error: str = ""
    rows: list[list[dict[str, str]]] = msgspec.field(default_factory=list)
    num_scanned: int = 0
    num_matched: int = 0
    num_bytes: int = 0
    ended_s: float | None = None


LOG_QUERY: Final = Kind("log-query", LogQuerySpec, LogQueryStatus)
