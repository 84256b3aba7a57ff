"""The job of a process that runs a query, and its outcome."""

from collections.abc import Mapping

import msgspec

from headrace.platform.cluster.log_streams import LogStream


class QueryJob(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    start_ms: int
    end_ms: int
    limit: int
    account: str
    workers: str
    """Folder with the logs of running workers."""
    ended: str
    """Folder with the logs of ended workers."""
    streams: list[LogStream]
    retention_ms: Mapping[str, int] = {}
    """Log group -> time before which its lines have expired."""


class QueryOutcome(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    """Why the query failed; empty if it did not."""
    rows: list[list[dict[str, str]]] = []
    num_scanned: int = 0
    num_matched: int = 0
    num_bytes: int = 0
