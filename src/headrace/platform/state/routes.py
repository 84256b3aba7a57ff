"""
Routes, and the signals between gateway and reconciler that do not go through the store.

A route has the replicas that serve an endpoint, and their shares of the traffic. The reconciler derives routes and
writes them to the store, from which the gateway reads them: all state that must survive is in records. Three facts are
too frequent or too urgent for a record: the load of each worker, a worker that accepts no connections, and a request to
a target that is scaled to zero. The gateway sends all three, `platform.assembly` connects the two sides, and a lost
signal costs time, never correctness.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.platform.state.records import Json, Kind, NoStatus

RoutingStrategy = Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A worker that answers requests."""

    worker: str
    """Name of the worker's record."""
    url: str
    """`http://host:port`"""
    token: str = field(default="", repr=False)
    """Bearer token that the worker requires; empty for none."""


ANY_CONTAINER: Final = "*"
"""In place of the name of a container: whichever a request names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The replicas of a variant in one revision of its configuration."""

    generation: int
    share: float
    """Share of the variant's traffic, 0 to 1; the shares of a variant add up to 1. 0 while baking or draining."""
    replicas: tuple[Replica, ...]
    config: str = ""
    """Name of the endpoint configuration; empty for a component."""
    containers: tuple[str, ...] = ()
    """Names of the containers of each replica; empty if its model has one container."""
    is_direct: bool = False
    """True: each request names the container that answers it; False: the containers are a pipeline."""

    def answers(self, container: str | None) -> bool:
        """Return whether a replica can answer a request that names this container, or none."""
        if container == ANY_CONTAINER:
            return True
        return container in self.containers if self.is_direct else container is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoute:
    """The adapter that the copies of another inference component apply to a request."""

    name: str
    """The name by which the copies know it."""
    base: str
    """The inference component whose copies they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRouting:
    """The `PrefixAwareRoutingConfig` of a variant."""

    num_bytes: int | None = None
    """Bytes of a body that are compared as its prefix."""
    max_load: int | None = None
    """In-flight requests of a replica at which it gets no more of them for the prefixes that it has cached."""


DEFAULT_PREFIX_ROUTING: Final = PrefixRouting()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRoute:
    name: str
    weight: float
    fleets: tuple[Fleet, ...]
    strategy: RoutingStrategy = "RANDOM"
    prefix_routing: PrefixRouting = DEFAULT_PREFIX_ROUTING
    """Replaces defaults of the strategy PREFIX_AWARE."""
    instance_type: str = ""
    standby: bool = False
    """No replica serves, but requests may wait for one: the variant is scaled to zero, or its first copies start."""
    instances: int = 0
    """Instances available for inference components; 0 for a variant with its own model."""
    max_concurrency: int | None = None
    """`MaxConcurrency` of a serverless variant: requests in flight at which further ones are throttled."""
    adapter: AdapterRoute | None = None
    """Set for an adapter inference component: its replicas are copies of the base component."""
    model_prefix: str = ""
    """Address of the folder of the models that a request's `TargetModel` chooses from; empty: it has one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRoute:
    name: str
    variant: str
    """The production variant whose instances it is placed on."""
    route: VariantRoute
    """The route of its copies; `weight` is unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOutput:
    """The S3 locations in an endpoint's `AsyncInferenceConfig`."""

    output_path: str
    """`s3://bucket/prefix`"""
    failure_path: str | None = None
    max_concurrent_per_replica: int = 4


INTERNAL: Final = "transform-job."
"""Prefix of the names of routes to the workers of a job: names of endpoints have no dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """An endpoint's `DataCaptureConfig`, as far as the gateway needs it."""

    destination: str
    """`s3://bucket/prefix`"""
    percentage: int
    """Share of the requests that are captured, 0 to 100."""
    takes_input: bool
    takes_output: bool
    csv_types: tuple[str, ...] = ()
    """Content types, in lower case, of bodies that are captured as the text of a CSV file."""
    json_types: tuple[str, ...] = ()
    """Content types of bodies that are captured as JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The replicas of an endpoint and their shares of the traffic."""

    endpoint: str
    endpoint_arn: str
    endpoint_uid: str
    created_s: float
    status: str
    """EndpointStatus, for messages."""
    variants: tuple[VariantRoute, ...]
    components: tuple[ComponentRoute, ...] = ()
    async_output: AsyncOutput | None = None
    capture: Capture | None = None
    shadows: tuple[VariantRoute, ...] = ()
    """Shadow variants; the `weight` of one is the share of the requests that are copied to it, 0 to 1."""

    @property
    def all_variants(self) -> tuple[VariantRoute, ...]:
        return (*self.variants, *self.shadows)

    @property
    def is_internal(self) -> bool:
        """True for the workers of a job, which are no endpoint to users."""
        return self.endpoint.startswith(INTERNAL)


def _with_default(spec: Json, status: Json) -> tuple[Json, Json]:
    """Migrate to a version with one more member, which has a default."""
    return spec, status


ROUTE: Final = Kind("route", Route, NoStatus, migrations=(_with_default,) * 6)
"""A route has the name of its endpoint."""


ReadLoads = Callable[[], Mapping[str, int]]
"""Return the number of in-flight requests by worker name; workers without any may be left out."""

QuarantineListener = Callable[[], None]
"""Called when a worker stops accepting connections, to reconcile now instead of at the next pass. Returns at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeTarget:
    """The variant or component that a request addresses, to be scaled up from zero for it."""

    endpoint: str
    variant: str | None = None
    """The production variant; None if the request names none, so that any variant of the endpoint will do."""
    component: str | None = None
    """The inference component, given without its variant."""


Wake = Callable[[WakeTarget], None]
"""Scale a variant or a component up from zero. Returns at once; called again while requests are held for the target."""
