"""The stores of what is no record: in the home of a platform or, on several machines, where all of them reach it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.series.buffered import BufferedSeries
from headrace.platform.cloudwatch.series.database import DatabaseSeries
from headrace.platform.cloudwatch.series.file import FileSeries
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.cluster.shared_logs import FOLLOW_S, KEEP_LOG, LOG_BYTES, NEW_BYTES, SharedLogs
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.host.channel import Channel, MachineSilent
from headrace.platform.host.folders import DataFolder
from headrace.platform.state.blobs import Blobs
from headrace.platform.storage.s3_signing import S3Access
from headrace.platform.storage.shared_files import Bucket, SharedFiles
from headrace.serving.settings.platform_settings import LOCAL, PlatformSettings

MIB: Final = 1024 * 1024
_SWEEP_S: Final = 3600.0
_LOG_TIMEOUT_S: Final = 10.0
"""Timeout of a question about a log, which its machine may first have to store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Makes the stores of a platform by its settings."""

    settings: PlatformSettings
    home: DataFolder
    blobs: Blobs
    objects: S3Objects | None
    chores: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """Seconds between two calls, and what keeps the copies on this machine."""

    def files(self, folder: Path) -> Files:
        """Return the files of a folder of the home, or of all machines."""
        name = own_bucket(self.settings)
        if name is None or self.objects is None:
            return Files(folder)
        bucket = Bucket(name, self.objects.client, self.blobs)
        return SharedFiles(folder, folder.name, blobs=self.blobs, bucket=bucket)

    async def run_chores(self) -> None:
        """Keep the copies on this machine, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for period_s, chore in self.chores:
                tasks.create_task(_repeat(period_s, chore))


async def _repeat(period_s: float, chore: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await asyncio.to_thread(chore)
        except (OSError, Unavailable) as error:
            get_logger().warning("copies.not_kept", reason=str(error))


def make_stores(settings: PlatformSettings, home: DataFolder, blobs: Blobs, access: S3Access | None) -> Stores:
    objects = None
    if access is not None:
        objects = S3Objects(access.direct_options(), own_bucket=own_bucket(settings))
    return Stores(settings=settings, home=home, blobs=blobs, objects=objects)


def own_bucket(settings: PlatformSettings) -> str | None:
    """Return the bucket for the files that machines share; None if the platform is on one machine."""
    return f"headrace-{settings.account}-{settings.region}" if settings.is_spread else None


def make_series(settings: PlatformSettings, home: DataFolder) -> BufferedSeries:
    max_bytes = settings.metrics_mib * MIB
    if settings.is_spread and settings.database is not None:
        return DatabaseSeries(settings.database, max_bytes=max_bytes)
    return FileSeries(home.metrics, max_bytes=max_bytes)


def make_logs(stores: Stores, channel: Channel | None) -> PlatformLogs:
    """Make the logs of workers; of several machines, each asks the others. Call it in the event loop."""
    home, max_bytes = stores.home, stores.settings.logs_mib * MIB
    if channel is None:
        return PlatformLogs(home.workers, home.ended_logs, max_bytes=max_bytes)
    loop = asyncio.get_running_loop()

    async def ask_machine(machine: str, question: str, argument: Sequence[object]) -> list[Any]:
        with suppress(MachineSilent):
            return [await channel.ask_machine(machine, question, argument, timeout_s=_LOG_TIMEOUT_S)]
        return []

    async def ask_all(question: str, argument: Sequence[object]) -> list[Any]:
        found = await asyncio.gather(*(ask_machine(machine, question, argument) for machine in channel.machines))
        return [answer for answers in found for answer in answers]

    def ask(question: str, argument: Sequence[object]) -> Sequence[Any]:
        return asyncio.run_coroutine_threadsafe(ask_all(question, argument), loop).result()

    files = stores.files(home.ended_logs)
    are_copies = stores.settings.cluster != LOCAL
    logs = SharedLogs(home.workers, files, ask=ask, max_bytes=max_bytes, are_copies=are_copies)
    stores.chores.extend(
        ((_SWEEP_S, logs.sweep), (_SWEEP_S, stores.files(home.batches).sweep), (FOLLOW_S, logs.follow))
    )

    def keep(worker: str, log_group: str, log_stream: str, created_s: float) -> None:
        with suppress(OSError):  # another process of this machine may keep it
            logs.keep_own(worker, log_group=log_group, log_stream=log_stream, created_s=created_s)

    channel.answers[LOG_BYTES] = lambda argument: asyncio.to_thread(logs.answer_bytes, *argument)
    channel.answers[NEW_BYTES] = lambda argument: asyncio.to_thread(logs.answer_new_bytes, *argument)
    channel.answers[KEEP_LOG] = lambda argument: asyncio.to_thread(keep, *argument)
    return logs
