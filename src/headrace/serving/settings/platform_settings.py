"""
Settings of the platform (`headrace up`): one field = one flag = one environment variable = one row in the docs.

They work like those of the model server (`settings.server_settings`); the variables begin with `HEADRACE_UP_`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.core.errors import SettingsError
from headrace.serving.settings import rules
from headrace.serving.settings.rules import is_loopback, setting
from headrace.serving.settings.shutdown import check_shutdown
from headrace.serving.settings.values import (
    PLATFORM_PREFIX,
    flag_name,
    masked_repr,
    read_environment,
    read_value,
    rules_of,
    text_of,
)

DEFAULT_PORT = 7450
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")
LOCAL = "local"
"""The `cluster` that runs models on this machine."""
HERE = "ray"
"""The `cluster` that is a Ray cluster started by the platform on this machine."""
OVER_CLIENT = "ray://"
"""The prefix of a `cluster` that is reached through Ray's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSettings:
    """Settings of one platform. None: resolved at the start."""

    host: str = setting(rules.text("a host name or address"), "127.0.0.1")
    """
    Address to listen on; 0.0.0.0 lets other machines connect, with a key of `headrace keys create`. Every request
    needs an access key. On a loopback address the first start generates one, which `headrace` finds in
    `data_dir`; on any other address the platform starts only if there are access keys.
    """

    port: int = setting(rules.integer(0, 65535), DEFAULT_PORT)
    """Port to listen on, for all services; 0 takes a free one."""

    advertise: str | None = setting(rules.host_and_port(), None)
    """
    Address of this machine for the others of a platform on several machines, see
    [high availability](high-availability.md#several-machines); the default port is `port`. The platform and its workers
    then listen there. Needs `database` and `s3_endpoint`, which all machines share.
    """

    open: bool = setting(rules.boolean(), False)
    """
    Accept requests without a key, on a loopback address only. Every program on the machine, also of another user, can
    then do everything.
    """

    require_keys: bool = setting(rules.boolean(), False)
    """
    Start only if there are access keys, and generate none on a loopback address either. The platform then answers to
    any host name, as behind a proxy.
    """

    allowed_hosts: tuple[str, ...] = setting(rules.host_names(), ())
    """
    Host names of the platform besides `localhost` and IP addresses, separated by commas. `*.example.com` is every name
    below that domain, `*` any name. Default: any; on a loopback address without `require_keys` none, which prevents DNS
    rebinding.
    """

    tls_cert: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """
    PEM file with the certificate and intermediate ones, to speak HTTPS only. The server reads it again when it changes.
    Default: plain HTTP.
    """

    tls_key: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """PEM file with the private key of the certificate, without a password. Default: the file of `tls_cert`."""

    data_dir: Path | None = setting(rules.path("a folder"), None)  # noqa: RUF009 -- a field, as all others
    """
    Folder for the records, the objects of the embedded S3 server and the workers' logs. Default: `headrace` in the
    user's data folder (`$XDG_DATA_HOME`, else `~/.local/share`).
    """

    database: str | None = setting(rules.secret("a URL such as postgresql+psycopg://user@host/name", "URL"), None)
    """Database of the records. Default: an SQLite file in `data_dir`."""

    s3_endpoint: str | None = setting(rules.text("an http:// or https:// URL", "URL"), None)
    """
    S3 server to use in place of the embedded one. Its keys are `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` of the
    platform's environment.
    """

    metrics_mib: int = setting(rules.integer(1, 1_000_000), 256)
    """
    Approximate maximum size of the metrics file in `data_dir`, MiB. Metrics stay as long as CloudWatch keeps them;
    beyond this size for a shorter time.
    """

    logs_mib: int = setting(rules.integer(0, 1_000_000), 256)
    """
    Approximate maximum size of the logs of workers that have ended, MiB; 0 keeps none. They stay for seven days; beyond
    this size the oldest go first.
    """

    region: str = setting(rules.text("the name of an AWS region"), "us-east-1")
    """Region in ARNs and in `headrace env`. It must exist on AWS, as SDKs look up images by region."""

    account: str = setting(rules.text("12 digits"), "000000000000")
    """Account number in ARNs and in the name of SDKs' default bucket."""

    strict: bool = setting(rules.boolean(), False)
    """Reject what AWS rejects, even if it is harmless here: local paths as models, requests without a role."""

    cluster: str = setting(rules.text("local, ray, or a Ray cluster: host:port or ray://host:port"), LOCAL)
    """
    Where models run: `local`, `ray`, or the address of a Ray cluster. `local` runs processes on this machine. An
    address is the `host:port` that `ray start --head` prints (this machine must be one of its nodes), or
    `ray://host:port` from outside the cluster. With `ray` the platform starts a one-node cluster on this machine, and
    stops it at shutdown.
    """

    containers: bool = setting(rules.boolean(), False)
    """
    Run the image of each model as a container, with Docker or Podman. By default Headrace's model server stands in for
    the image. Images that `images` describes keep their description. Only with `cluster` local.
    """

    container_runtime: str | None = setting(rules.text("the name of a runtime"), None)
    """Runtime of those containers, such as `runsc` (gVisor), as the engine's `--runtime` takes it."""

    sandbox: str = setting(rules.choice("auto", "require", "off"), "auto")
    """
    Sandbox of models' own code, see docs/sandbox.md. `auto`: every part that this kernel allows. `require`: run no code
    without all of them. Other settings of the sandbox are variables of this process: `HEADRACE_CODE_FOLDERS`,
    `HEADRACE_CODE_MAX_PROCESSES`, `HEADRACE_CODE_MEMORY_BYTES`, `HEADRACE_CODE_TEMPORARY_BYTES`.
    """

    code_network: str = setting(rules.choice("all", "loopback", "none"), "all")
    """Network of models' own code. `loopback`: one of its own, on which only its own processes listen."""

    images: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """TOML file with custom images, a command line per image name. Default: `images.toml` in `data_dir`, if present."""

    jumpstart: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """
    TOML file with models of JumpStart, which adds rows to the shipped catalogue and replaces them, see
    [JumpStart](jumpstart.md). Default: `jumpstart.toml` in `data_dir`, if present.
    """

    public_buckets: str | None = setting(rules.text("aws, a folder or an http:// or https:// URL", "SOURCE"), None)
    """
    Where to read the buckets of AWS's examples (`sagemaker-example-files-*`, `jumpstart-*`, ...) if the platform has no
    such object: `aws` (without credentials), a folder with a folder for each bucket, or the URL of a mirror with the
    paths `/BUCKET/KEY`. Default: nowhere; the error says so.
    """

    workers_per_gpu: int = setting(rules.integer(1, 64), 1)
    """
    Workers that may share a GPU of this machine, with `cluster` local. More than 1 divides the memory of the GPU
    between them, unless their `gpu_memory_utilization` is set.
    """

    hold_timeout_s: float = setting(rules.number(0, "seconds"), 300.0)
    """
    Longest wait of a request for an endpoint or an inference component that starts from zero. After that the platform
    answers 503. With `strict` no request waits, as on AWS.
    """

    serverless_idle_s: float = setting(rules.number(0, "seconds"), 300.0)
    """Idle time after which a serverless variant is scaled to zero. 0: never. With `strict` it is never."""

    max_held: int = setting(rules.integer(1), 1024)
    """Requests that may wait for one endpoint to start from zero; others get 429."""

    max_connections: int = setting(rules.integer(1), 8192)
    """Client connections at the same time, including idle ones; the server answers others with 503 and closes them."""

    receive_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """
    Time for a client to send the head of a request, and again for its body. The body has a second more for each
    256 KiB. After that the server answers 408 and closes the connection.
    """

    send_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time that a client may leave a part of the response unread; then the server drops the connection."""

    stored_responses_bytes: int = setting(rules.size(0), 64 * 1024 * 1024)
    """
    Memory for stored responses of the Responses API; 0 stores none. It is for all endpoints and access keys; the least
    recently used go first.
    """

    stored_responses_age_s: float = setting(rules.number(1, "seconds"), 86400.0)
    """Time for which the server stores a response. When it stops, all are lost."""

    batch_bytes: int = setting(rules.size(0), 10 * 1024**3)
    """Disk space for the files of batches; while they have more, no other one is taken. 0 turns batches off."""

    batch_concurrency: int = setting(rules.integer(1), 64)
    """Requests of one batch that are answered at the same time; a replica runs 64 by default (`max_num_seqs`)."""

    processes: int = setting(rules.integer(1, 64), 1)
    """
    Processes that serve on the port; each uses one core. One of them also leads: it starts workers, scales and collects
    metrics. When it dies, another one leads. Limits such as `max_connections` are for each process.
    """

    supervised: bool = setting(rules.boolean(), True)
    """
    Serve from a separate process, which a supervisor restarts when it dies. It refuses no connection meanwhile, and the
    next platform can take over the port (`--takeover`). Several `processes`, and a takeover, imply this setting.
    """

    keep_workers: bool = setting(rules.boolean(), False)
    """
    Leave workers and the embedded S3 server running when the platform stops. The next start adopts them. Off: an
    orderly shutdown stops them. A platform that is killed leaves them running in either case.
    """

    shutdown_grace_s: float = setting(rules.number(0, "seconds"), 15.0)
    """
    Time for running requests to finish after SIGTERM or Ctrl-C, `shutdown_delay_s` included; then the platform aborts
    them.
    """

    shutdown_delay_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    Time after SIGTERM in which `/ping` and `/health` answer 503 and all else still works. Ctrl-C skips it. Default: 5,
    or 0 on a loopback address; never more than `shutdown_grace_s`.
    """

    log_format: str = setting(rules.choice("auto", "console", "json"), "auto")
    """Format of the log. `auto` is `console` on a terminal, else `json`."""

    log_level: str = setting(rules.choice("debug", "info", "warning", "error"), "info")
    """Lowest level to log."""

    otlp_traces_endpoint: str | None = setting(rules.text("an http://, https:// or grpc:// URL", "URL"), None)
    """
    Receiver for the spans of requests, see [tracing](tracing.md); needs the extra `otel`. The workers send theirs too.
    Default: the receiver in the `OTEL_*` variables, if any.
    """

    check_roles: bool = setting(rules.boolean(), False)
    """
    Refuse calls of SageMaker with a role that `iam:CreateRole` has not made, besides `HeadraceRole`. By default any ARN
    is a role.
    """

    event_webhook: str | None = setting(rules.secret("an http:// or https:// URL", "URL"), None)
    """
    URL that gets a POST with an event for each new state of an endpoint, in the form of EventBridge's
    `SageMaker Endpoint State Change`. Default: none.
    """

    def __repr__(self) -> str:
        return masked_repr(self)

    @property
    def is_local(self) -> bool:
        """True if the platform is for programs of this machine: it generates its first key, and has no public name."""
        return is_loopback(self.host) and not self.require_keys

    @property
    def is_spread(self) -> bool:
        """True if the platform may have members on several machines."""
        return self.advertise is not None


def load_platform_settings(overrides: Mapping[str, object], env: Mapping[str, str]) -> PlatformSettings:
    """
    Merge flags (`overrides`, where None was not given) and environment, and check the result.

    Raises:
        SettingsError: a value is not as expected, or a `HEADRACE_UP_` name is unknown.
    """
    field_rules = rules_of(PlatformSettings)
    values = read_environment(env, field_rules, prefix=PLATFORM_PREFIX, command="headrace up")
    for name, value in overrides.items():
        if value is not None:
            values[name] = read_value(field_rules[name], text_of(value), name=name, source=flag_name(name))
    if values.get("advertise") is not None:
        values.setdefault("host", urlsplit(f"//{values['advertise']}").hostname)
    settings = PlatformSettings(**values)
    _check(settings)
    return settings


def data_folder(settings: PlatformSettings, env: Mapping[str, str]) -> Path:
    if settings.data_dir is not None:
        return settings.data_dir.absolute()
    base = Path(env.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return base.absolute() / "headrace"


def is_cluster(address: str) -> bool:
    """Return whether it is `local`, `ray` or a possible address of a Ray cluster."""
    host, _, port = address.removeprefix(OVER_CLIENT).rpartition(":")
    is_number = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    return address in {LOCAL, HERE} or (bool(host) and "/" not in host and is_number)


def _check(settings: PlatformSettings) -> None:
    check_shutdown(settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s)
    if not (settings.account.isascii() and settings.account.isdigit() and len(settings.account) == 12):
        raise SettingsError(f"account is {settings.account!r}; expected 12 digits.", name="account")
    if _REGION.fullmatch(settings.region) is None:
        message = f"region is {settings.region!r}; expected the name of an AWS region such as us-east-1."
        raise SettingsError(message, name="region")
    if settings.open and not settings.is_local:
        others = "require_keys is on" if settings.require_keys else f"host is {settings.host}"
        message = f"open is on, and {others}; expected open off there. Create a key with `headrace keys create`."
        raise SettingsError(message, name="open")
    if not is_cluster(settings.cluster):
        message = (
            f"cluster is {settings.cluster!r}; expected local, ray (to start a Ray cluster here), or the address of "
            "one such as 10.0.0.1:6379 or ray://10.0.0.1:10001."
        )
        raise SettingsError(message, name="cluster")
    if settings.workers_per_gpu > 1 and settings.cluster != LOCAL:
        message = (
            f"workers_per_gpu is {settings.workers_per_gpu}, and cluster is {settings.cluster!r}; expected "
            "workers_per_gpu 1 there: on a Ray cluster each GPU belongs to one worker."
        )
        raise SettingsError(message, name="workers_per_gpu")
    if settings.containers and settings.cluster != LOCAL:
        message = f"containers is on, and cluster is {settings.cluster!r}; expected cluster local: Ray runs processes."
        raise SettingsError(message, name="containers")
    if settings.advertise is not None:
        _check_spread(settings, settings.advertise)
    if settings.s3_endpoint is None:
        return
    try:
        url = urlsplit(settings.s3_endpoint)
        is_url = url.scheme in {"http", "https"} and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        message = (
            f"s3_endpoint is {settings.s3_endpoint!r}; expected an http:// or https:// URL such as http://minio:9000."
        )
        raise SettingsError(message, name="s3_endpoint")


def _check_spread(settings: PlatformSettings, advertise: str) -> None:
    """Check the settings of a platform on several machines."""
    shared = {
        "database": ("a URL of PostgreSQL", (settings.database or "").startswith("postgresql")),
        "s3_endpoint": ("the URL of an S3 server", settings.s3_endpoint is not None),
    }
    for name, (expected, is_shared) in shared.items():
        if not is_shared:
            message = (
                f"advertise is {advertise!r} and {name} is not {expected}; expected one that all machines of the "
                f"platform can reach. Set {flag_name(name)}."
            )
            raise SettingsError(message, name=name)
    if is_loopback(settings.host) and not is_loopback(urlsplit(f"//{advertise}").hostname or ""):
        message = (
            f"host is {settings.host}, which other machines cannot reach at {advertise!r} (advertise); expected that "
            "address. Leave --host out."
        )
        raise SettingsError(message, name="host")
    if settings.containers:
        message = (
            f"containers is on, and advertise is {advertise!r}; expected containers off there: they take requests "
            "without a token, so that every machine of the network could send some."
        )
        raise SettingsError(message, name="containers")
    if settings.cluster == HERE:
        message = (
            f"cluster is {HERE!r}, which is a Ray cluster of this machine only, and advertise is {advertise!r}; "
            "expected local, or the address of a cluster that all machines of the platform use."
        )
        raise SettingsError(message, name="cluster")
