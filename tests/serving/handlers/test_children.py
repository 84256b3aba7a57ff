"""Children that run users' code: what it does reaches its own requests only."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.serving.handlers.exchange import PendingResponse
from headrace.serving.handlers.pool import HandlerPool
from headrace_handler.frames import Buffer

from .support import answer, ask, num_descriptors, pool_of, spec_for, submit, until

LOST = b'{\n  "code": 500,\n  "type": "InternalServerException",\n  "message": "Worker died."\n}\n'

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HandlerPool]:
    """Return a pool of one child, which tests may end: it is started again."""
    async with pool_of(spec_for(tmp_path_factory.mktemp("model"))) as pool:
        yield pool


def pid_of(pool: HandlerPool) -> int:
    assert pool.workers[0].child is not None
    return pool.workers[0].child.pid


async def test_a_body_comes_back_and_state_stays_in_the_process(pool: HandlerPool) -> None:
    assert await ask(pool, "echo", b"\x00\xff body") == (200, b"\x00\xff body")
    before = int((await ask(pool, "count"))[1])
    assert await ask(pool, "count") == (200, str(before + 1).encode())


async def test_a_body_over_a_mebibyte_travels_as_a_memory_file_both_ways(pool: HandlerPool) -> None:
    body = os.urandom(5 << 20)
    assert await ask(pool, "echo", body) == (200, body)


async def test_parts_of_a_stream_stay_apart_and_in_order_beyond_the_window(pool: HandlerPool) -> None:
    response = await submit(pool, "stream", b"50")
    await response.head()
    parts = [bytes(part) async for part in parts_of(response)]
    assert parts == [b"part %d\n" % number for number in range(50)]
    response.close()


@pytest.mark.parametrize("attack", ["status", "length", "header", "flood", "descriptors", "sparse", "pipe", "negative"])
async def test_frames_that_would_harm_the_server_end_the_child(pool: HandlerPool, attack: str) -> None:
    before = num_descriptors()
    status, body = await ask(pool, "attack", attack.encode())
    assert body == LOST or (status == 200 and b"has ended" in body)
    assert await ask(pool, "echo", b"next") == (200, b"next")
    assert num_descriptors() <= before


async def parts_of(response: PendingResponse) -> AsyncIterator[Buffer]:
    while (part := await response.part()) is not None:
        yield part


async def test_the_code_runs_on_the_main_thread_in_the_models_folder_with_the_given_environment(
    pool: HandlerPool,
) -> None:
    facts = repr([str(pool.spec.load.model_dir), None, "", "MainThread"])
    assert await ask(pool, "facts") == (200, facts.encode())


async def test_code_that_sends_faster_than_its_client_takes_waits(pool: HandlerPool) -> None:
    response = await submit(pool, "endless")
    await response.head()
    sent = pool.spec.load.model_dir / "sent"
    await until(lambda: sent.exists() and sent.read_text() == "8")
    await asyncio.sleep(0.2)
    assert sent.read_text() == "8"
    response.close()
    assert await ask(pool, "echo", b"free again") == (200, b"free again")


async def test_code_learns_that_its_client_has_gone(pool: HandlerPool) -> None:
    response = await submit(pool, "until_cancelled")
    await until(lambda: pool.num_running == 1)
    response.close()
    assert await ask(pool, "echo", b"next") == (200, b"next")


async def test_a_request_whose_client_has_gone_before_its_turn_is_never_run(pool: HandlerPool) -> None:
    before = int((await ask(pool, "count"))[1])
    running, waiting = await submit(pool, "sleep", b"0.1"), await submit(pool, "count")
    waiting.close()
    assert await answer(running) == (200, b"slept")
    assert await ask(pool, "count") == (200, str(before + 2).encode())


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("raise", (500, LOST)),
        ("memory_error", (500, LOST)),
        ("sys_exit", (500, LOST)),
        ("os_exit", (500, LOST)),
        ("os_exit_in_thread", (500, LOST)),
        ("sigterm_handler_that_exits", (500, LOST)),
        ("segfault", (500, LOST)),
        ("kill", (500, LOST)),
        ("close_all", (500, LOST)),
        ("write_to_socket", (500, LOST)),
        ("begin_and_die", (200, b"begun!The process with the model's code has ended.")),
        ("answer_and_die", (200, b"last words")),
    ],
)
async def test_code_that_ends_its_process_costs_its_own_response_only(
    pool: HandlerPool, action: str, expected: tuple[int, bytes]
) -> None:
    before = pid_of(pool)
    dying, waiting = await submit(pool, action), await submit(pool, "echo", b"waited")
    assert await answer(dying) == expected
    assert await answer(waiting) == (200, b"waited")
    assert pid_of(pool) != before


async def test_code_that_forgets_a_response_gets_one_by_the_contract(pool: HandlerPool) -> None:
    status, body = await ask(pool, "nothing")
    assert (status, b"Invalid model predict output" in body) == (500, True)
    assert await ask(pool, "break") == (200, b"begun!broken on purpose")


ODD = ["print", "fork", "signals", "thread_answers", "sigterm_handler", "alarm", "asyncio_run", "multiprocessing"]
LASTING = ["chdir", "flood", "keep_printing", "setrlimit"]


@pytest.mark.parametrize("action", [*ODD, *LASTING])
async def test_odd_code_answers_and_serves_on_in_the_same_process(pool: HandlerPool, action: str) -> None:
    before = pid_of(pool)
    assert (await ask(pool, action))[0] == 200
    assert await ask(pool, "echo", b"still there") == (200, b"still there")
    assert pid_of(pool) == before
    if action in LASTING:
        await replace_child(pool)


async def replace_child(pool: HandlerPool) -> None:
    """End the process, for the tests that follow."""
    before = pid_of(pool)
    assert await ask(pool, "kill") == (500, LOST)
    await until(lambda: pool.num_ready == 1 and pid_of(pool) != before)


async def test_code_may_time_itself_out_while_it_waits_for_a_client(pool: HandlerPool) -> None:
    response = await submit(pool, "alarm_in_stream")
    await until(lambda: response.has_ended)
    assert await answer(response) == (200, b"part\n" * 8 + b"late")


async def test_an_alarm_that_code_leaves_behind_costs_no_other_request(pool: HandlerPool) -> None:
    before = pid_of(pool)
    assert await ask(pool, "alarm_left_behind") == (200, b"forgotten")
    await until(lambda: pool.num_ready == 1 and pid_of(pool) != before)
    assert await ask(pool, "echo", b"next") == (200, b"next")


async def test_a_process_that_has_left_the_session_and_holds_the_pipes_does_not_hold_up_the_next_child(
    pool: HandlerPool,
) -> None:
    escaped = int((await ask(pool, "daemonize"))[1])
    try:
        await replace_child(pool)
        assert await ask(pool, "echo", b"next") == (200, b"next")
        assert runs(escaped), "only a cgroup holds it"
    finally:
        os.kill(escaped, signal.SIGKILL)


async def test_what_the_code_prints_is_kept_with_bytes_escaped(pool: HandlerPool) -> None:
    await ask(pool, "print")
    await until(lambda: "line of the user's code" in pool.tail)
    assert any(line.startswith("\\xff\x00 binary") for line in pool.tail)


async def test_programs_that_the_code_starts_inherit_no_socket(pool: HandlerPool) -> None:
    status, listing = await ask(pool, "subprocess")
    assert (status, max(int(number) for number in listing.split()) < 10) == (200, True)


async def test_what_the_code_has_forked_ends_with_its_process(pool: HandlerPool) -> None:
    session = pid_of(pool)
    num_before = len(members(session))
    await ask(pool, "fork_and_sleep")
    assert len(members(session)) == num_before + 1
    await ask(pool, "kill")
    assert await ask(pool, "echo", b"next") == (200, b"next")
    await until(lambda: not members(session))


def members(session: int) -> list[int]:
    """Return the processes of a session that run, by their ids outside of the sandbox."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state not in "ZX":
                    found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_process_with_threads_and_without_ears_ends_with_its_pool(tmp_path: Path) -> None:
    async with pool_of(spec_for(tmp_path)) as own:
        await ask(own, "threads")
        await ask(own, "signals")
        pid = pid_of(own)
    assert not runs(pid)
