"""A call of user code that a child runs, and its frame."""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from headrace.handlers.exchange import MemoryFile, PendingResponse
from headrace_handler.frames import Buffer

if TYPE_CHECKING:
    import asyncio

_call_ids = count(1)


class ChildCall:
    """A call that a child runs."""

    def __init__(self, responses: Sequence[PendingResponse], on_done: Callable[["ChildCall"], None]) -> None:
        self.call_id = next(_call_ids)
        self.responses = {response.item_id: response for response in responses}
        self.started_s = time.monotonic()
        self.is_streaming = False
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        self.on_done = on_done

    @property
    def waits_for_client(self) -> bool:
        """True while a client has not taken all parts sent so far."""
        waiting = (response for response in self.responses.values() if not response.is_cancelled)
        return any(response.num_untaken and not response.has_ended for response in waiting)


def call_frame(call: ChildCall) -> tuple[dict[str, Any], list[Buffer], list[int]]:
    """Return header, payload and descriptors of the frame for a call."""
    items, payload, descriptors = [], [], []
    for item_id, response in call.responses.items():
        request, parts = response.request, []
        for part in request.parts:
            is_file = isinstance(part.content, MemoryFile)
            parts.append(
                {"name": part.name, "content_type": part.content_type, "length": part.num_bytes, "memfd": is_file}
            )
            if isinstance(part.content, MemoryFile):
                descriptors.append(part.content.descriptor)
            else:
                payload.append(part.content)
        fields = {"request_id": request.request_id, "method": request.method, "path": request.path}
        items.append({"id": item_id, **fields, "headers": request.headers, "query": request.query, "parts": parts})
    mode = next(iter(call.responses.values())).request.mode
    header = {"call": call.call_id, "mode": mode, "items": items, "memfds": len(descriptors)}
    return header, payload, descriptors
