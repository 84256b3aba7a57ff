"""Children whose contract is asynchronous: many calls at once in one process."""

import os
import resource
import signal
from pathlib import Path

from headrace.serving.handlers.exchange import HandlerRequest, request_part
from headrace_handler.frames import INLINE_BYTES

from .support import answer, ask, num_descriptors, pool_of, spec_for, submit, until
from .test_children import LOST


async def test_calls_run_at_once_on_the_loop_of_the_contract(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, entry="asynchronous")) as pool:
        meeting = [await submit(pool, "meet") for _ in range(3)]
        assert [await answer(response) for response in meeting] == [(200, b"met")] * 3
        endless = await submit(pool, "endless")
        await endless.head()
        assert (await ask(pool, "stream", b"20"))[1].count(b"\n") == 20, "the other one waits for its client"
        endless.close()
        await until(lambda: not pool.num_running)
        assert len(pool.workers) == 1


async def test_a_contract_that_fails_ends_the_process_with_all_its_calls(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, entry="asynchronous")) as pool:
        responses = [await submit(pool, action) for action in ("until_cancelled", "fail")]
        assert [await answer(response) for response in responses] == [(500, LOST)] * 2
        assert await ask(pool, "echo", b"next") == (200, b"next")


async def test_a_call_that_cannot_be_sent_for_want_of_descriptors_is_refused(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path, entry="asynchronous")) as pool:
        await ask(pool, "echo")
        num_before = num_descriptors()
        child = pool.workers[0].child
        assert child is not None
        os.kill(child.pid, signal.SIGSTOP)
        body, limits = bytes(INLINE_BYTES), resource.getrlimit(resource.RLIMIT_NOFILE)
        parts = [await request_part(body + b"x")]
        first = await submit(pool, "echo", body)  # fills the socket
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            second = pool.submit(HandlerRequest(request_id="r-2", path="/echo", parts=parts))
            assert (await answer(second))[0] == 503
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.kill(child.pid, signal.SIGCONT)
        assert await answer(first) == (200, body)
        assert await ask(pool, "echo", b"next") == (200, b"next")
        await until(lambda: num_descriptors() <= num_before)
