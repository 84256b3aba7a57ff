"""
Prefixes outlive an engine: what a second engine reads from the folder of a first one changes no answer.

The fake runner fails a step that attends to a block with wrong tokens or none.
"""

import asyncio
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.generation import GenerationRequest
from headrace.inference.engine.config import EngineLimits
from headrace.inference.engine.core.stored_blocks import StoreKey
from headrace.inference.engine.prefix_store.block_file import HEADER_BYTES, BlockFolder, Row
from headrace.inference.engine.prefix_store.store import FileStore
from headrace.inference.engine.service.async_engine import AsyncEngine
from headrace.testing.fake_runner import FakeRunner
from tests.inference.engine.support import (
    LIMITS,
    SPEC,
    Answer,
    Gate,
    ask,
    ask_together,
    make_engine,
    request,
    runner_limits,
    running,
    settled,
    thread_of,
)
from tests.inference.engine.test_same_bytes import mixed_requests
from tests.waiting import WAIT_S

IDENTITY = bytes(16)
BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * 4
FILE_BYTES = HEADER_BYTES + BLOCK_BYTES
PROMPT = ("Once upon a time there was a cache that no crash could clear, because it was on disk. " * 3)[:244]
NUM_BLOCKS = len(PROMPT) // BLOCK_TOKENS


def make_folder(root: Path, identity: bytes = IDENTITY) -> BlockFolder:
    folder = BlockFolder(root / identity.hex(), identity)
    folder.path.mkdir(mode=0o700, exist_ok=True)
    return folder


def stored_engine(
    root: Path,
    *,
    max_bytes: int = 1 << 30,
    num_blocks: int = 512,
    limits: EngineLimits = LIMITS,
    identity: bytes = IDENTITY,
    gate: Gate | None = None,
) -> AsyncEngine:
    runner = FakeRunner(SPEC, runner_limits(num_blocks), before_step=gate)
    store = FileStore(make_folder(root, identity), runner.cache_rows(), max_bytes=max_bytes)
    return make_engine(limits=limits, runner=runner, store=store)


def asked(prompt: str = PROMPT, **options: object) -> GenerationRequest:
    return request(prompt, max_new_tokens=8, ignore_eos=True, **options)


def essence(answer: Answer) -> tuple[object, ...]:
    return answer.text, answer.tokens, answer.prompt, replace(answer.finish, cached_tokens=0)


def files_of(root: Path) -> list[Path]:
    return sorted((root / IDENTITY.hex()).iterdir())


async def fill(root: Path, wanted: GenerationRequest) -> Answer:
    """Answer a request and close the engine, which writes what is queued."""
    async with running(stored_engine(root)) as engine:
        return await ask(engine, wanted)


async def test_a_second_engine_reads_the_blocks_of_the_first(tmp_path: Path) -> None:
    first = await fill(tmp_path, asked())
    assert len(files_of(tmp_path)) == NUM_BLOCKS
    gate = Gate()
    async with running(stored_engine(tmp_path, gate=gate)) as engine:
        second = await ask(engine, asked())
        stats = engine.stats()
    assert essence(second) == essence(first)
    assert second.finish.cached_tokens == stats.stored_tokens_total == NUM_BLOCKS * BLOCK_TOKENS
    assert stats.store_read_bytes_total == NUM_BLOCKS * BLOCK_BYTES
    assert stats.stored_bytes == NUM_BLOCKS * FILE_BYTES
    assert sum(len(step.token_ids) for step in gate.steps[1:]) < BLOCK_TOKENS + 80  # of the warm-up, and the answer


async def test_no_answer_depends_on_what_was_stored(tmp_path: Path) -> None:
    wanted = mixed_requests()
    plain = replace(LIMITS, enable_prefix_caching=False)
    async with running(make_engine(limits=plain)) as engine:
        expected = [essence(await ask(engine, sent)) for sent in wanted]
    for num_blocks in (512, 40, 512):  # too few blocks for all: they are evicted, stored and read at the same time
        async with running(stored_engine(tmp_path, num_blocks=num_blocks)) as engine:
            answers = await ask_together(engine, wanted)
            assert [essence(answer) for answer in answers] == expected
    assert engine.stats().stored_tokens_total > 0


async def test_a_store_and_the_prompts_of_other_engines_share_nothing(tmp_path: Path) -> None:
    await fill(tmp_path, asked())
    for other in (asked(salt="tenant"), asked("X" + PROMPT[1:])):
        async with running(stored_engine(tmp_path)) as engine:
            assert (await ask(engine, other)).finish.cached_tokens == 0
    async with running(stored_engine(tmp_path, identity=bytes(15) + b"1")) as engine:
        assert (await ask(engine, asked())).finish.cached_tokens == 0


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def append(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_link(file: Path) -> None:
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)


def replace_by_other(file: Path) -> None:
    other = next(path for path in file.parent.iterdir() if path != file)
    file.write_bytes(other.read_bytes())


def flip(position: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[position] ^= 1 << position % 8
        file.write_bytes(content)

    return damage


DAMAGES = {
    "cut": cut,
    "appended": append,
    "empty": empty,
    "a folder": replace_by_folder,
    "a pipe": replace_by_pipe,
    "a link": replace_by_link,
    "of another block": replace_by_other,
    "zeros": lambda file: file.write_bytes(bytes(FILE_BYTES)),
    "removed": Path.unlink,
    # A bit of the magic, the identity, the hash, the kind, the size, the checksum, the first byte and the last one.
    **{f"bit in byte {position}": flip(position) for position in (0, 9, 30, 41, 50, 57, HEADER_BYTES, FILE_BYTES - 1)},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_file_is_computed_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    first = await fill(tmp_path, asked())
    engine = stored_engine(tmp_path)
    for file in files_of(tmp_path)[::4]:
        damage(file)
    async with running(engine):
        second = await ask(engine, asked())
        assert essence(second) == essence(first)
        assert second.finish.cached_tokens < NUM_BLOCKS * BLOCK_TOKENS
        third = await ask(engine, asked())
        assert third.finish.cached_tokens == NUM_BLOCKS * BLOCK_TOKENS
    if damage is not replace_by_folder:  # which is left alone
        contents = [path.read_bytes() for path in files_of(tmp_path) if path.suffix == ".kv"]
        assert {len(content) for content in contents} == {FILE_BYTES}
        assert len(set(contents)) == NUM_BLOCKS
        assert not any(path.is_symlink() for path in files_of(tmp_path))


class FullDisk(BlockFolder):
    """A folder on a disk without room."""

    def write(self, *_: object, **__: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_stops_no_answer(tmp_path: Path) -> None:
    runner = FakeRunner(SPEC, runner_limits())
    folder = FullDisk(make_folder(tmp_path).path, IDENTITY)
    async with running(
        make_engine(runner=runner, store=FileStore(folder, runner.cache_rows(), max_bytes=1 << 30))
    ) as engine:
        assert (await ask(engine, asked())).finish.output_tokens == 8
    assert engine.stats().store_dropped_rows_total == NUM_BLOCKS
    assert files_of(tmp_path) == []


async def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    async with running(stored_engine(tmp_path)) as engine:
        shutil.rmtree(tmp_path / IDENTITY.hex())
        await ask(engine, asked())
    assert stat.S_IMODE((tmp_path / IDENTITY.hex()).stat().st_mode) == 0o700


async def test_files_are_private(tmp_path: Path) -> None:
    await fill(tmp_path, asked())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files_of(tmp_path)} == {0o600}
    assert PROMPT[:16].encode() not in b"".join(path.name.encode() for path in files_of(tmp_path))


async def test_the_end_of_a_prefix_is_removed_before_its_start(tmp_path: Path) -> None:
    limit = 10 * FILE_BYTES
    async with running(stored_engine(tmp_path, max_bytes=limit)) as engine:
        await ask(engine, asked())
    assert 0 < engine.stats().stored_bytes == len(files_of(tmp_path)) * FILE_BYTES <= limit
    async with running(stored_engine(tmp_path, max_bytes=limit)) as engine:
        found = (await ask(engine, asked())).finish.cached_tokens
    assert found >= 8 * BLOCK_TOKENS


async def test_the_limit_counts_all_models_of_a_folder_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    strangers = [tmp_path / "notes" / "kept.kv", tmp_path / "other.txt"]
    for stranger in strangers:
        stranger.write_bytes(bytes(10 * FILE_BYTES))
        os.utime(stranger, (0, 0))
    other = make_folder(tmp_path, bytes(15) + b"1")
    async with running(stored_engine(tmp_path, identity=other.identity)) as engine:
        await ask(engine, asked())
    abandoned = other.path / f"{bytes(16).hex()}.kv.{bytes(8).hex()}.tmp"
    abandoned.touch()
    for path in other.path.iterdir():
        os.utime(path, (1, 1))
    async with running(stored_engine(tmp_path, max_bytes=NUM_BLOCKS * FILE_BYTES)) as engine:
        await ask(engine, asked())
    assert len(files_of(tmp_path)) == NUM_BLOCKS
    assert not any(other.path.iterdir())
    assert all(stranger.exists() for stranger in strangers)


async def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    """Both read what the other one wrote and removes at the same time."""
    wanted = [asked(PROMPT[start:] + PROMPT[:start]) for start in range(0, 64, 8)]
    async with running(make_engine()) as engine:
        expected = [essence(await ask(engine, sent)) for sent in wanted]
    limit = 30 * FILE_BYTES
    engines = [stored_engine(tmp_path, max_bytes=limit, num_blocks=40) for _ in range(2)]
    async with running(engines[0]), running(engines[1]):
        for _ in range(2):
            answers = await asyncio.gather(*(ask_together(engine, wanted) for engine in engines))
            assert [[essence(answer) for answer in found] for found in answers] == [expected, expected]


async def test_others_run_while_a_request_waits_for_its_blocks(tmp_path: Path) -> None:
    await fill(tmp_path, asked())
    is_read = threading.Event()

    class SlowFolder(BlockFolder):
        def read(self, key: StoreKey, row: Row) -> None:
            assert is_read.wait(WAIT_S)
            super().read(key, row)

    runner = FakeRunner(SPEC, runner_limits())
    folder = SlowFolder(make_folder(tmp_path).path, IDENTITY)
    engine = make_engine(runner=runner, store=FileStore(folder, runner.cache_rows(), max_bytes=1 << 30))
    async with running(engine):
        waiting = [asyncio.create_task(ask(engine, asked())) for _ in range(2)]
        left = asyncio.create_task(ask(engine, asked()))
        await settled(engine, lambda stats: stats.num_waiting == 3)
        assert (await ask(engine, asked("another prompt"))).finish.output_tokens == 8
        left.cancel()
        await settled(engine, lambda stats: stats.num_waiting == 2)
        rounds = thread_of(engine).num_rounds
        await asyncio.sleep(0)
        assert thread_of(engine).num_rounds <= rounds + 1  # the loop sleeps meanwhile
        is_read.set()
        answers = await asyncio.gather(*waiting)
        assert [answer.finish.cached_tokens for answer in answers] == [NUM_BLOCKS * BLOCK_TOKENS] * 2
        assert engine.stats().stored_tokens_total == NUM_BLOCKS * BLOCK_TOKENS


WRITER = """
import sys, numpy as np
from pathlib import Path
from headrace.inference.engine.core.stored_blocks import StoreKey
from headrace.inference.engine.prefix_store.block_file import BlockFolder
folder, row = BlockFolder(Path(sys.argv[1]), bytes(16)), np.zeros(1 << 20, np.uint8)
print("ready", flush=True)
for number in range(10**6):
    row[:] = number % 251
    folder.write(StoreKey("kv", number.to_bytes(16)), row, depth=0, is_valid=lambda: True)
"""


def test_a_writer_that_is_killed_leaves_whole_files_under_their_names(tmp_path: Path) -> None:
    folder, row = make_folder(tmp_path), np.empty(1 << 20, np.uint8)
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(folder.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            deadline_s = time.monotonic() + WAIT_S
            while len(list(folder.path.iterdir())) < 20 and time.monotonic() < deadline_s:
                os.sched_yield()
            writer.send_signal(signal.SIGKILL)
        keys = list(folder.list_keys())
        assert len(keys) >= 15
        for key in keys:
            folder.read(key, row)
            assert (row == int.from_bytes(key.block_hash) % 251).all()
            folder.file(key).unlink()


def test_the_blocks_of_another_server_are_found_after_a_miss(tmp_path: Path) -> None:
    folder, rows = make_folder(tmp_path), FakeRunner(SPEC, runner_limits()).cache_rows()
    store = FileStore(folder, rows, max_bytes=1 << 30)
    store.start(on_read=lambda _: None, is_busy=lambda: False)
    key = StoreKey("kv", bytes(16))
    folder.write(key, rows["kv"][0], depth=0, is_valid=lambda: True)
    store._next_scan_s = 0.0  # long ago
    assert not store.has(key)
    deadline_s = time.monotonic() + WAIT_S
    while not store.has(key) and time.monotonic() < deadline_s:
        os.sched_yield()
    assert store.has(key)
    store.close()


def test_a_row_that_changes_while_it_is_written_leaves_no_file(tmp_path: Path) -> None:
    folder, row = make_folder(tmp_path), np.zeros(64, np.uint8)
    assert not folder.write(StoreKey("kv", bytes(16)), row, depth=0, is_valid=lambda: False)
    assert files_of(tmp_path) == []
