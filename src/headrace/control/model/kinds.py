"""Kinds of records whose parts are still plain JSON; a typed kind stands with the resource it belongs to."""

from typing import Final

from headrace.state.records import Kind, RawKind

MODEL: Final[RawKind] = Kind("model", dict, dict)
ENDPOINT_CONFIG: Final[RawKind] = Kind("endpoint-config", dict, dict)
ENDPOINT: Final[RawKind] = Kind("endpoint", dict, dict)
WORKER: Final[RawKind] = Kind("worker", dict, dict)
ACCESS_KEY: Final[RawKind] = Kind("access-key", dict, dict)
INFERENCE_COMPONENT: Final[RawKind] = Kind("inference-component", dict, dict)
