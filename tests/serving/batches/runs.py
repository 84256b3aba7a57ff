"""Runs of batches without a server: a batch in a store, and its run until it has ended or cannot go on."""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.serving.batches.calls import Answer, Call
from headrace.serving.batches.service import Batches
from headrace.serving.batches.store import BatchStore, new_id
from headrace.serving.wire.batches import Batch, read_result
from headrace.serving.wire.openai.files import StoredFile
from headrace.serving.wire.unknown_routes import CHAT

OWNER = "_"


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def make_batch(store: BatchStore, content: bytes, clock: Clock) -> Batch:
    path = store.new_upload(OWNER)
    path.write_bytes(content)
    file = StoredFile(
        id=new_id("file-"), filename="in", purpose="batch", num_bytes=1, created_s=clock(), expires_s=clock() + 1e6
    )
    store.add_file(OWNER, path, file)
    batch = Batch(
        id=new_id("batch_"),
        endpoint=CHAT,
        input_file_id=file.id,
        created_s=clock(),
        expires_s=clock() + 86_400,
        caller="key",
        prefix="/endpoints/e/openai",
    )
    store.add_batch(OWNER, batch, store.content(OWNER, file.id))
    return batch


async def run_batches(store: BatchStore, send: Callable[[Call], Awaitable[Answer]], clock: Clock) -> Batches:
    """Run the batches of a store until all have ended, or one cannot go on."""
    batches = Batches(store=store, send=send, max_line_bytes=10_000, clock=clock)
    running = asyncio.create_task(batches.run(window=4, total_window=4))
    while store.open_batches() and not batches._retry_s:
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return batches


async def answer(_call: Call) -> Answer:
    return Answer(status=200, body=b"{}")


def results(store: BatchStore, file_id: str | None) -> list[str]:
    if file_id is None:
        return []
    return [read_result(line).custom_id for line in store.content(OWNER, file_id).read_bytes().splitlines()]
