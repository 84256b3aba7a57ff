"""
Loads adapters into workers and unloads them, over HTTP; each call is a task, so that a pass waits for none of them.

The outcome is written to the worker's record, and that write wakes the reconciler. A call that was interrupted, or
whose outcome was not written, is repeated by the next pass: a worker replaces an adapter that it has already loaded.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import NO_GRANTS, Grants
from headrace.platform.control.model.worker import WORKER, AdapterState
from headrace.platform.control.planning.worker_actions import AdapterAction, LoadAdapter
from headrace.platform.state.records import MAX_WRITE_TRIES, Conflict, Record
from headrace.platform.state.store import Store
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge

_UNLOAD_TIMEOUT_S = 30.0
_MAX_ANSWER_BYTES: Final = 64 * 1024
_MAX_REASON_CHARACTERS = 900
"""Leaves room for the rest of a `FailureReason`, which has at most 1,024 characters."""
_TRANSIENT: Final = frozenset({408, 429})
_OUT_OF_SLOTS: Final = 507
_NOT_FOUND: Final = 404

CallWorker = Callable[[str, ClientRequest], Awaitable[tuple[int, bytes]]]
"""Send a request to the URL of a worker; return status and body."""


async def call_worker(url: str, request: ClientRequest) -> tuple[int, bytes]:
    """Send a request over a connection of its own; raises as `send_once` and `ClientResponse.read` do."""
    async with send_once(url, request) as response:
        return response.status, await response.read(_MAX_ANSWER_BYTES)


@dataclass(slots=True)
class AdapterLoader:
    """Owns the calls that load and unload adapters; `close` cancels them."""

    store: Store
    clock: Callable[[], float] = field(kw_only=True)
    grants: Grants = NO_GRANTS
    call: CallWorker = call_worker
    """Sends a request to a worker."""
    _running: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)
    """Calls in progress, by worker and adapter."""

    def act(self, action: AdapterAction) -> None:
        """Start a call, unless one for the same adapter and worker is running; its outcome triggers another pass."""
        key = (action.worker, action.adapter)
        if key in self._running:
            return
        task = asyncio.create_task(self._run(action), name=f"adapter {action.adapter} on {action.worker}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def close(self) -> None:
        """Cancel all calls; the reconciler that runs next repeats them."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until all running calls have ended."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, action: AdapterAction) -> None:
        try:
            status, text = await self._send(action)
        except Exception as error:  # noqa: BLE001 -- an edge: logged, recorded, and tried again
            status, text = 0, f"The copy did not answer ({type(error).__name__}: {error})."
            if not isinstance(error, NoResponse | ResponseBroken | ResponseTooLarge | TimeoutError):
                get_logger().exception("adapter.call_failed", worker=action.worker, adapter=action.adapter)
        await asyncio.to_thread(self._record, action, status, text)

    async def _send(self, action: AdapterAction) -> tuple[int, str]:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json")]
        if action.token:
            headers.append(("Authorization", f"Bearer {action.token}"))
        if isinstance(action, LoadAdapter):
            grant = await asyncio.to_thread(self.grants.for_uri, action.source)
            body = msgspec.json.encode({"name": action.adapter, "src": action.source, "grant": grant})
            request = ClientRequest(path="/adapters", headers=tuple(headers), body=body)
            timeout_s = action.timeout_s
        else:
            path = f"/adapters/{quote(action.adapter, safe='')}"
            request, timeout_s = ClientRequest(method="DELETE", path=path, headers=tuple(headers)), _UNLOAD_TIMEOUT_S
        async with asyncio.timeout(timeout_s):
            status, answer = await self.call(action.url, request)
        return status, message_of(answer)

    def _record(self, action: AdapterAction, status: int, text: str) -> None:
        """Write the outcome to the worker's record, if the worker still has one."""
        for _ in range(MAX_WRITE_TRIES):
            record = self.store.get(WORKER, action.worker)
            if not isinstance(record, Record):
                return
            before = record.status.adapters.get(action.adapter, AdapterState())
            state = outcome(action, before, status, text, now_s=self.clock())
            adapters = {name: known for name, known in record.status.adapters.items() if name != action.adapter}
            if state is not None:
                adapters[action.adapter] = state
            try:
                self.store.update(record, status=msgspec.structs.replace(record.status, adapters=adapters))
            except Conflict:
                continue
            break
        event = "adapter.loaded" if isinstance(action, LoadAdapter) else "adapter.unloaded"
        if 200 <= status < 300:
            get_logger().info(event, worker=action.worker, adapter=action.adapter)
        else:
            get_logger().warning(
                "adapter.refused", worker=action.worker, adapter=action.adapter, status=status, why=text
            )


def outcome(
    action: AdapterAction, before: AdapterState, status: int, text: str, *, now_s: float
) -> AdapterState | None:
    """Return the state of an adapter in a worker after a call; None once it is not loaded."""
    is_done = 200 <= status < 300
    if not isinstance(action, LoadAdapter):
        return None if is_done or status == _NOT_FOUND else before
    if is_done:
        return AdapterState(loaded=action.version)
    is_refused = 400 <= status < 500 and status not in _TRANSIENT
    return AdapterState(
        loaded=before.loaded,
        failed=action.version,
        failed_s=now_s,
        failure=text,
        is_permanent=is_refused or status == _OUT_OF_SLOTS,
    )


def message_of(answer: bytes) -> str:
    """Return the message in the body of an error, or the body itself."""
    try:
        decoded = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    found = decoded
    if isinstance(found, dict):
        found = found.get("error") or found.get("message")
    if isinstance(found, dict):
        found = found.get("message")
    text = found if isinstance(found, str) else answer.decode("utf-8", errors="replace")
    return " ".join(text.split())[:_MAX_REASON_CHARACTERS]
