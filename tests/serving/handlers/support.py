"""Pools of real children that run `user_code.py`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.serving.handlers.errors import WholeResponse
from headrace.serving.handlers.exchange import BrokenResponse, HandlerRequest, PendingResponse, request_part
from headrace.serving.handlers.isolation import Isolation
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import Load
from tests.waiting import WAIT_S

SITE = Path(__file__).parent / "site"


def spec_for(folder: Path, *, entry: str = "", batch_size: int = 1, **fields: Any) -> HandlerSpec:
    """Return a spec whose sandboxed children run `user_code.py` behind the contract `sagemaker`."""
    load = Load(model_name="model-a", model_dir=folder, entry=entry, batch_size=batch_size)
    environment = {"PYTHONPATH": str(SITE), "PATH": "/usr/bin:/bin"}
    spec = replace(HandlerSpec(contract="sagemaker", load=load, environment=environment), **fields)
    isolated = Isolation(is_on=True, folders=(str(SITE.parent),)).isolate(spec, folder)
    assert isolated.sandbox is not None
    return replace(isolated, sandbox=replace(isolated.sandbox, write=[str(folder)]))  # where tests find its markers


@asynccontextmanager
async def pool_of(spec: HandlerSpec) -> AsyncIterator[HandlerPool]:
    """Run a pool that has started, and close it."""
    pool = HandlerPool(spec)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close(deadline_s=0)


def num_descriptors() -> int:
    """Return the number of open descriptors of this process, that of the count included."""
    return len(list(Path("/proc/self/fd").iterdir()))


def num_open_files(folder: Path) -> int:
    """Return the number of open files below a folder; other tests' descriptors come and go meanwhile."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the listing
            count += descriptor.readlink().is_relative_to(folder)
    return count


async def submit(pool: HandlerPool, action: str, body: bytes = b"") -> PendingResponse:
    """Queue a request for an action of `user_code.py`."""
    parts = [await request_part(body)]
    return pool.submit(HandlerRequest(request_id="r-1", path=f"/{action}", parts=parts))


async def answer(response: PendingResponse) -> tuple[int, bytes]:
    """Return status and body; a broken stream has the status of its head and ends with `!` and the error."""
    try:
        async with asyncio.timeout(WAIT_S):
            head = await response.head()
            if isinstance(head, WholeResponse):
                return head.status, bytes(head.body)
            body = b""
            try:
                while (part := await response.part()) is not None:
                    body += part
            except BrokenResponse as error:
                body += f"!{error}".encode()
            return head.status, body
    finally:
        response.close()


async def ask(pool: HandlerPool, action: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request and return its response."""
    return await answer(await submit(pool, action, body))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)
