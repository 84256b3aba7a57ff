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
from headrace.platform.gateway.service import DEFAULT_LIFETIME_S, NEW_SESSION, Sessions
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


OPENED = {"x-amzn-sagemaker-session-id": "s-1; Expires=2030-01-01T00:00:00Z"}


def test_a_new_session_is_remembered_until_it_expires():
    sessions = Sessions()
    headers = sessions.update("ep", NEW_SESSION, OPENED, worker="w", now_s=0)
    assert headers == {"X-Amzn-SageMaker-New-Session-Id": "s-1; Expires=2030-01-01T00:00:00Z"}
    assert sessions.worker_of("ep", "s-1", now_s=1_893_455_999) == "w"
    assert sessions.worker_of("other", "s-1", now_s=0) is None
    assert sessions.worker_of("ep", "s-1", now_s=1_893_456_000) is None
    assert len(sessions) == 0


@pytest.mark.parametrize("value", ["s-1", "s-1; Expires=soon", "s-1;x", "s-1; Expires="])
def test_a_session_without_a_valid_expiry_has_the_default_lifetime(value):
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-new-session-id": value}, worker="w", now_s=100)
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S - 1) == "w"
    assert sessions.worker_of("ep", "s-1", now_s=100 + DEFAULT_LIFETIME_S) is None


def test_a_closed_session_is_removed_and_reported_to_the_client():
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, OPENED, worker="w", now_s=0)
    headers = sessions.update("ep", "s-1", {"x-amzn-sagemaker-closed-session-id": "s-1"}, worker="w", now_s=0)
    assert headers == {"X-Amzn-SageMaker-Closed-Session-Id": "s-1"}
    assert sessions.worker_of("ep", "s-1", now_s=0) is None


def test_a_worker_cannot_open_a_session_without_a_request_for_one():
    sessions = Sessions()
    assert sessions.update("ep", "s-1", OPENED, worker="w", now_s=0) == {}
    assert sessions.update("ep", None, OPENED, worker="w", now_s=0) == {}
    assert len(sessions) == 0


def test_a_worker_fills_no_memory_by_the_id_of_a_session():
    sessions = Sessions()
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": "s" * 100_000}, worker="w", now_s=0)
    assert sessions.worker_of("ep", "s" * 256, now_s=0) == "w"


def test_the_least_recently_used_session_is_evicted():
    sessions = Sessions(max_sessions=2)
    for name in ("a", "b"):
        sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": name}, worker=name, now_s=0)
    assert sessions.worker_of("ep", "a", now_s=0) == "a"
    sessions.update("ep", NEW_SESSION, {"x-amzn-sagemaker-session-id": "c"}, worker="c", now_s=0)
    assert [sessions.worker_of("ep", name, now_s=0) for name in "abc"] == ["a", None, "c"]
