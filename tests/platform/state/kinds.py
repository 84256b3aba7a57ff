"""Kinds of plain JSON, for tests of the store itself."""

from typing import Any

from headrace.platform.state.records import Kind

RawKind = Kind[dict[str, Any], dict[str, Any]]

MODEL: RawKind = Kind("model", dict, dict)
ENDPOINT: RawKind = Kind("endpoint", dict, dict)
WORKER: RawKind = Kind("worker", dict, dict)
ROUTE: RawKind = Kind("route", dict, dict)
ACCESS_KEY: RawKind = Kind("access-key", dict, dict)
