"""
The process that runs one query: a job in JSON on stdin, its outcome in JSON on stdout.

A query of any holder of a key may take long, such as by its regular expression: in a process of its own it has a time
limit and a memory limit, and takes no time from the platform's requests.
"""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from headrace.platform.cluster.log_streams import Reading, lines_of
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.insights.evaluation import Line, run_query
from headrace.platform.insights.jobs import QueryJob, QueryOutcome
from headrace.platform.insights.syntax import BadQuery, read_query

MAX_MEMORY_BYTES: Final = 1 << 30
MAX_CHARACTERS: Final = 1_000_000
"""Of the names and values of a result."""
MAX_LINES: Final = 5_000_000


def run(job: QueryJob) -> QueryOutcome:
    try:
        result = run_query(read_query(job.query), _lines(job), limit=job.limit, max_characters=MAX_CHARACTERS)
    except BadQuery as error:
        return QueryOutcome(error=str(error))
    except (MemoryError, RecursionError):
        return QueryOutcome(error="The query needs too much memory. Filter the lines, or query a shorter time.")
    return QueryOutcome(
        rows=result.rows,
        num_scanned=result.num_scanned,
        num_matched=result.num_matched,
        num_bytes=result.num_bytes,
    )


def _lines(job: QueryJob) -> Iterator[Line]:
    logs = PlatformLogs(Path(job.workers), Path(job.ended), max_bytes=0)
    found = lines_of(logs, job.streams, Reading(), start_ms=job.start_ms, end_ms=job.end_ms)
    for number, (event, stream) in enumerate(found):
        if number == MAX_LINES:
            raise BadQuery(f"The query reads more than {MAX_LINES} lines. Query a shorter time.")
        if event.timestamp_ms >= job.retention_ms.get(stream.group, 0):
            yield Line(
                timestamp_ms=event.timestamp_ms,
                message=event.message,
                stream=stream.name,
                log=f"{job.account}:{stream.group}",
                pointer=f"{stream.worker}:{event.position:020d}",
            )


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    os.nice(5)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=QueryJob)
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
