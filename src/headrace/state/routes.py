"""
What the gateway must know of an endpoint: who serves which variant, and how much of the traffic.

The reconciler writes it into the `spec` of the record of `Kind.ROUTE`, from which the gateway reads it.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.state.records import Json

RoutingStrategy = Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One worker that answers."""

    worker: str
    """Name of its record."""
    url: str
    """`http://host:port`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The replicas of one variant under one version of its configuration."""

    generation: int
    share: float
    """Of the variant's traffic, 0 to 1; those of a variant add up to 1. 0: gets none (baking, draining)."""
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRoute:
    """One production variant."""

    name: str
    weight: float
    fleets: tuple[Fleet, ...]
    strategy: RoutingStrategy = "RANDOM"
    instance_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOutput:
    """`AsyncInferenceConfig` of an endpoint."""

    output_path: str
    """s3://"""
    failure_path: str | None = None
    max_concurrent_per_replica: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One endpoint."""

    endpoint: str
    endpoint_arn: str
    endpoint_uid: str
    created_s: float
    status: str
    """EndpointStatus, for texts."""
    variants: tuple[VariantRoute, ...]
    async_output: AsyncOutput | None = None


def route_to_json(route: Route) -> Json:
    """As the record keeps it."""
    json: Json = msgspec.to_builtins(route)
    return json


def route_from_json(json: Json) -> Route:
    """Back from the record."""
    return msgspec.convert(json, Route)
