"""
Workers that took no connection: nobody asks them for a while, if there is somebody else or one may be waited for.

The reconciler sees soon that a worker has died; until then its replica is in the route. A worker is left alone for a
second, and twice as long each time that it is found silent again, so that a machine that is gone and swallows
connections costs few requests their time. Used by the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass

from headrace.state.routes import Replica

FIRST_S = 1.0
"""The reconciler looks twice a second."""
LONGEST_S = 30.0


@dataclass(slots=True)
class _Silence:
    next_s: float = FIRST_S
    end: asyncio.TimerHandle | None = None
    """None: it may be asked again."""


class Quarantine:
    """Silent replicas; another worker at the same address is another one."""

    def __init__(self, *, on_end: Callable[[], None]) -> None:
        """`on_end` is called when a worker may be asked again."""
        self._on_end = on_end
        self._quarantine: dict[Replica, _Silence] = {}

    def __bool__(self) -> bool:
        """Whether there may be some."""
        return bool(self._quarantine)

    def __contains__(self, replica: Replica) -> bool:
        """Whether a worker is to be left alone now."""
        silence = self._quarantine.get(replica)
        return silence is not None and silence.end is not None

    def note(self, replica: Replica) -> None:
        """A worker took no connection."""
        silence = self._quarantine.setdefault(replica, _Silence())
        if silence.end is None:
            silence.end = asyncio.get_running_loop().call_later(silence.next_s, self._ended, silence)
            silence.next_s = min(LONGEST_S, 2 * silence.next_s)

    def heard(self, replica: Replica) -> None:
        """A worker has answered."""
        silence = self._quarantine.pop(replica, None)
        if silence is not None and silence.end is not None:
            silence.end.cancel()
            self._on_end()

    def keep(self, replicas: Container[Replica]) -> None:
        """Forget all but these: the others are in no route any more."""
        for gone in [replica for replica in self._quarantine if replica not in replicas]:
            end = self._quarantine.pop(gone).end
            if end is not None:
                end.cancel()

    def _ended(self, silence: _Silence) -> None:
        silence.end = None
        self._on_end()
