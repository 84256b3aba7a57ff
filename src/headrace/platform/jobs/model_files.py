"""The files of a model between object storage and a folder of a job."""

import asyncio
import math
from functools import partial
from pathlib import Path
from typing import Final

from headrace.platform.gateway.objects import FoundObject, retry_unavailable, split_uri
from headrace.platform.jobs.inputs import Objects
from headrace.platform.jobs.loop import JobFailed
from headrace.serving.artifacts.archives import safe_path
from headrace.serving.artifacts.fetch_bounds import Deadline, DiskFull, FetchFailed, Guard, translate_os_errors

_PART_BYTES: Final = 32 << 20
_PARTIAL: Final = ".partial"


async def fetch_prefix(objects: Objects, uri: str, folder: Path) -> tuple[int, int]:
    """
    Write the objects below a prefix into a folder; return their number and bytes. Complete files are not read again.

    Raises `ObjectFailed`, or `JobFailed` if there are none, or if the disk has no space for one.
    """
    bucket, key = split_uri(f"{uri.rstrip('/')}/x")
    prefix = key.removesuffix("x")
    listed = await retry_unavailable(partial(objects.list, bucket, prefix))
    found = [each for each in listed if not each.key.endswith("/")]
    if not found:
        raise JobFailed(f"ClientError: No objects found under {uri}.")
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    guard = Guard(folder=folder, deadline=Deadline(math.inf))
    for each in found:
        try:
            target = folder / safe_path(each.key.removeprefix(prefix), uri)
            if not (target.exists() and target.stat().st_size == each.num_bytes):
                await _fetch(objects, f"s3://{bucket}/{each.key}", each, target, guard)
        except DiskFull as error:
            raise JobFailed(f"InternalServerError: {error}") from error
        except FetchFailed as error:
            raise JobFailed(f"ClientError: {error}") from None
    return len(found), sum(each.num_bytes for each in found)


async def _fetch(objects: Objects, uri: str, found: FoundObject, target: Path, guard: Guard) -> None:
    await asyncio.to_thread(guard.expect, found.num_bytes, uri)
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    building = target.with_name(f"{target.name}{_PARTIAL}")
    with translate_os_errors(uri), building.open("wb") as file:
        for first in range(0, found.num_bytes, _PART_BYTES):
            read = partial(objects.part, uri, first=first, num_bytes=_PART_BYTES, etag=found.etag)
            await asyncio.to_thread(file.write, await retry_unavailable(read))
    building.replace(target)


async def store_folder(objects: Objects, folder: Path, uri: str) -> int:
    """Write all files of a folder below a prefix; return their number. Raises `ObjectFailed`."""
    files = await asyncio.to_thread(lambda: sorted(path for path in folder.rglob("*") if path.is_file()))
    for path in files:
        target = f"{uri.rstrip('/')}/{path.relative_to(folder).as_posix()}"
        with path.open("rb") as content:
            put = partial(objects.put, target, content, content_type="application/octet-stream")
            await retry_unavailable(put)
    return len(files)
