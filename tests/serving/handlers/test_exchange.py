"""Large content between the server and a child is in memory files, each of which is closed once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.serving.handlers.exchange import MemoryFile, request_part
from headrace_handler.frames import INLINE_BYTES
from tests.serving.handlers.support import num_descriptors, until
from tests.waiting import WAIT_S

CONTENT = b"x" * (INLINE_BYTES + 1)


async def test_a_memory_file_is_read_once() -> None:
    num_before = num_descriptors()
    part = await request_part(CONTENT)
    assert isinstance(part.content, MemoryFile)
    assert num_descriptors() == num_before + 1
    assert await part.content.read() == CONTENT
    part.content.close()
    assert num_descriptors() == num_before
    with pytest.raises(AssertionError, match="used once"):
        _ = part.content.descriptor


async def test_a_memory_file_is_closed_when_its_reader_leaves_before_a_thread_is_free() -> None:
    is_busy, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        file = MemoryFile.of(CONTENT)
        num_open = num_descriptors()
        threads.submit(lambda: is_busy.set() or go_on.wait(WAIT_S))
        assert is_busy.wait(WAIT_S)
        reading = asyncio.create_task(file.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        go_on.set()
        file.close()
        assert num_descriptors() == num_open - 1


async def test_a_memory_file_is_closed_when_its_writer_leaves() -> None:
    is_busy, go_on = threading.Event(), threading.Event()

    class SlowContent(bytes):
        def __len__(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                is_busy.set()
                go_on.wait(WAIT_S)
            return len(CONTENT)

    num_before = num_descriptors()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        writing = asyncio.create_task(request_part(SlowContent(CONTENT)))
        await until(is_busy.is_set)
        writing.cancel()
        await asyncio.wait({writing})
        go_on.set()
    await asyncio.sleep(0)  # the event loop drops the result
    assert num_descriptors() == num_before
