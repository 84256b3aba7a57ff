"""The stores of what is no record: in the home of a platform or, on several machines, where all of them reach it."""

from typing import Final

from headrace.platform.cloudwatch.series.buffered import BufferedSeries
from headrace.platform.cloudwatch.series.database import DatabaseSeries
from headrace.platform.cloudwatch.series.file import FileSeries
from headrace.platform.host.folders import DataFolder
from headrace.serving.settings.platform_settings import PlatformSettings

MIB: Final = 1024 * 1024


def make_series(settings: PlatformSettings, home: DataFolder) -> BufferedSeries:
    max_bytes = settings.metrics_mib * MIB
    if settings.is_spread and settings.database is not None:
        return DatabaseSeries(settings.database, max_bytes=max_bytes)
    return FileSeries(home.metrics, max_bytes=max_bytes)
