"""Builders of routes, and a store that contains only routes."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.platform.state.records import AnyKind, NoStatus, Record, StoredRecord, Unreadable
from headrace.platform.state.routes import (
    ROUTE,
    AdapterRoute,
    AsyncOutput,
    ComponentRoute,
    Fleet,
    Replica,
    Route,
    RoutingStrategy,
    VariantRoute,
)
from tests.waiting import WAIT_S

ACCOUNT = "123456789012"
REGION = "us-east-1"


def variant(
    name: str = "AllTraffic",
    *fleets: list[str],
    weight: float = 1.0,
    shares: list[float] | None = None,
    strategy: RoutingStrategy = "RANDOM",
    standby: bool = False,
    token: str = "",
) -> VariantRoute:
    """A variant; each fleet is a list of worker URLs, by which the workers are named."""
    shares = shares or [1.0] * len(fleets)
    return VariantRoute(
        name=name,
        weight=weight,
        strategy=strategy,
        standby=standby,
        fleets=tuple(
            Fleet(
                generation=number,
                share=share,
                replicas=tuple(Replica(worker=url, url=url, token=token) for url in urls),
            )
            for number, (urls, share) in enumerate(zip(fleets, shares, strict=True))
        ),
    )


def asleep(name: str = "AllTraffic", *, weight: float = 1.0) -> VariantRoute:
    """A variant at zero that may be woken."""
    return variant(name, [], weight=weight, standby=True)


def component(
    name: str, urls: list[str], *, host: str = "AllTraffic", adapter: AdapterRoute | None = None, **more: Any
) -> ComponentRoute:
    """An inference component with a copy at each URL; at zero if there are none."""
    copies = replace(variant(host, urls, standby=not urls, **more), adapter=adapter)
    return ComponentRoute(name=name, variant=host, route=copies)


def route(
    *variants: VariantRoute,
    endpoint: str = "ep",
    status: str = "InService",
    uid: str = "uid-1",
    async_output: AsyncOutput | None = None,
    components: Sequence[ComponentRoute] = (),
) -> Route:
    return Route(
        endpoint=endpoint,
        endpoint_arn=f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/{endpoint}",
        endpoint_uid=uid,
        created_s=1_700_000_000.0,
        status=status,
        variants=variants,
        components=tuple(components),
        async_output=async_output,
    )


class RouteStore:
    """The part of a store that the gateway uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, StoredRecord] = {}
        self._listeners: list[Callable[[], None]] = []
        self._revision = 0
        self.num_reads = 0
        self.num_revisions_read = 0
        self.answers = threading.Event()
        self.answers.set()
        """While it is cleared, the revision is read and not returned."""
        self.failure: Exception | None = None

    def put_elsewhere(self, route: Route) -> None:
        """Write as another process, whose writes are not announced yet."""
        listeners, self._listeners = self._listeners, []
        self.put(route)
        self._listeners = listeners

    def put(self, *routes: Route) -> None:
        for route in routes:
            self._put(route.endpoint, partial(Record, kind=ROUTE, spec=route, status=NoStatus()))

    def put_unreadable(self, name: str, *, is_newer: bool = False) -> None:
        self._put(name, partial(Unreadable, kind=ROUTE, reason="it was edited", is_newer=is_newer))

    def _put(self, name: str, make: Callable[..., Any]) -> None:
        with self._lock:
            self._revision += 1
            now_s = time.time()
            self._records[name] = make(name=name, uid=name, revision=self._revision, created_s=now_s, modified_s=now_s)
        self._tell()

    def drop(self, name: str) -> None:
        with self._lock:
            self._revision += 1
            del self._records[name]
        self._tell()

    def list(self, kind: AnyKind) -> list[StoredRecord]:
        assert kind is ROUTE
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self.num_reads += 1
            return list(self._records.values())

    def revision(self) -> int:
        with self._lock:
            self.num_revisions_read += 1
            revision = self._revision
        assert self.answers.wait(WAIT_S)
        return revision

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
