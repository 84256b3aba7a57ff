"""
The signals between gateway and reconciler that do not go through the store.

The reconciler writes routes, which the gateway reads (`state.routes`): all state that must survive is in records. Three
facts are too frequent or too urgent for a record: the load of each worker, a worker that accepts no connections, and a
request to a target that is scaled to zero. The gateway sends all three, `platform.assembly` connects the two sides, and
a lost signal costs time, never correctness.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
