"""Run one batch: check its input, answer its requests a few at a time, and publish its results."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import asdict, replace

from headrace.core.telemetry import get_logger
from headrace.core.tracing import new_request_id
from headrace.serving.batches.calls import Answer, Call, Retries
from headrace.serving.batches.journal import Journal
from headrace.serving.batches.store import ERRORS, OUTPUT, BatchStore, new_id
from headrace.serving.wire.batches import (
    Batch,
    InputCheck,
    Line,
    Status,
    Unanswered,
    read_line,
    render_result,
    render_unanswered,
)
from headrace.serving.wire.openai.files import MAX_AGE_S, StoredFile

LINES_AT_ONCE: Final = 64
SAVE_S: Final = 1.0
"""Time between two writes of the counts of a running batch."""

Send = Callable[[Call], Awaitable[Answer]]
OnLines = Callable[[str, int], None]
"""Called with an outcome of lines, such as `completed`, and how many have it."""


@dataclass(slots=True, kw_only=True)
class BatchRun:
    store: BatchStore
    owner: str
    """The name of the owner's folder."""
    batch: Batch
    send: Send
    places: asyncio.Semaphore
    """Bounds the requests of all batches together."""
    window: int
    """Bounds those of this batch."""
    max_line_bytes: int
    on_lines: OnLines
    clock: Callable[[], float] = time.time
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    _saved_s: float = 0.0
    _reported: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Run to the end of the batch. A cancelled run goes on when another one is made. Raises `OSError`."""
        if self.batch.status == "validating":
            await self._validate()
        if self.batch.status == "in_progress":
            await self._work()
        if self.batch.status == "finalizing":
            if self.store.progress(self.owner, self.batch.id) is not None:  # another machine may have the results
                await (await self._open_journal()).close()
            await asyncio.to_thread(self._publish)
        await asyncio.to_thread(self.store.close, self.owner, self.batch.id)
        counts = self.batch.counts
        get_logger().info(
            "batch.ended",
            batch=self.batch.id,
            status=self.batch.status,
            completed=counts.completed,
            failed=counts.failed,
        )

    async def _validate(self) -> None:
        path = await asyncio.to_thread(self.store.input, self.owner, self.batch.id)
        check = await asyncio.to_thread(check_input, path, self.batch.endpoint, self.max_line_bytes)
        if check.errors:
            failed = replace(self.batch, errors=tuple(check.errors), total=0)
            await self._save(failed.at("failed", self.clock()))
            return
        # The ids are chosen once: a run that is killed while it publishes must not publish twice.
        checked = replace(
            self.batch,
            model=check.model,
            total=check.total,
            output_file_id=new_id("file-"),
            error_file_id=new_id("file-"),
        )
        await self._save(checked.at("in_progress", self.clock()))

    async def _work(self) -> None:
        journal = await self._open_journal()
        self._reported = asdict(journal.counts)
        try:
            outcome = await self._answer_until_stopped(journal)
            if outcome != "completed":
                code: Unanswered = "batch_expired" if outcome == "expired" else "batch_cancelled"
                await journal.add_all(self._unanswered(journal, code))
        finally:
            await journal.close()
            self._report(journal)
        ended = replace(self._counted(journal), outcome=outcome)
        await self._save(ended.at("finalizing", self.clock()))

    async def _open_journal(self) -> Journal:
        def open_journal() -> Journal:
            folder = self.store.folder(self.owner, self.batch.id)
            return Journal.open(folder, self.store.progress(self.owner, self.batch.id))

        opening = asyncio.ensure_future(asyncio.to_thread(open_journal))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread opens the files all the same
            await (await opening).close()
            raise

    async def _answer_until_stopped(self, journal: Journal) -> Status:
        """Answer all requests unless the batch expires or is cancelled before; return the status that it gets."""
        work = asyncio.ensure_future(self._answer_all(journal))
        cancelled = asyncio.ensure_future(self.cancelled.wait())
        timeout_s = max(0.0, self.batch.expires_s - self.clock())
        try:
            await asyncio.wait({work, cancelled}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return "completed"
            return "cancelled" if cancelled.done() else "expired"
        finally:
            for task in (work, cancelled):
                task.cancel()
            await asyncio.gather(work, cancelled, return_exceptions=True)

    async def _answer_all(self, journal: Journal) -> None:
        places = asyncio.Semaphore(self.window)
        done = frozenset(journal.done)

        def release(_task: object) -> None:
            places.release()
            self.places.release()

        path = await asyncio.to_thread(self.store.input, self.owner, self.batch.id)
        lines = read_lines(path, self.max_line_bytes)
        async with asyncio.TaskGroup() as tasks:
            while some := await asyncio.to_thread(lambda: list(islice(lines, LINES_AT_ONCE))):
                for _, text in some:
                    line = read_line(text or b"")
                    if line.custom_id not in done:
                        await places.acquire()
                        await self.places.acquire()
                        task = tasks.create_task(self._answer(line, journal))
                        task.add_done_callback(release)

    async def _answer(self, line: Line, journal: Journal) -> None:
        """Get the answer to a request and keep it."""
        request_id = new_request_id()
        answer = await self._send(line, request_id)
        result = render_result(line.custom_id, request_id=request_id, status=answer.status, body=answer.body)
        await journal.add(result)
        self._report(journal)
        if self.clock() - self._saved_s > SAVE_S:
            self._saved_s = self.clock()
            await journal.run(partial(self.store.save, self.owner, self._counted(journal)))

    async def _send(self, line: Line, request_id: str) -> Answer:
        call = Call(
            path=f"{self.batch.prefix}{line.url}", body=bytes(line.body), owner=self.batch.caller, request_id=request_id
        )
        retries = Retries(self.clock())
        while True:
            answer = await self.send(call)
            pause_s = retries.next_pause_s(answer, self.clock())
            if pause_s is None:
                return answer
            await asyncio.sleep(pause_s)

    def _report(self, journal: Journal) -> None:
        """Count the results that were stored since the last call."""
        counts = asdict(journal.counts)
        for outcome, count in counts.items():
            self.on_lines(outcome, count - self._reported[outcome])
        self._reported = counts

    def _counted(self, journal: Journal) -> Batch:
        return replace(self.batch, counts=journal.counts, usage=journal.usage)

    def _unanswered(self, journal: Journal, code: Unanswered) -> Iterator[bytes]:
        done = frozenset(journal.done)
        for _, text in read_lines(self.store.input(self.owner, self.batch.id), self.max_line_bytes):
            custom_id = read_line(text or b"").custom_id
            if custom_id not in done:
                yield render_unanswered(custom_id, code, request_id=new_request_id())

    async def _save(self, batch: Batch) -> None:
        self.batch = batch
        await asyncio.to_thread(self.store.save, self.owner, batch)

    def _publish(self) -> None:
        """Make files of the results; again after a kill, with the same ids."""
        batch, now_s = self.batch, self.clock()
        ids: dict[str, str | None] = {OUTPUT: batch.output_file_id, ERRORS: batch.error_file_id}
        if batch.is_messages:
            self.store.keep_results(self.owner, batch.id)
        else:
            for name, file_id in ids.items():
                ids[name] = self._publish_file(name, file_id or "", now_s)
        ended = replace(batch, output_file_id=ids[OUTPUT], error_file_id=ids[ERRORS]).at(batch.outcome, now_s)
        self.store.save(self.owner, ended)
        self.batch = ended

    def _publish_file(self, name: str, file_id: str, now_s: float) -> str | None:
        """Make a file of one kind of results; None if there are none."""
        path = self.store.folder(self.owner, self.batch.id) / name
        published = self.store.content_path(self.owner, file_id)
        found = path if path.exists() else published
        num_bytes = found.stat().st_size if found.exists() else 0
        if not num_bytes:
            path.unlink(missing_ok=True)
            return None
        file = StoredFile(
            id=file_id,
            filename=f"{self.batch.id}_{name}.jsonl",
            purpose="batch_output",
            num_bytes=num_bytes,
            created_s=now_s,
            expires_s=now_s + (self.batch.output_age_s or MAX_AGE_S),
        )
        self.store.add_file(self.owner, path, file)
        return file_id


def read_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not empty with their numbers; None for one of more than `max_bytes`. Blocks."""
    with path.open("rb") as file:
        for number, text in enumerate(iter(partial(file.readline, max_bytes + 2), b""), 1):
            line = text.strip()
            if len(line) > max_bytes:
                yield number, None
                return  # what follows is its rest
            if line:
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def check_input(path: Path, endpoint: str, max_line_bytes: int) -> InputCheck:
    """Check an input file; blocks."""
    check = InputCheck(endpoint)
    for number, text in read_lines(path, max_line_bytes):
        if not check.add(number, text):
            break
    check.end()
    return check
