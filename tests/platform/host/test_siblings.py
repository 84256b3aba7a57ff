"""Questions between the processes of a platform."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.platform.host import peers
from headrace.platform.host.peers import Siblings
from headrace.platform.state.coordination import Member, Standing
from tests.waiting import WAIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that answers is asked as long as it takes."""
    monkeypatch.setattr(peers, "TIMEOUT_S", WAIT_S)


def standing(*names: str) -> Standing:
    members = (Member(id=name, url="", host="", data_dir="", version="") for name in names)
    return Standing(term=1, leader="", members=tuple(members))


@asynccontextmanager
async def processes(folder: Path, *names: str) -> AsyncIterator[list[Siblings]]:
    made = [
        Siblings(folder=folder, own_id=name, answers={"echo": lambda argument, name=name: [name, argument]})
        for name in names
    ]
    for process in made:
        await process.start()
        process.set_members(standing(*names).members)
    try:
        yield made
    finally:
        for process in made:
            await process.close()


async def test_all_others_are_asked_however_long_the_folders_name_is(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    async with processes(folder / "sockets", "a", "b", "c") as (a, *_):
        assert sorted(await a.ask("echo", 1)) == [["b", 1], ["c", 1]]
    assert not list((folder / "sockets").iterdir())


async def test_a_process_that_is_gone_or_does_not_know_the_question_is_left_out(tmp_path: Path) -> None:
    async with processes(tmp_path / "sockets", "a", "b") as (a, _):
        a.set_members(standing("a", "b", "gone").members)
        assert await a.ask("echo") == [["b", None]]
        assert await a.ask("unknown") == []


async def test_a_question_that_is_not_json_is_dropped(tmp_path: Path) -> None:
    async with processes(tmp_path / "sockets", "a", "b") as (a, _):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "sockets" / "b"))
        writer.write(b"no\n")
        assert await reader.read() == b""
        writer.close()
        assert await a.ask("echo", [2]) == [["b", [2]]]
