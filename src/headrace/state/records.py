"""
What the store keeps: one kind of record for everything that somebody asked for and that somebody watches.

`spec` is what was asked, `status` what was seen. API handlers write specs, the reconciler writes statuses, the gateway
reads routes; they meet only here. Both are plain JSON objects; `control` gives them their meaning.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class Kind(StrEnum):
    """What a record is about."""

    MODEL = "model"
    ENDPOINT_CONFIG = "endpoint-config"
    ENDPOINT = "endpoint"
    WORKER = "worker"
    ROUTE = "route"
    """Written by the reconciler for the gateway, named like its endpoint; see `state.routes`."""
    ACCESS_KEY = "access-key"
    INFERENCE_COMPONENT = "inference-component"
    ALARM = "alarm"
    SCALABLE_TARGET = "scalable-target"
    SCALING_POLICY = "scaling-policy"
    SCHEDULED_ACTION = "scheduled-action"
    SCALING_ACTIVITY = "scaling-activity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing. (kind, name) is unique among living records; `uid` for ever, as a name may be used again."""

    kind: Kind
    name: str
    uid: str
    revision: int
    """Grows with every write to the store; a write names the revision that it read, and a later one refuses it."""
    spec: Json
    status: Json = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    created_s: float
    """Seconds since 1970."""
    modified_s: float
    deleting_s: float | None = None
    """Since when somebody wants it gone; whoever watches it removes it in the end."""


class Conflict(Exception):
    """The record was written, or removed, by somebody else since it was read. Read it again and decide anew."""


class AlreadyExists(Exception):
    """A living record of that kind has the name."""
