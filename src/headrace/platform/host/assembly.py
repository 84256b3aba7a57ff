"""Assembly of a platform's parts from its settings; nothing runs yet."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from headrace.core.errors import SettingsError
from headrace.core.installing import pip_install
from headrace.core.telemetry import get_logger
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.inference.models.sources import home_folder
from headrace.platform.autoscaling.loops.waker import Waker
from headrace.platform.cloudwatch.series.file import FileSeries
from headrace.platform.cluster.cgroups import delegated_group
from headrace.platform.cluster.containers import ContainerLauncher, find_engine
from headrace.platform.cluster.host_resources import HostResources
from headrace.platform.cluster.instance_types import Host, HostShare, share_of_cluster, share_of_host
from headrace.platform.cluster.launcher import NO_GRANTS, Launcher
from headrace.platform.cluster.local import LocalLauncher
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.cluster.ray_head import RayHead
from headrace.platform.cluster.ray_launcher import RayLauncher
from headrace.platform.cluster.ray_messages import Connection
from headrace.platform.cluster.this_host import this_host
from headrace.platform.control.app import ControlApp
from headrace.platform.control.loops.scraper import fetch
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.model.own_images import read_own_images
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.async_queue import AsyncPublisher
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.gateway.metrics import merge, render
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.gateway.publishing import Publisher, Sampler
from headrace.platform.host.access import Authenticator
from headrace.platform.host.access_keys import ACCESS_KEY, AccessKeys, KeyRing, update_local_key
from headrace.platform.host.app import Apps, PlatformApp, make_health
from headrace.platform.host.console import Ask, ConsoleSources, ask_none, console_app
from headrace.platform.host.folders import Address, DataFolder, LocalKey, read_local_key
from headrace.platform.host.membership import Leading, Membership
from headrace.platform.host.metrics_pages import metrics_app
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.host.overview import read_counts, read_home, read_models, read_overview, this_machine
from headrace.platform.host.peers import Peers, Siblings
from headrace.platform.host.sharing import METRICS, Sharing, make_membership, make_peers, make_siblings
from headrace.platform.state.records import Json
from headrace.platform.state.store import Store
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.platform.storage.object_storage import DiskSpace, ObjectStorage
from headrace.platform.storage.s3_proxy import S3Proxy
from headrace.platform.storage.s3_signing import S3Access
from headrace.serving.http.otlp import traced_environment
from headrace.serving.settings.platform_settings import HERE, LOCAL, OVER_CLIENT, PlatformSettings
from headrace.serving.wire.aws.scope import AwsScope

_NEEDED = (("ray", "Ray", "headrace[ray]"), ("grpc", "Ray's client", "headrace[ray]"))
"""Module, its product, and the package to install; the second one only for `ray://`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The launcher of workers, by the setting `cluster`: on this machine, or on a Ray cluster."""

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


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    app: PlatformApp
    gateway: Gateway
    series: FileSeries
    leading: Leading
    membership: Membership
    peers: Peers | None
    """None: no other member."""
    siblings: Siblings | None
    waker: Waker
    cluster: Cluster
    s3: S3Proxy
    disk: DiskSpace
    objects: S3Objects | None


def assemble(
    settings: PlatformSettings,
    sharing: Sharing,
    store: Store,
    storage: ObjectStorage,
    *,
    address: Address,
    env: Mapping[str, str] = os.environ,
    tracer: Tracer = NO_TRACER,
) -> Parts:
    """
    Assemble all parts of the platform at `address`; `storage` has been started, so that its address is known.

    Raises `SettingsError` if the file with own images cannot be read, or a package for the cluster is not installed.
    """
    home = sharing.home
    aws_scope = AwsScope(account=settings.account, region=settings.region)
    series = FileSeries(home.metrics, max_bytes=settings.metrics_mib * MIB)
    waker = Waker(store, aws_scope=aws_scope)

    # Workers: where they run, and what they get.
    own_images = _own_images(settings, home)
    host = this_host()
    runs_containers = any(image.is_container for image in own_images.values())
    cluster = make_cluster(settings, home, env, host=host, runs_containers=runs_containers)
    key = None if settings.open else read_local_key(sharing.folder)
    defaults = WorkerDefaults(
        share_of=cluster.share_of,
        own_images=own_images,
        is_strict=settings.strict,
        environment=_container_environment(settings, address, key, env),
        grants=ObjectGrants(storage.access) if storage.access is not None else NO_GRANTS,
    )
    logs = PlatformLogs(home.workers, home.ended_logs, max_bytes=settings.logs_mib * MIB)

    # Requests to endpoints.
    objects = S3Objects(_client_options(storage.access)) if storage.access is not None else None
    publisher = Publisher(series, is_strict=settings.strict)
    gateway = _make_gateway(
        settings, home, store, waker, objects=objects, publisher=publisher, series=series, tracer=tracer
    )

    # The loops of the leader, and the other processes of the platform.
    leading = Leading(
        store=store,
        series=series,
        launcher=cluster.launcher,
        logs=logs,
        gateway=gateway,
        sampler=_make_sampler(gateway, publisher, series),
        defaults=defaults,
        aws_scope=aws_scope,
        memory_bytes=host.memory_bytes,
        is_strict=settings.strict,
        on_change=storage.keep_running,
    )
    peers = make_peers(sharing.coordination, gateway, leading)
    siblings = make_siblings(sharing, gateway)
    membership = make_membership(store, peers, siblings)

    # The applications on the port, which share one budget for bodies in memory.
    control = ControlApp(
        store,
        OPERATIONS,
        aws_scope=aws_scope,
        logs=logs,
        own_images=own_images,
        is_strict=settings.strict,
        series=series,
        budget=gateway.budget,
    )
    disk = DiskSpace((home.root, sharing.folder.root))
    s3 = S3Proxy(storage, disk=disk if settings.s3_endpoint is None else None)
    health = make_health(settings, storage, disk, host.gpus)
    ask = ask_none if siblings is None else siblings.ask

    def read_platform() -> Json:
        readings = leading.readings or (peers.readings if peers is not None else {})
        return {"platform": health(), **read_home(store, this_machine(host, settings.cluster), dict(readings))}

    apps = Apps(
        gateway=gateway,
        gateway_owns=gateway.owns,
        control=control,
        s3=s3,
        console=console_app(gateway.history, _console_sources(settings, sharing, store, env, read_platform), ask=ask),
        metrics=metrics_app(
            partial(_metrics_page, gateway, ask),
            lambda: gateway.routes,
            lambda replica: fetch(replica.url, token=replica.token),
        ),
        health=health,
        outdated=lambda: membership.is_outdated,
    )
    authenticator = Authenticator(
        KeyRing(store), is_open=settings.open, is_local=settings.is_local, allowed_hosts=settings.allowed_hosts
    )
    return Parts(
        app=PlatformApp(apps, authenticator, gateway.budget),
        gateway=gateway,
        series=series,
        leading=leading,
        membership=membership,
        peers=peers,
        siblings=siblings,
        waker=waker,
        cluster=cluster,
        s3=s3,
        disk=disk,
        objects=objects,
    )


def _make_gateway(
    settings: PlatformSettings,
    home: DataFolder,
    store: Store,
    waker: Waker,
    *,
    objects: S3Objects | None,
    publisher: Publisher,
    series: FileSeries,
    tracer: Tracer,
) -> Gateway:
    config = GatewayConfig(
        account=settings.account,
        region=settings.region,
        async_folder=home.invocations,
        hold_timeout_s=settings.hold_timeout_s,
        max_held=settings.max_held,
        stored_responses_bytes=settings.stored_responses_bytes,
        stored_responses_age_s=settings.stored_responses_age_s,
    )
    return Gateway(
        store,
        config,
        objects=objects,
        wake=None if settings.strict else waker.wake,
        publish=publisher.publish,
        async_publisher=AsyncPublisher(series),
        tracer=tracer,
    )


def _make_sampler(gateway: Gateway, publisher: Publisher, series: FileSeries) -> Sampler:
    return Sampler(
        publisher=publisher,
        sink=series,
        routes=lambda: gateway.routes,
        loads=lambda: gateway.loads,
        held=lambda: gateway.held,
        each_window=gateway.publish_backlogs,
    )


def _console_sources(
    settings: PlatformSettings,
    sharing: Sharing,
    store: Store,
    env: Mapping[str, str],
    read_platform: Callable[[], Json],
) -> ConsoleSources:
    return ConsoleSources(
        components=partial(read_overview, store),
        counts=partial(read_counts, store),
        home=read_platform,
        models=lambda: read_models(home_folder(env)),
        keys=None if settings.open else AccessKeys(store, sharing.folder),
    )


async def _metrics_page(gateway: Gateway, ask: Ask) -> bytes:
    """Return the metrics of this process's gateway, added to those of the platform's other processes."""
    own, others = render(gateway.metrics), await ask(METRICS, None)
    return merge([own, *(other.encode() for other in others)]) if others else own


def prepare_keys(settings: PlatformSettings, store: Store, folder: DataFolder) -> None:
    """
    Generate an access key if there is none and the platform is for this machine; write it for programs of this user.

    Raises `SettingsError` if keys are required and there are none; it names the command that creates one.
    """
    keys = AccessKeys(store)
    if settings.open:
        get_logger().warning("platform.open", reason="Every program on this machine, also of other users, has access.")
        return
    if not store.list(ACCESS_KEY):
        if not settings.is_local:
            place = f" --data-dir {settings.data_dir}" if settings.data_dir is not None else ""
            why = f"host is {settings.host}, which others on the network can reach"
            raise SettingsError(
                f"{'require_keys is set' if settings.require_keys else why}, and there are no access keys. "
                f"Make one: `headrace keys create{place}`.",
                name="host",
            )
        keys.generate()
    update_local_key(keys, folder)


def _own_images(settings: PlatformSettings, folder: DataFolder) -> dict[str, OwnImage]:
    path = settings.images or folder.images
    others = {"*": OwnImage(is_container=True)} if settings.containers else {}
    if settings.images is None and not path.exists():
        return others
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"images is {path}, which cannot be read: {why}.", name="images") from error
    return others | read_own_images(text, source=str(path))


def _client_options(access: S3Access) -> dict[str, object]:
    from botocore.config import Config

    return {
        "endpoint_url": access.endpoint_url,
        "aws_access_key_id": access.access_key,
        "aws_secret_access_key": access.secret_key,
        "region_name": access.region,
        "config": Config(proxies={}),
    }


def _container_environment(
    settings: PlatformSettings, address: Address, key: LocalKey | None, env: Mapping[str, str]
) -> dict[str, str]:
    """
    Return the variables that SageMaker sets in every container, and those by which it exports traces.

    With the generated key of the platform, or without keys, also those to call it: on AWS the code has a role. Keys
    that its operator made are not given away.
    """
    environment = {
        **traced_environment(settings.otlp_traces_endpoint, env),
        "AWS_REGION": settings.region,
        "AWS_DEFAULT_REGION": settings.region,
        "SAGEMAKER_REGION": settings.region,
    }
    if not settings.open and (key is None or not key.is_generated):
        return environment
    environment |= {
        "AWS_ENDPOINT_URL": address.url,
        "AWS_ACCESS_KEY_ID": "headrace" if key is None else key.key_id,
        "AWS_SECRET_ACCESS_KEY": "headrace" if key is None else key.secret,
    }
    if address.ca_bundle is not None:
        environment["AWS_CA_BUNDLE"] = address.ca_bundle
    return environment
