"""A platform in the background: start it and wait until it answers, and stop the one that a data folder names."""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from shutil import disk_usage
from typing import Any

from headrace.core.processes import ProcessId, is_running, reap, send_signal, spawn
from headrace.platform.host.folders import DataFolder
from headrace.serving.settings.values import PLATFORM_PREFIX, text_of
from headrace.tools.cli.group import Failed, UserFailed
from headrace.tools.cli.platform_client import NotTrusted, Platform, platform_at
from headrace.tools.cli.progress import ShowStage, showing_stage

_COMMAND = (sys.executable, "-P", "-m", "headrace", "up")
_POLL_S = 0.1
_ABORT_S = 30.0
"""Longest wait for the end of a platform whose start was interrupted."""
_STORAGE_PATIENCE_S = 3.0
"""Longest wait for the embedded S3 server, so that the start message shows its state."""
_TAIL_BYTES = 1 << 14
_MIN_FREE_BYTES = 1 << 20
"""With less free space the log may be empty, which would hide the reason."""
_BAD_SETTING = 2
"""Exit code of a platform for an error that the caller can fix."""


def start_detached(folder: DataFolder, overrides: Mapping[str, object], env: Mapping[str, str]) -> Platform:
    """
    Start a platform in a session of its own, and return it when it answers. Its log is in the data folder.

    The overrides are passed on as variables, which other users of the machine cannot read: one may be a database URL
    with a password. Those that are None are not given.

    Raises:
        SettingsError: a platform uses the folder already.
        Failed: the platform ended before it answered; the message has the last line of its log.
    """
    folder.make()
    with folder.locked(), suppress(FileNotFoundError):
        folder.log.replace(folder.log.with_suffix(".log.1"))
    given = {PLATFORM_PREFIX + name.upper(): text_of(value) for name, value in overrides.items() if value is not None}
    process = spawn(_COMMAND, {**env, **given}, folder.log)
    try:
        with showing_stage("platform") as show:
            show("starting")
            return _until_it_answers(folder, process, show)
    except KeyboardInterrupt:
        send_signal(process, signal.SIGTERM)
        _wait(lambda: reap(process) is not None, _ABORT_S)
        raise


def _until_it_answers(folder: DataFolder, process: ProcessId, show: ShowStage) -> Platform:
    """Wait for the address of the platform, then for its first response."""
    while (code := reap(process)) is None:
        running, address = folder.running_platform(), folder.running_address()
        if running is not None and running.process == process and address is not None:
            show(f"starting at {address.url}")
            platform = platform_at(address, folder)
            try:
                _wait(partial(_has_storage, platform), _STORAGE_PATIENCE_S)
            except NotTrusted:
                return platform  # it listens; its certificate is for the names by which others reach it
            except Failed:
                time.sleep(_POLL_S)
                continue
            return platform
        time.sleep(_POLL_S)
    is_full = disk_usage(folder.root).free < _MIN_FREE_BYTES
    reason = _last_line(folder) or (f"The disk of {folder.root} is full" if is_full else f"exit code {code}")
    raise (UserFailed if code == _BAD_SETTING else Failed)(f"{reason}\nThe platform did not start. Log: {folder.log}")


def _has_storage(platform: Platform) -> bool:
    """Return whether the platform answers with object storage that is no longer starting."""
    return bool(platform.health()["object_storage"] != "starting")


def _last_line(folder: DataFolder) -> str:
    with folder.log.open("rb") as log:
        log.seek(max(0, folder.log.stat().st_size - _TAIL_BYTES))
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ") if lines else ""


def stop_platform(folder: DataFolder, timeout_s: float) -> str | None:
    """
    Stop the platform of a data folder in order, as SIGTERM does; return its URL, or None if none runs.

    Raises:
        Failed: it has not stopped in time, or it runs where this process cannot reach it.
    """
    running = folder.running_platform()
    if running is None and folder.is_locked():
        raise Failed(
            f"A platform uses {folder.root}, but its process is not known here: it is starting, or runs in another "
            "container. Stop it where it was started."
        )
    if running is None:
        return None
    if not running.is_stopping:
        try:
            send_signal(running.process, signal.SIGTERM)
        except PermissionError as error:
            whose = f"The platform at {running.url} (process {running.process.pid}) is another user's"
            raise Failed(f"{whose}, who can stop it.") from error
    with showing_stage(running.url) as show:
        show("stopping: requests may finish, then workers end")
        if not _wait(lambda: not is_running(running.process), timeout_s):
            raise Failed(
                f"The platform at {running.url} is still stopping after {timeout_s:g} s. `headrace down` waits for it "
                f"again; `kill {running.process.pid}` ends it at once and leaves its workers running."
            )
    return running.url


def _wait(fact: Callable[[], Any], timeout_s: float) -> bool:
    """Wait until a condition is true; return whether it became true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
