"""Functions that are called after each write to a store."""

import threading
import uuid
from collections.abc import Callable

from headrace.core.telemetry import get_logger


class Listeners:
    """Functions to call after writes to a store; any thread may use it."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        """Identifies the writes of this process among those of others."""
        self._functions: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Register a listener; return a function that unregisters it."""
        token = object()
        with self._lock:
            self._functions[token] = listener

        def end() -> None:
            with self._lock:
                self._functions.pop(token, None)

        return end

    def call(self) -> None:
        """Call all listeners."""
        with self._lock:
            listeners = tuple(self._functions.values())
        for listener in listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 -- the write is committed; its caller must not see an error
                get_logger().exception("store.listener_failed")
