"""A full disk is noticed, and what has no room is refused before it is begun."""

import asyncio
from pathlib import Path

import pytest

from headrace.platform.storage.object_storage import MIN_FREE_BYTES, DiskSpace, ExternalStorage, free_bytes
from headrace.platform.storage.s3_proxy import S3Proxy
from headrace.platform.storage.s3_signing import S3Access
from tests import plain_http
from tests.waiting import WAIT_S

from .serving import serving


def with_free(*num_bytes: int | None) -> DiskSpace:
    """The space of disks with so many free bytes each; None: one that cannot be measured."""
    found = dict(zip((Path(f"/{number}") for number in range(len(num_bytes))), num_bytes, strict=True))

    def measure(folder: Path) -> int:
        free = found[folder]
        if free is None:
            raise FileNotFoundError(folder)
        return free

    disk = DiskSpace(tuple(found), measure=measure)
    disk.look()
    return disk


@pytest.mark.parametrize(
    ("free", "told"),
    [
        ((MIN_FREE_BYTES,), ""),
        ((MIN_FREE_BYTES - 1,), "The disk of /0 is full: 4194303 bytes are free; expected at least 4194304."),
        ((1 << 40, 0), "The disk of /1 is full: 0 bytes are free"),
        ((None, 1 << 40), ""),
        ((None,), ""),
    ],
)
def test_the_fullest_disk_counts(free: tuple[int | None, ...], told: str) -> None:
    shortage = with_free(*free).shortage
    assert shortage.startswith(told)
    assert bool(shortage) == bool(told)


def test_a_disk_that_was_not_measured_yet_is_not_full() -> None:
    disk = DiskSpace((Path("/missing"),))
    assert (disk.shortage, disk.has_room_for(1 << 50)) == ("", True)


def test_this_disk_has_room(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0


async def test_each_change_is_reported_once_and_a_disk_at_the_limit_does_not_flap() -> None:
    frees = [1 << 30, 0, 0, MIN_FREE_BYTES, 2 * MIN_FREE_BYTES - 1, 2 * MIN_FREE_BYTES, 1 << 30, 0, 1 << 30]
    seen: list[int] = []
    rooms: list[int] = []

    def measure(_folder: Path) -> int:
        seen.append(frees[len(seen)])
        if len(seen) == len(frees):
            raise asyncio.CancelledError
        return seen[-1]

    async def on_room() -> None:
        rooms.append(len(seen))

    with pytest.raises(asyncio.CancelledError):
        await DiskSpace((Path("/"),), measure=measure).watch(on_room, pause_s=0)
    assert rooms == [6]


WRITES = (
    ("PUT", "/b/k"),
    ("PUT", "/b"),
    ("POST", "/b/k?uploads"),
    ("POST", "/b/k?deletes"),
    ("PUT", "/b/k?partNumber=1"),
)
READS = (("GET", "/b/k"), ("HEAD", "/b/k"), ("DELETE", "/b/k"), ("POST", "/b?delete"), ("POST", "/b?delete="))
UNREACHABLE = S3Access(endpoint_url="http://127.0.0.1:1", access_key="a", secret_key="b", region="us-east-1")


def statuses(disk: DiskSpace | None, requests: tuple[tuple[str, str], ...], body: bytes) -> set[int]:
    """The answers of a proxy whose storage cannot be reached: 503 for what it forwards."""
    with (
        serving(S3Proxy(ExternalStorage(UNREACHABLE), disk=disk)) as url,
        plain_http.Client(timeout=WAIT_S) as client,
    ):
        return {client.request(method, url + path, content=body).status_code for method, path in requests}


def test_only_what_writes_more_than_there_is_room_for_is_refused() -> None:
    full, nearly = with_free(0), with_free(MIN_FREE_BYTES + 10)
    for disk, requests, body, expected in (
        (None, WRITES, b"x", {503}),
        (nearly, WRITES, b"x" * 10, {503}),
        (nearly, WRITES, b"x" * 11, {507}),
        (nearly, READS, b"x" * 11, {503}),
        (full, WRITES, b"", {507}),
    ):
        assert statuses(disk, requests, body) == expected


def test_a_storage_that_cannot_start_on_a_full_disk_is_not_waited_for() -> None:
    assert statuses(with_free(0), READS, b"") == {507}
