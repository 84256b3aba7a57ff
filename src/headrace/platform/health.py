"""The state of a platform, as `/health` reports it."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from headrace import __version__
from headrace.core.gpus import Gpu
from headrace.platform.disk_space import DiskSpace
from headrace.platform.object_storage import ObjectStorage
from headrace.settings.platform_settings import PlatformSettings
from headrace.state.records import Json

DISK_FULL = "disk_full"
"""The status while nothing can be written; requests that only read are served."""


def make_health(
    settings: PlatformSettings, storage: ObjectStorage, disk: DiskSpace, gpus: Sequence[Gpu]
) -> Callable[[], Json]:
    """Return the function that describes the platform at this moment."""
    started_s = time.time()
    names = Counter(gpu.name for gpu in gpus)

    def health() -> Json:
        shortage = disk.shortage
        return {
            "service": "headrace",
            "status": DISK_FULL if shortage else "ok",
            **({"reason": shortage} if shortage else {}),
            "version": __version__,
            "region": settings.region,
            "asks_for_keys": not settings.open,
            "object_storage": storage.state,
            "gpus": ", ".join(f"{count} x {name}" for name, count in names.items()) or "none",
            "uptime_s": round(time.time() - started_s),
        }

    return health
