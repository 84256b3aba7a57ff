"""
Every knob of the platform (`headrace up`): one field = one flag = one environment name = one row in the docs.

As `settings.server_settings` has it for the model server; the variables begin with `HEADRACE_UP_`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from headrace.core.errors import SettingsError
from headrace.settings import rules
from headrace.settings.rules import setting
from headrace.settings.server_settings import PLATFORM_PREFIX, check_shutdown, is_loopback
from headrace.settings.values import flag_name, read_environment, read_value, rules_of, text_of

DEFAULT_PORT = 7450
LOCAL = "local"
"""Of `cluster`: no cluster."""
HERE = "ray"
"""Of `cluster`: a Ray cluster of our own, on this machine."""
OVER_CLIENT = "ray://"
"""Of `cluster`: how the address of a Ray cluster begins that is reached through Ray's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSettings:
    """Settings of one platform. `None` means: found out at the start."""

    host: str = setting(rules.text("a host name or address"), "127.0.0.1")
    """
    Address to listen on. On a loopback address any credentials are accepted; on any other one the platform does not
    start before there are access keys (`headrace keys create`), and every request must be signed with one.
    """

    port: int = setting(rules.integer(0, 65535), DEFAULT_PORT)
    """Port to listen on, for all services; 0 takes a free one."""

    data_dir: Path | None = setting(rules.folder(), None)  # noqa: RUF009 -- a field, as all others
    """
    Folder for the records, the objects of the embedded S3 server and the workers' logs. Default: `headrace` in the
    user's data folder (`$XDG_DATA_HOME`, else `~/.local/share`).
    """

    database: str | None = setting(rules.secret("a database URL such as postgresql+psycopg://user@host/name"), None)
    """Where the records are kept. Default: an SQLite file in `data_dir`."""

    s3_endpoint: str | None = setting(rules.text("an http:// or https:// URL"), None)
    """
    An S3 server to use in place of the embedded one; its keys are `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` of
    the platform's environment.
    """

    region: str = setting(rules.text("the name of an AWS region"), "us-east-1")
    """Region in ARNs, and the one that `headrace env` sets. A real one, as SDKs look images up by it."""

    account: str = setting(rules.text("12 digits"), "000000000000")
    """Account number in ARNs and in the name of SDKs' default bucket."""

    strict: bool = setting(rules.boolean(), False)
    """Refuse what AWS refuses, also where it is harmless here: local paths as models, requests without a role."""

    require_keys: bool = setting(rules.boolean(), False)
    """Ask for signed requests on a loopback address too."""

    allowed_hosts: tuple[str, ...] = setting(rules.names(), ())
    """
    Names besides `localhost` and addresses by which clients reach the platform on a loopback address without keys,
    separated by commas. Others are refused, so that a web page cannot lead a browser here by a name of its own.
    """

    images: Path | None = setting(rules.file(), None)  # noqa: RUF009 -- a field, as all others
    """TOML file with own images, a command line for each image name. Default: `images.toml` in `data_dir`, if there."""

    cluster: str = setting(rules.text("local, ray, or a Ray cluster: host:port or ray://host:port"), LOCAL)
    """
    Where models run: `local`, as processes on this machine, or on the nodes of a Ray cluster, named by the `host:port`
    that `ray start --head` shows (this machine must be one of its nodes) or by `ray://host:port` from outside it. With
    `ray` the platform starts a cluster of one node on this machine, and ends it when it stops.
    """

    keep_workers: bool = setting(rules.boolean(), False)
    """
    Leave workers, and the embedded S3 server, running when the platform stops; the next start adopts them. Off: an
    ordinary stop ends them. A platform that is killed never ends them.
    """

    shutdown_grace_s: float = setting(rules.number(0, "seconds"), 15.0)
    """
    After SIGTERM or Ctrl-C: time for running requests to finish, seconds, `shutdown_delay_s` included; then they are
    aborted.
    """

    shutdown_delay_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    After SIGTERM: time in which `/health` and `/ping` answer 503 and everything else is still served, seconds. Ctrl-C
    skips it. Default: 5, or 0 on a loopback address; never more than `shutdown_grace_s`.
    """

    hold_timeout_s: float = setting(rules.number(0, "seconds"), 300.0)
    """
    How long a request waits for an endpoint or an inference component that wakes from zero, seconds; then it is
    answered 503. With `strict` none waits, as on AWS.
    """

    max_held: int = setting(rules.integer(1), 1024)
    """How many requests may wait so for one endpoint; one more is answered 429."""

    max_connections: int = setting(rules.integer(1), 8192)
    """Connections of clients at a time, idle ones included; one more is answered 503 and closed."""

    receive_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """
    Time for a client to send the head of a request, and again for its body (and a second more for each 256 KiB of it);
    then it is answered 408 and the connection is closed.
    """

    send_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time that a client may leave a part of its answer unread; then it is dropped."""

    metrics_mib: int = setting(rules.integer(1, 1_000_000), 256)
    """
    Size that the file of metrics in `data_dir` may reach, about, in MiB. Metrics are kept as long as CloudWatch does; a
    file that grows larger keeps them for a shorter time.
    """

    logs_mib: int = setting(rules.integer(0, 1_000_000), 256)
    """
    Size that the logs of workers that were scaled in, replaced or deleted may take in `data_dir`, about, in MiB. They
    are kept for seven days, the newest ones of a larger amount; 0 keeps none.
    """

    log_format: str = setting(rules.choice("auto", "console", "json"), "auto")
    """Form of the log. `auto` is `console` on a terminal, else `json`."""

    log_level: str = setting(rules.choice("debug", "info", "warning", "error"), "info")
    """The least important events that are logged."""

    def __repr__(self) -> str:
        shown = []
        for spec in fields(self):
            value = getattr(self, spec.name)
            is_masked = spec.metadata["rule"].is_secret and value is not None
            shown.append(f"{spec.name}={'***' if is_masked else repr(value)}")
        return f"PlatformSettings({', '.join(shown)})"

    @property
    def is_open(self) -> bool:
        """Whether any credentials are accepted."""
        return is_loopback(self.host) and not self.require_keys


def load_platform_settings(overrides: Mapping[str, object], env: Mapping[str, str]) -> PlatformSettings:
    """
    Put flags and environment together and check the result.

    Args:
        overrides: field name → value, from the command line; None means not given.
        env: the environment.

    Raises:
        SettingsError: a value is not what is wanted, or a `HEADRACE_UP_` name is unknown.
    """
    field_rules = rules_of(PlatformSettings)
    values = read_environment(env, field_rules, prefix=PLATFORM_PREFIX, command="headrace up")
    for name, value in overrides.items():
        if value is not None:
            values[name] = read_value(field_rules[name], text_of(value), name=name, source=flag_name(name))
    settings = PlatformSettings(**values)
    _check(settings)
    return settings


def data_folder(settings: PlatformSettings, env: Mapping[str, str]) -> Path:
    """Where this platform keeps what it must not lose."""
    if settings.data_dir is not None:
        return settings.data_dir.absolute()
    base = Path(env.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return base.absolute() / "headrace"


def is_cluster(address: str) -> bool:
    """Whether it is `local` or `ray`, or can be the address of a Ray cluster."""
    host, _, port = address.removeprefix(OVER_CLIENT).rpartition(":")
    is_number = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    return address in {LOCAL, HERE} or (bool(host) and "/" not in host and is_number)


def _check(settings: PlatformSettings) -> None:
    check_shutdown(settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s)
    if not (settings.account.isascii() and settings.account.isdigit() and len(settings.account) == 12):
        raise SettingsError(f"account is {settings.account!r}; wanted: 12 digits.", name="account")
    if not is_cluster(settings.cluster):
        message = (
            f"cluster is {settings.cluster!r}; wanted: local, ray (to start a Ray cluster here), or the address of "
            "one such as 10.0.0.1:6379 or ray://10.0.0.1:10001."
        )
        raise SettingsError(message, name="cluster")
    if settings.s3_endpoint is None:
        return
    try:
        url = urlsplit(settings.s3_endpoint)
        is_url = url.scheme in {"http", "https"} and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        message = (
            f"s3_endpoint is {settings.s3_endpoint!r}; wanted: an http:// or https:// URL such as http://minio:9000."
        )
        raise SettingsError(message, name="s3_endpoint")
