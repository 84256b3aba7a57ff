"""Where a platform runs its workers, by its setting `cluster`: on this machine, or on a Ray cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from headrace.cluster.instance_types import Host, HostShare, share_of_cluster, share_of_host
from headrace.cluster.launcher import Launcher
from headrace.cluster.local import LocalLauncher
from headrace.cluster.ray_head import RayHead
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.ray_messages import Connection
from headrace.core.errors import SettingsError
from headrace.core.platform_settings import HERE, LOCAL, OVER_CLIENT, PlatformSettings
from headrace.core.telemetry import get_logger
from headrace.platform.folders import DataFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The launcher of workers, and what belongs to it."""

    launcher: Launcher
    share_of: Callable[[str], HostShare]
    """What an instance type means there."""
    head: RayHead | None = None
    """A Ray cluster that is this platform's own."""

    def end(self) -> None:
        """End what was started here beside the workers; blocks."""
        if self.head is not None and self.head.end():
            get_logger().info("cluster.ended")


def make_cluster(settings: PlatformSettings, folder: DataFolder, env: Mapping[str, str], *, host: Host) -> Cluster:
    """
    Choose the launcher; nothing is started yet, and a cluster of an earlier platform that is not wanted any more ends.

    Raises:
        SettingsError: what it takes is not installed.
    """
    head = RayHead(folder.cluster, environment=env)
    if settings.cluster != HERE and head.end():
        get_logger().info("cluster.ended", message="It was started here by an earlier platform.")
    if settings.cluster == LOCAL:
        local = LocalLauncher(folder.workers, cache_folder=folder.artifacts, environment=env)
        return Cluster(launcher=local, share_of=lambda name: share_of_host(name, host))
    _require(settings.cluster, "ray", what="Ray", package="headrace[ray]")
    if settings.cluster.startswith(OVER_CLIENT):
        _require(settings.cluster, "grpc", what="Ray's client", package="ray[client]")
    own = head if settings.cluster == HERE else None
    connection = Connection(address=settings.cluster, namespace=folder.cluster_namespace())
    launcher = RayLauncher(folder.workers, connection=connection, environment=env, head=own)
    return Cluster(launcher=launcher, share_of=share_of_cluster, head=own)


def _require(cluster: str, module: str, *, what: str, package: str) -> None:
    if find_spec(module) is None:
        message = f"cluster is {cluster!r}, and {what} is not installed. Install it: `pip install '{package}'`."
        raise SettingsError(message, name="cluster")
