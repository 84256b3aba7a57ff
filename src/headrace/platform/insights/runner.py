"""Runs queries in processes of their own, a few at a time, each with a time limit."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.core.telemetry import get_logger
from headrace.platform.insights.jobs import QueryJob, QueryOutcome

MAX_RUNNING: Final = 2
"""Queries that one process of the platform runs at once; AWS has a quota of 30 or more."""
TIMEOUT_S: Final = 60.0
_CHILD: Final = (sys.executable, "-P", "-m", "headrace.platform.insights.child")
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH")


class QueryRunner:
    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._room = threading.BoundedSemaphore(MAX_RUNNING)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, query_id: str, job: QueryJob, done: Callable[[QueryOutcome | None], None]) -> bool:
        """
        Run a query in the background and call `done` from another thread; return False if too many are running.

        `done` gets None if the query took too long or was stopped.
        """
        if not self._room.acquire(blocking=False):
            return False
        threading.Thread(target=self._run, args=(query_id, job, done), name="log query", daemon=True).start()
        return True

    def stop(self, query_id: str) -> None:
        """Stop a query, if this process runs it."""
        if (process := self._running.get(query_id)) is not None:
            process.kill()

    def _run(self, query_id: str, job: QueryJob, done: Callable[[QueryOutcome | None], None]) -> None:
        try:
            done(self._outcome(query_id, job))
        except Exception:  # noqa: BLE001 -- the edge of a thread: a bug fails one query
            get_logger().exception("log_query.failed", query_id=query_id)
        finally:
            self._room.release()

    def _outcome(self, query_id: str, job: QueryJob) -> QueryOutcome | None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        pipe = subprocess.PIPE
        with subprocess.Popen(_CHILD, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:  # noqa: S603
            self._running[query_id] = process
            try:
                output, errors = process.communicate(msgspec.json.encode(job), timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
            finally:
                self._running.pop(query_id, None)
        if process.returncode < 0:
            return None
        if process.returncode:
            get_logger().error("log_query.failed", query_id=query_id, reason=errors.decode(errors="replace")[-1000:])
            return QueryOutcome(error="The query failed; the platform's log has the reason.")
        return msgspec.json.decode(output, type=QueryOutcome)
