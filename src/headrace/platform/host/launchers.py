"""The choice of the launcher of workers, by the settings of a platform."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from urllib.parse import urlsplit

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.cgroups import delegated_group
from headrace.platform.cluster.containers import ContainerLauncher, find_engine
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.instance_types import Host, HostShare, share_of_cluster, share_of_host
from headrace.platform.cluster.launcher import Launcher
from headrace.platform.cluster.local import LocalLauncher, ProcessOptions
from headrace.platform.cluster.machine import QUESTION, MachineValues, OwnMachine
from headrace.platform.cluster.machines import MachinesLauncher, Presence
from headrace.platform.cluster.ray_head import RayHead
from headrace.platform.cluster.ray_launcher import RayLauncher
from headrace.platform.cluster.ray_messages import Connection
from headrace.platform.host.channel import Channel
from headrace.platform.host.folders import DataFolder
from headrace.platform.state.coordination import LEASE_S
from headrace.serving.settings.platform_settings import HERE, LOCAL, OVER_CLIENT, PlatformSettings
from headrace.serving.settings.values import env_name

_CERTIFICATES = "cryptography"
_NEEDED = ((_CERTIFICATES, "cryptography"), ("ray", "Ray"), ("grpc", "Ray's client"))
"""Modules of `headrace[ray]`, and their products; the last one only for `ray://`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The launcher of workers, by the setting `cluster`: on this machine, or on a Ray cluster."""

    launcher: Launcher
    share_of: Callable[[str], HostShare]
    """Returns the share of a host that corresponds to an instance type."""
    head: RayHead | None = None
    """The platform's own Ray cluster, if it has one."""
    own: OwnMachine | None = None
    """The launcher of this machine only, in a platform on several machines; `launcher` is over all of them."""
    presence: Presence | None = None
    """The machines with live members, in such a platform."""

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
    namespace: str = "",
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> Cluster:
    """
    Choose the launcher without starting anything; stop the cluster of an earlier platform that is no longer configured.

    `runs_containers`: an image is to be run as a container. `namespace`: that of the platform on a Ray cluster; empty:
    the one in its folder. Raises `SettingsError` if a required package is not
    installed, or no container engine answers.
    """
    env = {**env, env_name("sandbox"): settings.sandbox, env_name("code_network"): settings.code_network}
    head = RayHead(folder.cluster, environment=env)
    if settings.cluster != HERE and head.end():
        get_logger().info("cluster.ended", message="It was started here by an earlier platform.")
    if settings.is_spread and settings.cluster == LOCAL and not has_module(_CERTIFICATES):
        message = "advertise is set, and cryptography, which makes the certificates of workers, is not installed: "
        raise SettingsError(f"{message}`{pip_install('headrace[postgres]')}`.", name="advertise")
    if settings.cluster == LOCAL:
        local = LocalLauncher(
            folder.workers,
            cache_folder=folder.artifacts,
            environment=env,
            options=_process_options(settings),
            host=HostResources(
                num_cores=host.num_cores,
                gpus=host.gpus,
                workers_per_gpu=settings.workers_per_gpu,
                cgroup=delegated_group(),
            ),
        )
        if not runs_containers:
            return Cluster(launcher=local, share_of=partial(share_of_host, host=host))
        if settings.is_spread:
            message = (
                "An image of the file of custom images is a container, and advertise is set. Containers require no "
            )
            raise SettingsError(f"{message}token, so they run on a platform on one machine only.", name="advertise")
        launcher = ContainerLauncher(local, find_engine(env, settings.container_runtime), folder.workers)
        return Cluster(launcher=launcher, share_of=partial(share_of_host, host=host))
    if runs_containers:
        message = f"An image of the file of custom images is a container, and cluster is {settings.cluster!r}."
        raise SettingsError(f"{message} Containers run with cluster local.", name="cluster")
    for module, product in _NEEDED[: 3 if settings.cluster.startswith(OVER_CLIENT) else 2]:
        if not has_module(module):
            package = pip_install("headrace[ray]")
            message = f"cluster is {settings.cluster!r}, and {product} is not installed: `{package}`."
            raise SettingsError(message, name="cluster")
    own = head if settings.cluster == HERE else None
    connection = Connection(address=settings.cluster, namespace=namespace or folder.cluster_namespace())
    on_ray = RayLauncher(folder.workers, connection=connection, environment=env, head=own)
    return Cluster(launcher=on_ray, share_of=share_of_cluster, head=own)


def _process_options(settings: PlatformSettings) -> ProcessOptions:
    """Return where workers listen: other machines reach them at the advertised address, with a token."""
    if settings.advertise is None:
        return ProcessOptions()
    host = urlsplit(f"//{settings.advertise}").hostname or ""
    return ProcessOptions(host=host, token=secrets.token_urlsafe(24))


def over_machines(cluster: Cluster, channel: Channel, *, host: Host, values: MachineValues) -> Cluster:
    """Return the cluster of this machine, which is local, together with those of the other machines."""
    assert isinstance(cluster.launcher, LocalLauncher)
    machine = channel.own.machine
    own = OwnMachine(cluster.launcher, machine, memory_bytes=host.memory_bytes, values=values)
    presence = Presence(machine, max_gap_s=LEASE_S)
    channel.answers[QUESTION] = own.answer
    launcher = MachinesLauncher(own, presence, channel.ask_machine)
    return replace(cluster, launcher=launcher, own=own, presence=presence)
