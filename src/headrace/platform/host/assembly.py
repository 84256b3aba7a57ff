"""Assembly of a platform's parts from its settings; nothing runs yet."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.core.tracing import NO_TRACER, Tracer
from headrace.platform.account.image_store import ImageStore
from headrace.platform.autoscaling.loops.waker import Waker
from headrace.platform.cloudformation.calls import BUCKET_OPERATIONS, StackCalls
from headrace.platform.cloudwatch.series.buffered import BufferedSeries
from headrace.platform.cluster.instance_types import Host
from headrace.platform.cluster.launcher import NO_GRANTS
from headrace.platform.cluster.machine import OF_MACHINE, MachineValues
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.cluster.this_host import this_host
from headrace.platform.control.app import ControlApp
from headrace.platform.control.jumpstart.catalogue import open_catalogue
from headrace.platform.control.loops.scraper import fetch
from headrace.platform.control.model.images import OwnImage
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.async_files import PendingStore
from headrace.platform.gateway.async_queue import AsyncPublisher
from headrace.platform.gateway.batches import BatchConfig, BatchGateway
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.gateway.metrics import merge, render
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.gateway.publishing import Publisher, Sampler
from headrace.platform.host.access import Authenticator
from headrace.platform.host.access_keys import AccessKeys, KeyRing
from headrace.platform.host.app import Apps, PlatformApp, make_health
from headrace.platform.host.configured_images import configured_images
from headrace.platform.host.console import ConsoleSources, console_app
from headrace.platform.host.folders import Address, read_local_key
from headrace.platform.host.launchers import Cluster, make_cluster, over_machines
from headrace.platform.host.machines import MACHINE, Machine, this_machine
from headrace.platform.host.membership import Leading
from headrace.platform.host.metrics_pages import metrics_app
from headrace.platform.host.notifications import Notifications
from headrace.platform.host.operations import operations_of
from headrace.platform.host.overview import read_counts, read_home, read_models, read_overview, read_uses
from headrace.platform.host.registry import RegistryApp
from headrace.platform.host.sharing import METRICS, Links, Members, Sharing, make_links, make_members, usages_of
from headrace.platform.host.stores import Stores, make_logs, make_series, make_stores, own_bucket
from headrace.platform.state.blobs import Blobs
from headrace.platform.state.records import Json
from headrace.platform.state.store import Store
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.platform.storage.object_storage import DiskSpace, ObjectStorage
from headrace.platform.storage.public_buckets import PublicBuckets, public_source
from headrace.platform.storage.s3_proxy import S3Proxy
from headrace.serving.http.otlp import traced_environment
from headrace.serving.settings.platform_settings import LOCAL, PlatformSettings
from headrace.serving.wire.aws.scope import AwsScope

_OF_MACHINE: Final = frozenset({"AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"})
"""Variables of containers that differ between the machines of a platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Settings, folders, store and storage of a platform. The storage has been started: its address is known."""

    settings: PlatformSettings
    sharing: Sharing
    store: Store
    blobs: Blobs
    storage: ObjectStorage
    address: Address
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    tracer: Tracer = NO_TRACER

    @property
    def aws_scope(self) -> AwsScope:
        return AwsScope(account=self.settings.account, region=self.settings.region)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The cluster on which workers run, and the settings that they get."""

    cluster: Cluster
    host: Host
    own_images: Mapping[str, OwnImage]
    defaults: WorkerDefaults
    logs: PlatformLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocations:
    """The parts that take requests to endpoints, and measure them."""

    gateway: Gateway
    batches: BatchGateway
    keys: KeyRing
    waker: Waker
    series: BufferedSeries
    sampler: Sampler
    objects: S3Objects | None
    notifications: Notifications


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    app: PlatformApp
    workers: Workers
    invocations: Invocations
    leading: Leading
    members: Members
    s3: S3Proxy
    disk: DiskSpace
    stores: Stores


def assemble(site: Site) -> Parts:
    """
    Assemble all parts of a platform.

    Raises `SettingsError` if the file with own images cannot be read, or a package for the cluster is not installed.
    """
    links = make_links(site.sharing)
    stores = make_stores(site.settings, site.sharing.home, site.blobs, site.storage.access)
    workers, invocations = _make_workers(site, stores, links), _make_invocations(site, stores)
    control = _make_control(site, stores, workers, invocations)
    leading = Leading(
        store=site.store,
        series=invocations.series,
        launcher=workers.cluster.launcher,
        logs=workers.logs,
        gateway=invocations.gateway,
        batches=invocations.batches,
        sampler=invocations.sampler,
        defaults=workers.defaults,
        aws_scope=site.aws_scope,
        objects=invocations.objects,
        transforms=stores.files(site.sharing.home.transforms),
        call=StackCalls(control.call, invocations.objects),
        memory_bytes=workers.host.memory_bytes,
        num_cores=workers.host.num_cores,
        is_strict=site.settings.strict,
        address=lambda: found.url if (found := site.sharing.folder.running_address()) is not None else "",
        key_environment={"HEADRACE_UP_DATA_DIR": str(site.sharing.folder.root)},
        serverless_idle_s=0.0 if site.settings.strict else site.settings.serverless_idle_s,  # no request would wake it
        notifications=invocations.notifications,
        on_change=site.storage.keep_running,
    )
    members = make_members(
        site.sharing,
        site.store,
        invocations.gateway,
        invocations.batches,
        leading,
        links=links,
        presence=workers.cluster.presence,
    )
    disk = DiskSpace((site.sharing.home.root, site.sharing.folder.root))
    public = PublicBuckets(workers.defaults.jumpstart, site.settings.public_buckets)
    s3_disk = disk if site.settings.s3_endpoint is None else None
    s3 = S3Proxy(site.storage, disk=s3_disk, public=public, own_bucket=own_bucket(site.settings))
    leading.has_lease = members.membership.has_lease
    app = _make_app(site, control, workers, invocations, leading, members, s3, disk)
    return Parts(
        app=app,
        workers=workers,
        invocations=invocations,
        leading=leading,
        members=members,
        s3=s3,
        disk=disk,
        stores=stores,
    )


def _make_workers(site: Site, stores: Stores, links: Links | None) -> Workers:
    settings, home, access = site.settings, site.sharing.home, site.storage.access
    own_images, host = configured_images(settings, home), this_host()
    runs_containers = any(image.is_container for image in own_images.values())
    cluster = make_cluster(
        settings, home, site.env, host=host, runs_containers=runs_containers, namespace=site.sharing.namespace
    )
    environment, prefixes = _container_environment(site), home.prefixes
    if links is not None and links.channel is not None and settings.cluster == LOCAL:
        values = MachineValues(folder=home.root, environment=environment)
        cluster = over_machines(cluster, links.channel, host=host, values=values)
        environment = {**environment, **dict.fromkeys(_OF_MACHINE & environment.keys(), OF_MACHINE)}
        prefixes = Path(OF_MACHINE) / prefixes.relative_to(home.root)
    defaults = WorkerDefaults(
        share_of=cluster.share_of,
        own_images=own_images,
        is_strict=settings.strict,
        environment=environment,
        grants=ObjectGrants(access, own_bucket(settings)) if access is not None else NO_GRANTS,
        jumpstart=open_catalogue(settings.jumpstart, home.jumpstart),
        public_source=partial(public_source, source=settings.public_buckets),
        prefix_caches=prefixes if settings.cluster == LOCAL else None,
    )
    logs = make_logs(stores, links.channel if links is not None else None)
    return Workers(cluster=cluster, host=host, own_images=own_images, defaults=defaults, logs=logs)


def _make_invocations(site: Site, stores: Stores) -> Invocations:
    settings, home, access = site.settings, site.sharing.home, site.storage.access
    objects = stores.objects
    series = make_series(settings, home)
    publisher = Publisher(series, is_strict=settings.strict)
    waker = Waker(site.store, aws_scope=site.aws_scope)
    notifications = Notifications(
        store=site.store, aws_scope=site.aws_scope, url=site.address.url, webhook=settings.event_webhook
    )
    config = GatewayConfig(
        account=settings.account,
        region=settings.region,
        hold_timeout_s=settings.hold_timeout_s,
        max_held=settings.max_held,
        stored_responses_bytes=settings.stored_responses_bytes,
        stored_responses_age_s=settings.stored_responses_age_s,
        grants=NO_GRANTS if access is None else ObjectGrants(access, own_bucket(settings)),
    )
    gateway = Gateway(
        site.store,
        config,
        objects=objects,
        pending=PendingStore(site.blobs, home.invocations),
        wake=None if settings.strict else waker.wake,
        publish=publisher.publish,
        async_publisher=AsyncPublisher(series),
        usages=usages_of(site.sharing),
        on_async_ended=notifications.invocation,
        tracer=site.tracer,
    )
    sampler = Sampler(
        publisher=publisher,
        sink=series,
        routes=lambda: gateway.routes,
        loads=lambda: gateway.loads,
        held=lambda: gateway.held,
        each_window=gateway.publish_backlogs,
    )
    keys, files = KeyRing(site.store), stores.files(home.batches)
    batches = BatchConfig(files=files, max_bytes=settings.batch_bytes, concurrency=settings.batch_concurrency)
    return Invocations(
        gateway=gateway,
        batches=BatchGateway(gateway, batches, config, gateway.metrics.batches, look_up_limits=keys.limits_for),
        keys=keys,
        waker=waker,
        series=series,
        sampler=sampler,
        objects=objects,
        notifications=notifications,
    )


def _make_control(site: Site, stores: Stores, workers: Workers, invocations: Invocations) -> ControlApp:
    settings, objects = site.settings, invocations.objects
    return ControlApp(
        site.store,
        operations_of(checks_roles=settings.check_roles),
        aws_scope=site.aws_scope,
        logs=workers.logs,
        own_images=workers.own_images,
        is_strict=settings.strict,
        jumpstart=workers.defaults.jumpstart,
        series=invocations.series,
        budget=invocations.gateway.budget,
        url=site.address.url,
        deliverer=invocations.notifications.deliverer,
        images=ImageStore(stores.files(site.sharing.home.registry)),
        read_object=objects.read if objects is not None else None,
        bucket_operations=BUCKET_OPERATIONS if objects is not None else (),
    )


def _make_app(
    site: Site,
    control: ControlApp,
    workers: Workers,
    invocations: Invocations,
    leading: Leading,
    members: Members,
    s3: S3Proxy,
    disk: DiskSpace,
) -> PlatformApp:
    """Make the applications on the port, which share one budget for bodies in memory."""
    settings, store, gateway = site.settings, site.store, invocations.gateway
    health = make_health(settings, site.storage, disk, workers.host.gpus)

    def read_platform() -> Json:
        readings = leading.readings or (members.peers.readings if members.peers is not None else {})
        return {"platform": health(), **read_home(store, dict(readings))}

    def machine() -> Machine:
        name, leads = members.machine
        return this_machine(workers.host, settings.cluster, name=name, leads=leads)

    if members.links is not None:
        members.links.siblings.answers[MACHINE] = lambda _: machine()
    sources = ConsoleSources(
        components=partial(read_overview, store),
        counts=partial(read_counts, store),
        home=read_platform,
        machine=machine,
        models=partial(read_models, site.env, cluster=settings.cluster),
        uses=partial(read_uses, store),
        keys=None if settings.open else AccessKeys(store, site.sharing.folder),
    )

    async def metrics_page() -> bytes:
        """Return the metrics of this process's gateway, added to those of the platform's other processes."""
        own, others = render(gateway.metrics), await members.ask(METRICS, None)
        return merge([own, *(other.encode() for other in others)]) if others else own

    # The other machines use the advertised name, whatever clients may use.
    advertised = (urlsplit(f"//{settings.advertise}").hostname or "",) if settings.advertise is not None else ()
    ring, hosts = invocations.keys, (*settings.allowed_hosts, *(advertised if settings.allowed_hosts else ()))
    authenticator = Authenticator(ring, is_open=settings.open, is_local=settings.is_local, allowed_hosts=hosts)
    apps = Apps(
        gateway=invocations.batches,
        gateway_owns=gateway.owns,
        control=control,
        s3=s3,
        console=console_app(gateway.history, sources, ask=members.ask),
        metrics=metrics_app(
            metrics_page, lambda: gateway.routes, lambda replica: fetch(replica.url, token=replica.token)
        ),
        health=health,
        registry=RegistryApp(
            control.images, store, authenticator.check_password, authenticator.allows, shortage=lambda: disk.shortage
        ),
        channel=members.links.channel if members.links is not None else None,
        outdated=lambda: members.membership.is_outdated,
    )
    return PlatformApp(apps, authenticator, gateway.budget)


def _container_environment(site: Site) -> dict[str, str]:
    """
    Return the variables that SageMaker sets in every container, and those by which it exports traces.

    With the generated key of the platform, or without keys, also those to call it: on AWS the code has a role. Keys
    that its operator made are not given away, and none to code that must be in a sandbox.
    """
    settings, key = site.settings, None if site.settings.open else read_local_key(site.sharing.folder)
    regions = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_REGION"), settings.region)
    environment = {**traced_environment(settings.otlp_traces_endpoint, site.env), **regions}
    if settings.sandbox == "require" or (not settings.open and (key is None or not key.is_generated)):
        return environment
    environment |= {
        "AWS_ENDPOINT_URL": site.address.url,
        "AWS_ACCESS_KEY_ID": "headrace" if key is None else key.key_id,
        "AWS_SECRET_ACCESS_KEY": "headrace" if key is None else key.secret,
    }
    if site.address.ca_bundle is not None:
        environment["AWS_CA_BUNDLE"] = site.address.ca_bundle
    return environment
