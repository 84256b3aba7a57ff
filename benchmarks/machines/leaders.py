"""The leader of the platforms over time, as the database has it."""

import threading
import time
from contextlib import suppress
from typing import Final

_POLL_S: Final = 0.05
_QUERY: Final = (
    "SELECT m.url FROM headrace_leader l JOIN headrace_members m ON m.id = l.member"
    " WHERE l.expires_s > extract(epoch FROM clock_timestamp())"
)


class Leaders:
    """Reads the lease until it is closed, in a thread of its own."""

    def __init__(self, database_url: str) -> None:
        self.changes: list[tuple[float, str]] = []
        """Monotonic time → URL of the platform that leads from then on; empty while none does."""
        self._url = database_url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leaders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def now(self) -> str:
        return self.changes[-1][1] if self.changes else ""

    def close(self) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        while not self._is_over.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as connection:
                while not self._is_over.wait(_POLL_S):
                    found = connection.execute(_QUERY).fetchone()
                    leader = found[0] if found else ""
                    if leader != self.now or not self.changes:
                        self.changes.append((time.monotonic(), leader))
