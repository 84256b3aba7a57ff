"""The launcher of workers, by the setting `cluster`: on this machine, or on a Ray cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from headrace.cluster.cgroups import delegated_group
from headrace.cluster.containers import ContainerLauncher, find_engine
from headrace.cluster.host_resources import HostResources
from headrace.cluster.instance_types import Host, HostShare, share_of_cluster, share_of_host
from headrace.cluster.launcher import Launcher
from headrace.cluster.local import LocalLauncher
from headrace.cluster.ray_head import RayHead
from headrace.cluster.ray_launcher import RayLauncher
from headrace.cluster.ray_messages import Connection
from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.telemetry import get_logger
from headrace.platform.folders import DataFolder
from headrace.settings.platform_settings import HERE, LOCAL, OVER_CLIENT, PlatformSettings

_NEEDED = (("ray", "Ray", "headrace[ray]"), ("grpc", "Ray's client", "headrace[ray]"))
"""Module, its product, and the package to install; the second one only for `ray://`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The launcher of workers, and the cluster that it uses."""

    launcher: Launcher
    share_of: Callable[[str], HostShare]
    """Returns the share of a host that corresponds to an instance type."""
    head: RayHead | None = None
    """The platform's own Ray cluster, if it has one."""

    def end(self) -> None:
        """Stop the platform's own Ray cluster; blocks."""
        if self.head is not None and self.head.end():
            get_logger().info("cluster.ended")


def make_cluster(
    settings: PlatformSettings,
    folder: DataFolder,
    env: Mapping[str, str],
    *,
    host: Host,
    runs_containers: bool = False,
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> Cluster:
    """
    Choose the launcher without starting anything; stop the cluster of an earlier platform that is no longer configured.

    `runs_containers`: an image is to be run as a container. Raises `SettingsError` if a required package is not
    installed, or no container engine answers.
    """
    head = RayHead(folder.cluster, environment=env)
    if settings.cluster != HERE and head.end():
        get_logger().info("cluster.ended", message="It was started here by an earlier platform.")
    if settings.cluster == LOCAL:
        local = LocalLauncher(
            folder.workers,
            cache_folder=folder.artifacts,
            environment=env,
            host=HostResources(
                num_cores=host.num_cores,
                gpus=host.gpus,
                workers_per_gpu=settings.workers_per_gpu,
                cgroup=delegated_group(),
            ),
        )
        launcher = ContainerLauncher(local, find_engine(env), folder.workers) if runs_containers else local
        return Cluster(launcher=launcher, share_of=lambda name: share_of_host(name, host))
    if runs_containers:
        message = f"An image of the file of custom images is a container, and cluster is {settings.cluster!r}."
        raise SettingsError(f"{message} Containers run with cluster local.", name="cluster")
    for module, product, package in _NEEDED[: 2 if settings.cluster.startswith(OVER_CLIENT) else 1]:
        if not has_module(module):
            message = f"cluster is {settings.cluster!r}, and {product} is not installed: `{pip_install(package)}`."
            raise SettingsError(message, name="cluster")
    own = head if settings.cluster == HERE else None
    connection = Connection(address=settings.cluster, namespace=folder.cluster_namespace())
    on_ray = RayLauncher(folder.workers, connection=connection, environment=env, head=own)
    return Cluster(launcher=on_ray, share_of=share_of_cluster, head=own)
