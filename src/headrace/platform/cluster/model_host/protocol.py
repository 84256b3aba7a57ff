"""
The requests between the gateway and a model host.

They are SageMaker's contract for containers with several models, with two additions. A model may be registered without
being loaded (`lazy`): a request then loads it, and waits in the host. And a registration has the grants for the model's
files, as a host has no keys of the object storage.

Source: SageMaker developer guide, "Custom Containers Contract for Multi-Model Endpoints".
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, cast, get_args

from headrace.serving.artifacts.sources import ObjectGrant

TARGET_HEADER: Final = "X-Amzn-SageMaker-Target-Model"
INVOCATIONS: Final = "/invocations"
"""The path of a model's server that stands for `/invoke` of the contract; other paths keep their names."""
WAIT_HEADER: Final = "x-headrace-model-wait-s"
"""Longest time in seconds that a request waits for its model to be loaded."""
TIMING_HEADER: Final = "x-headrace-model-timing"
"""`wait=1200;download=300;load=900;unload=40`, in microseconds: what a request waited for, and what was unloaded."""
REASON_HEADER: Final = "x-headrace-model-reason"
"""Why a host did not pass a request on to its model: a `Reason`."""
_PAIR: Final = re.compile(r"(wait|download|load|unload)=([0-9]{1,15})(?:;|$)")
Reason = Literal["unknown", "not-ready", "not-fetched", "not-loaded", "no-memory"]
STATUSES: Final[dict[Reason, int]] = {
    "unknown": 404,
    "not-ready": 503,
    "not-fetched": 424,
    "not-loaded": 500,
    "no-memory": 507,
}
"""Statuses of responses with a reason; 507 is the contract's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The body of `POST /models`."""

    model_name: str
    url: str
    """Location of the model's files: an archive, a .gguf file or a folder."""
    grants: tuple[ObjectGrant, ...] = ()
    lazy: bool = False
    """True: the first request loads the model. False: it is loaded before the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTiming:
    """The time that a request spent waiting for its model, and what happened meanwhile. Microseconds."""

    wait: int
    download: int | None = None
    """Set for the one request that loaded the model."""
    load: int | None = None
    unload: tuple[int, ...] = ()
    """Models that were unloaded since the last response."""


def model_id(target: str) -> str:
    """Return the name by which a host knows a target model: opaque, and safe in a path."""
    return sha256(target.encode()).hexdigest()[:32]


def render_timing(timing: ModelTiming) -> str:
    pairs = [("wait", timing.wait), ("download", timing.download), ("load", timing.load)]
    pairs += [("unload", unload) for unload in timing.unload]
    return ";".join(f"{name}={value}" for name, value in pairs if value is not None)


def parse_timing(text: str) -> ModelTiming:
    """Parse a rendered timing; what cannot be read is left out."""
    pairs = [(name, int(value)) for name, value in _PAIR.findall(text)]
    values = dict(pairs)
    return ModelTiming(
        wait=values.get("wait", 0),
        download=values.get("download"),
        load=values.get("load"),
        unload=tuple(value for name, value in pairs if name == "unload"),
    )


def reason_of(headers: dict[str, str]) -> Reason | None:
    """Return why a host did not pass a request on; None if the response is the model's own."""
    text = headers.get(REASON_HEADER)
    return cast("Reason", text) if text in get_args(Reason) else None
