"""
Under any order of events at replicas and clients, every request ends, and all counts return to zero.

Counts have consequences: in-flight requests choose and scale replicas, held requests fill queues, bytes fill memory.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.core.telemetry import setup_logging
from tests import plain_http
from tests.waiting import WAIT_S

from .conftest import Running, running
from .routes import asleep, component, route, variant
from .test_faults import FATES, PATHS, fated
from .test_waking import Waker
from .workers import Worker

STATUSES = {200, 400, 404, 424, 429, 500, 503}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with running(wake=Waker(), hold_timeout_s=1.0, max_held=6, stream_timeout_s=0.3, invocation_timeout_s=0.3) as made:
        yield made


class Fleet(RuleBasedStateMachine):
    """An endpoint whose replicas start, leave and die while clients connect and disconnect."""

    gateway: Running

    def __init__(self) -> None:
        super().__init__()
        setup_logging(format="json", level="info", stream=self.gateway.log)
        self.workers: list[Worker] = []
        self.clients: list[socket.socket] = []
        self.pool = ThreadPoolExecutor(16)
        self.asked: list[Future[int]] = []

    @initialize()
    def sleep(self) -> None:
        """Start with everything at zero."""
        self.serve([], is_component=False)

    @rule(fates=st.lists(st.sampled_from([*FATES, "gone"]), max_size=3), is_component=st.booleans())
    def serve(self, fates: list[str], is_component: bool) -> None:
        """Replace the replicas."""
        urls = [self._worker(fate).url for fate in fates]
        own = variant("AllTraffic", urls) if urls and not is_component else asleep()
        self.gateway.put(route(own, components=[component("ic", urls if is_component else [])]))

    @rule()
    def kill(self) -> None:
        """Kill a replica that may still be in the route."""
        if self.workers:
            self.gateway.run(self.workers.pop().stop())

    @rule(path=st.sampled_from(PATHS), is_component=st.booleans())
    def ask(self, path: str, is_component: bool) -> None:
        """Send a request whose client waits for the response."""
        headers = {"X-Amzn-SageMaker-Inference-Component": "ic"} if is_component else {}
        self.asked.append(self.pool.submit(self._status, path, headers))

    @rule(path=st.sampled_from(PATHS))
    def come(self, path: str) -> None:
        """Send a request whose client may disconnect."""
        client = socket.create_connection(("127.0.0.1", int(self.gateway.url.rpartition(":")[2])))
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        self.clients.append(client)

    @rule()
    def hang_up(self) -> None:
        """Disconnect the client that waits longest."""
        if self.clients:
            self.clients.pop(0).close()

    @invariant()
    def counts_are_possible(self) -> None:
        """Check that no count exceeds the number of clients."""
        gateway = self.gateway.gateway
        assert all(number > 0 for number in dict(gateway.loads).values())
        assert sum(gateway.held.values()) <= 6

    def teardown(self) -> None:
        """Let all requests end, and check that all counts are zero."""
        self.serve(["answer"], is_component=False)
        for future in self.asked:
            assert future.result(WAIT_S) in STATUSES
        for client in self.clients:
            client.close()
        self.pool.shutdown()
        self.gateway.until(self.gateway.is_idle, "all requests ended")
        service = self.gateway.gateway._service
        assert not self.gateway.gateway.held
        assert service.forwarder.wait_queue.num_held == 0
        assert not service.forwarder.wait_queue._waiters
        assert service.budget.held_bytes == 0
        for worker in self.workers:
            self.gateway.run(worker.stop())

    def _worker(self, fate: str) -> Worker:
        worker = Worker(fated(fate))
        self.gateway.run(worker.start())
        if fate == "gone":
            self.gateway.run(worker.stop())
        else:
            self.workers.append(worker)
        return worker

    def _status(self, path: str, headers: dict[str, str]) -> int:
        try:
            return plain_http.post(
                f"{self.gateway.url}{path}", content=b"{}", headers=headers, timeout=WAIT_S
            ).status_code
        except httpx.RemoteProtocolError:
            return 200  # a stream that broke


def test_all_counts_return_to_zero_when_requests_have_ended(gateway: Running) -> None:
    class OnThis(Fleet):
        pass

    OnThis.gateway = gateway
    run_state_machine_as_test(
        OnThis,
        settings=settings(
            max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
