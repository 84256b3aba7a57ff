"""
A process that serves a platform: prepare its store, join the other processes on it, and run until a signal.

Importing this module imports all parts of a platform.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, TypeVar

import uvloop

from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.worker_files import write_atomically
from headrace.platform.host.access_keys import prepare_keys
from headrace.platform.host.folders import DataFolder
from headrace.platform.host.life import OnReady, PlatformLifecycle
from headrace.platform.host.listener import Listener
from headrace.platform.host.operations import refuse_newer
from headrace.platform.host.sharing import agreed_settings, join
from headrace.platform.host.supervisor import NOT_RESTARTED, Child
from headrace.platform.state.blobs import open_blobs
from headrace.platform.state.coordination import Displaced
from headrace.platform.state.store import open_store
from headrace.platform.storage.object_storage import make_storage
from headrace.serving.settings.platform_settings import PlatformSettings

T = TypeVar("T")

_DATABASE_WAIT_S: Final = 60.0
"""Longest wait for a database server that cannot be reached at the start."""
_RETRY_S: Final = 1.0


def prepare(settings: PlatformSettings, folder: DataFolder, database: str | Path) -> None:
    """
    Create the store, and an access key if there is none.

    Raises `SettingsError` if a newer Headrace wrote the records, or a required key is missing.
    """
    with closing(_when_reachable(lambda: open_store(database))) as store:
        refuse_newer(store.schema_versions(), what=f"The store {store.shown}")
        prepare_keys(settings, store, folder)
    with suppress(OSError):  # for backups only: a full disk must not prevent the start
        write_atomically(folder.settings, agreed_settings(settings).encode())


def serve(
    settings: PlatformSettings,
    folder: DataFolder,
    database: str | Path,
    *,
    listener: Listener,
    on_ready: OnReady | None,
    child: Child | None,
    env: Mapping[str, str],
) -> int:
    """Serve until a signal; return the exit code. `child` is None without a supervisor."""
    try:
        with ExitStack() as stack:
            store = stack.enter_context(closing(_when_reachable(lambda: open_store(database))))
            sharing = _when_reachable(
                lambda: stack.enter_context(join(settings, database, folder, store, listener.address, child=child))
            )
            is_alone = sharing.coordination is None
            blobs = stack.enter_context(closing(_when_reachable(lambda: open_blobs(database, sharing.home.blobs))))
            storage = make_storage(settings.s3_endpoint, sharing.home.objects, settings.region, env, is_keeper=is_alone)
            lifecycle = PlatformLifecycle(
                settings=settings,
                store=store,
                blobs=blobs,
                sharing=sharing,
                listener=listener,
                storage=storage,
                on_ready=on_ready,
                on_serving=child.is_ready if child is not None else lambda: None,
                env=env,
            )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(lifecycle.run())
    except Displaced as error:
        if child is None:
            raise
        print(f"Error: {error.message}", file=sys.stderr, flush=True)
        return NOT_RESTARTED


def _when_reachable(use: Callable[[], T]) -> T:
    """
    Use the database; try again for a while if its server cannot be reached, such as when both have been restarted.

    Raises `Unavailable` if it could not be reached within `_DATABASE_WAIT_S`.
    """
    deadline_s = time.monotonic() + _DATABASE_WAIT_S
    while True:
        try:
            return use()
        except Unavailable as error:
            if time.monotonic() >= deadline_s:
                raise
            get_logger().warning("store.unreachable", message=error.message, retry_s=_RETRY_S)
        time.sleep(_RETRY_S)
