"""Keep the log files of a platform and of its S3 server within bounds while the platform runs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.core.log_files import KEPT_LOG_BYTES, MAX_LOG_BYTES, trim_log
from headrace.core.telemetry import get_logger

_PAUSE_S: Final = 30.0
"""A platform that writes 10,000 lines a second exceeds the bound by 100 MiB in this time."""


async def bound_logs(
    logs: Sequence[Path],
    *,
    max_bytes: int = MAX_LOG_BYTES,
    kept_bytes: int = KEPT_LOG_BYTES,
    pause_s: float = _PAUSE_S,
) -> None:
    """Cut the logs that have grown too large, every `pause_s`, until cancelled."""
    while True:
        for log in logs:
            try:
                await asyncio.to_thread(trim_log, log, max_bytes=max_bytes, kept_bytes=kept_bytes)
            except OSError as error:
                get_logger().warning("log.not_cut", log=str(log), reason=error.strerror)
        await asyncio.sleep(pause_s)
