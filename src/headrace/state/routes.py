"""
Routes: which replicas serve an endpoint, and their shares of the traffic.

The reconciler derives them and writes them to the store, from which the gateway reads them.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.state.records import Kind, NoStatus

RoutingStrategy = Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One worker that answers."""

    worker: str
    """Name of its record."""
    url: str
    """`http://host:port`"""
    token: str = field(default="", repr=False)
    """Bearer token that the worker asks for; empty: none."""


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
    standby: bool = False
    """No replica serves, and one may be waited for: it sleeps at zero, or its first copies are on their way."""
    instances: int = 0
    """Instances that stand ready for inference components; 0 for a variant with a model of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRoute:
    """One inference component."""

    name: str
    variant: str
    """The production variant whose instances it is placed on."""
    route: VariantRoute
    """Its copies; `weight` is of no meaning here."""


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
    components: tuple[ComponentRoute, ...] = ()
    async_output: AsyncOutput | None = None


ROUTE: Final = Kind("route", Route, NoStatus)
"""Named like its endpoint."""
