"""
Wakes what sleeps at zero when a request wants it: the one writer of a first copy.

The gateway calls `wake` from its event loop and goes on; a thread writes. Asked again while it writes, it does nothing
more. What cannot be woken now (it is being changed) is logged; the gateway asks again as long as somebody waits.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from headrace.control.api.context import NUM_TRIES
from headrace.control.autoscaling.planning.decision import WOKEN
from headrace.control.autoscaling.planning.targets import COMPONENT_DIMENSION, VARIANT_DIMENSION, TargetKey, read_bounds
from headrace.control.autoscaling.records import activities
from headrace.control.autoscaling.records.capacity import find_scaled, read_capacity, write_capacity
from headrace.control.model.component_reading import endpoint_of, is_readable, variant_of
from headrace.control.model.density import read_density
from headrace.control.model.kinds import SCALABLE_TARGET
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict
from headrace.state.signals import WakeTarget
from headrace.state.store import Store
from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.scope import AwsScope

CAUSE = "a request arrived while capacity was 0"


class Waker:
    """One thread, which lives until `close`."""

    def __init__(self, store: Store, *, aws_scope: AwsScope, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._aws_scope = aws_scope
        self._clock = clock
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waker")
        self._lock = threading.Lock()
        self._pending: set[TargetKey] = set()
        self._log = get_logger()

    def wake(self, target: WakeTarget) -> None:
        """Bring a first copy of a variant or a component; any thread may call it, and it returns at once."""
        key = _key_of(target)
        if key is None:
            return
        with self._lock:
            if key in self._pending:
                return
            self._pending.add(key)
        with suppress(RuntimeError):  # closed: the platform is stopping
            self._threads.submit(self._work, key)

    def close(self) -> None:
        """Finish what is being written."""
        self._threads.shutdown(wait=True)

    def _work(self, key: TargetKey) -> None:
        try:
            self._wake(key)
        except AwsError as error:
            self._log.info("waker.not_now", target=key.resource_id, reason=error.message)
        except Exception:  # noqa: BLE001 -- an edge: logged; whoever waits asks again
            self._log.exception("waker.failed", target=key.resource_id)
        finally:
            with self._lock:
                self._pending.discard(key)

    def _wake(self, key: TargetKey) -> None:
        """Wake a variant or a component; a component without instances under it gets one first."""
        record = find_scaled(self._store, key) if key.component else None
        if record is not None and is_readable(record):
            self._wake_one(_variant_key(endpoint_of(record), variant_of(record)))
            if read_density(record.spec) is not None:
                return  # its copies follow the instances of its variant
        self._wake_one(key)

    def _wake_one(self, key: TargetKey) -> None:
        for _ in range(NUM_TRIES):
            capacity = read_capacity(self._store, key)
            if capacity is None or capacity.desired > 0:
                return
            try:
                self._write(key)
            except Conflict:
                continue
            except LookupError:
                pass
            return

    def _write(self, key: TargetKey) -> None:
        """Ask for the first copy, and write an activity if the thing is a scalable target; one may be kept at zero."""
        target = self._store.get(SCALABLE_TARGET, key.name)
        bounds = None if target is None else read_bounds(target.spec)
        if bounds is not None and bounds.maximum == 0:
            self._log.info("waker.not_now", target=key.resource_id, reason="MaxCapacity is 0")
            return
        number = 1 if bounds is None else max(1, bounds.minimum)
        write_capacity(self._store, self._aws_scope, key, number)
        self._log.info("waker.woken", target=key.resource_id, capacity=number)
        if target is None:
            return
        scaling = msgspec.to_builtins(WOKEN)
        activity = activities.begin(self._store, key, number, cause=CAUSE, now_s=self._clock(), scaling=scaling)
        activities.progressed(self._store, activity)


def _key_of(target: WakeTarget) -> TargetKey | None:
    if target.component:
        resource_id = f"inference-component/{target.component}"
        return TargetKey(resource_id=resource_id, dimension=COMPONENT_DIMENSION, component=target.component)
    if not target.variant:
        return None
    return _variant_key(target.endpoint, target.variant)


def _variant_key(endpoint: str, variant: str) -> TargetKey:
    return TargetKey(
        resource_id=f"endpoint/{endpoint}/variant/{variant}",
        dimension=VARIANT_DIMENSION,
        endpoint=endpoint,
        variant=variant,
    )
