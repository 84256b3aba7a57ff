"""
The audit log: a line for each control call of any protocol, with who called from where, what, on what, and the result.

It has no bodies and no messages of errors, which may quote what the caller sent: names, codes and numbers only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.core.client_text import shortened
from headrace.core.telemetry import get_logger
from headrace.serving.http.asgi import Scope, caller_of, session_of

ANONYMOUS: Final = "anonymous"
"""The caller on a platform that requires no credentials."""
REPEAT_S: Final = 60.0
"""Seconds in which further equal reads that succeed are only counted: pages and waiters poll."""
_MAX_REPEATS: Final = 1000
_READING: Final = ("Describe", "Get", "Head", "List")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCall:
    """A call of an operation that reads or changes the platform."""

    service: str
    operation: str
    resource: str = ""
    """The name or ARN of what it is about; empty if there is none, or if the call could not be parsed."""
    error: str = ""
    """The code of the error; empty: none, or only its status is known."""

    @property
    def is_read(self) -> bool:
        return self.operation.startswith(_READING)


def client_address(scope: Scope) -> str:
    """Return the address of the peer, which may be a proxy; empty on a Unix socket."""
    return str((scope.get("client") or ("",))[0])


class AuditLog:
    """Writes the lines; equal reads of one caller are written once a minute, with their number."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._repeats: dict[tuple[str, str, AuditedCall], tuple[float, int]] = {}
        """The time of the last line for a read, and the number of reads since."""

    def write(
        self, scope: Scope, call: AuditedCall, *, status: int, request_id: str, total_s: float | None = None
    ) -> None:
        """Write the line of a call whose answer is known."""
        caller, address = caller_of(scope) or ANONYMOUS, client_address(scope)
        num_repeated = 0
        if call.is_read and status < 400:
            key, now_s = (caller, address, call), self._clock()
            logged_s, num_repeated = self._repeats.get(key, (-REPEAT_S, 0))
            if now_s - logged_s < REPEAT_S:
                self._repeats[key] = logged_s, num_repeated + 1
                return
            # Callers choose names: the memory is bounded, at the price of a few more lines.
            if len(self._repeats) >= _MAX_REPEATS:
                self._repeats.clear()
            self._repeats[key] = now_s, 0
        get_logger().info(
            "call.finished",
            caller=caller,
            address=address,
            service=shortened(call.service),
            operation=shortened(call.operation),
            resource=shortened(call.resource),
            status=status,
            request_id=request_id,
            **({"total_ms": round(total_s * 1e3, 1)} if total_s is not None else {}),
            **({"session": f"{session.role}/{session.name}"} if (session := session_of(scope)) else {}),
            **({"error": call.error} if call.error else {}),
            **({"repeated": num_repeated} if num_repeated else {}),
        )
