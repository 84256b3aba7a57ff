"""A platform keeps its log files within bounds."""

import asyncio
from pathlib import Path

from headrace.platform.life import bound_logs
from tests.waiting import WAIT_S


async def test_logs_are_cut_while_the_platform_runs_and_one_that_cannot_be_cut_stops_nothing(tmp_path: Path) -> None:
    log, folder = tmp_path / "platform.log", tmp_path / "folder"
    log.write_bytes(b"line\n" * 1000)
    folder.mkdir()
    bounding = asyncio.create_task(bound_logs((folder, log), max_bytes=10, kept_bytes=8, pause_s=0.01))
    async with asyncio.timeout(WAIT_S):
        while log.stat().st_size > 10:
            await asyncio.sleep(0.01)
        log.write_bytes(b"line\n" * 1000)
        while log.stat().st_size > 10:
            await asyncio.sleep(0.01)
    assert not bounding.done()
    bounding.cancel()
    await asyncio.wait({bounding})
    assert log.read_bytes() == b"line\n"
