"""The stores of what is no record: in the home of a platform or, on several machines, where all of them reach it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.files import Files
from headrace.platform.cloudwatch.series.buffered import BufferedSeries
from headrace.platform.cloudwatch.series.database import DatabaseSeries
from headrace.platform.cloudwatch.series.file import FileSeries
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.host.folders import DataFolder
from headrace.platform.state.blobs import Blobs
from headrace.platform.storage.shared_files import Bucket, SharedFiles
from headrace.serving.settings.platform_settings import PlatformSettings

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Makes the stores of a platform by its settings."""

    settings: PlatformSettings
    home: DataFolder
    blobs: Blobs
    objects: S3Objects | None

    def files(self, folder: Path) -> Files:
        """Return the files of a folder of the home, or of all machines."""
        name = own_bucket(self.settings)
        if name is None or self.objects is None:
            return Files(folder)
        bucket = Bucket(name, self.objects.client, self.blobs)
        return SharedFiles(folder, folder.name, blobs=self.blobs, bucket=bucket)


def own_bucket(settings: PlatformSettings) -> str | None:
    """Return the bucket for the files that machines share; None if the platform is on one machine."""
    return f"headrace-{settings.account}-{settings.region}" if settings.is_spread else None


def make_series(settings: PlatformSettings, home: DataFolder) -> BufferedSeries:
    max_bytes = settings.metrics_mib * MIB
    if settings.is_spread and settings.database is not None:
        return DatabaseSeries(settings.database, max_bytes=max_bytes)
    return FileSeries(home.metrics, max_bytes=max_bytes)
