"""
Wakes variants and components scaled to zero when a request arrives: the one writer of a first copy.

The gateway calls `wake` from its event loop; a thread writes. Calls for a target that is being written are ignored.
A target that cannot be woken now, because it is being changed, is logged; the gateway calls again while requests wait.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.planning.decision import WOKEN
from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, TargetKey
from headrace.platform.autoscaling.records.activities import ActivityLog
from headrace.platform.autoscaling.records.capacity import find_scaled, read_capacity, write_capacity
from headrace.platform.control.model.component import ComponentSpec
from headrace.platform.state.records import MAX_WRITE_TRIES, Conflict, Record
from headrace.platform.state.routes import WakeTarget
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope

CAUSE = "a request arrived while capacity was 0"


class Waker:
    """Requests first copies in a thread of its own, until `close`."""

    def __init__(self, store: Store, *, aws_scope: AwsScope, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._aws_scope = aws_scope
        self._clock = clock
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waker")
        self._lock = threading.Lock()
        self._pending: set[TargetKey] = set()

    def wake(self, target: WakeTarget) -> None:
        """Request a first copy of a variant or component; thread-safe, returns at once."""
        if target.component:
            key = TargetKey.of_component(target.component)
        elif target.variant:
            key = TargetKey.of_variant(target.endpoint, target.variant)
        else:
            return
        with self._lock:
            if key in self._pending:
                return
            self._pending.add(key)
        with suppress(RuntimeError):  # closed: the platform is stopping
            self._threads.submit(self._work, key)

    def close(self) -> None:
        """Wait for the write in progress."""
        self._threads.shutdown(wait=True)

    def _work(self, key: TargetKey) -> None:
        try:
            self._wake(key)
        except AwsError as error:
            get_logger().info("waker.not_now", target=key.resource_id, reason=error.message)
        except Exception:  # noqa: BLE001 -- an edge: logged; the gateway calls again
            get_logger().exception("waker.failed", target=key.resource_id)
        finally:
            with self._lock:
                self._pending.discard(key)

    def _wake(self, key: TargetKey) -> None:
        """Wake a variant or component; a component whose variant has no instance wakes the variant first."""
        record = find_scaled(self._store, key) if key.component else None
        if record is not None and isinstance(record.spec, ComponentSpec):
            self._wake_one(TargetKey.of_variant(record.spec.endpoint, record.spec.revision.variant))
            if record.spec.density is not None:
                return  # its copies follow the instances of its variant
        self._wake_one(key)

    def _wake_one(self, key: TargetKey) -> None:
        for _ in range(MAX_WRITE_TRIES):
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
        """Request the first copy, with an activity if it is a scalable target; MaxCapacity 0 keeps it at zero."""
        target = self._store.get(SCALABLE_TARGET, key.name)
        bounds = target.spec if isinstance(target, Record) else None
        if bounds is not None and bounds.max_capacity == 0:
            get_logger().info("waker.not_now", target=key.resource_id, reason="MaxCapacity is 0")
            return
        number = 1 if bounds is None else max(1, bounds.min_capacity)
        write_capacity(self._store, self._aws_scope, key, number, before=0)  # a client may have scaled it meanwhile
        get_logger().info("waker.woken", target=key.resource_id, capacity=number)
        if target is None:
            return
        activities = ActivityLog(self._store, key, self._clock())
        activities.mark_requested(activities.begin(number, cause=CAUSE, scaling=WOKEN))
