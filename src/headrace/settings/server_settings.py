"""
Every knob of the model server: one field = one flag = one environment name = one row in the docs.

`ServerSettings` says what there is; `load_settings` fills it. Sources, strongest first: command line flags,
`HEADRACE_*`, files in the model's folder, the names that containers already use (`settings.container_names`), defaults.
Nothing here reads the process environment or the disk: both are given.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headrace.core.errors import SettingsError
from headrace.settings import rules
from headrace.settings.container_names import Notice, read_container_names
from headrace.settings.rules import Rule, setting
from headrace.settings.values import flag_name, read_environment, read_value, text_of

ENV_PREFIX = "HEADRACE_"
FOREIGN_ENV_NAMES = frozenset(
    {"HEADRACE_HOME", "HEADRACE_MODEL_FOLDER", "HEADRACE_PYTHON", "HEADRACE_TEST_CACHE", "HEADRACE_URL"}
)
"""Names with our prefix that are not settings of the server."""

PLATFORM_PREFIX = "HEADRACE_UP_"
"""Settings of `headrace up` (`settings.platform_settings`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of one model server. `None` and `auto` mean: found out at the start, from the model and the machine."""

    model: str = setting(rules.text("an alias, a Hub id, a folder or a .gguf file"), "")
    """What to serve: an alias (`smollm2`), a Hub id, a local folder or a `.gguf` file. There is no default."""

    revision: str | None = setting(rules.text("a branch, tag or commit"), None)
    """Branch, tag or commit of a Hub model. Default: its main branch."""

    served_model_name: str | None = setting(rules.text("a name"), None)
    """The name that clients use in `model`. Default: the name the model was asked for by."""

    host: str = setting(rules.text("a host name or address"), "127.0.0.1")
    """
    Address to listen on. The default is loopback, because a server without a key should not be open to the network;
    in a container it is 0.0.0.0.
    """

    port: int = setting(rules.integer(0, 65535), 8080)
    """Port to listen on; 0 takes a free one. The default is SageMaker's."""

    container: bool = setting(rules.boolean(), False)
    """
    Behave as a container: listen on 0.0.0.0 without asking for a key (the platform around it guards the port), and
    read names that are too general elsewhere (`PORT`, `DTYPE`, …). Default: true when no model was named and
    `/opt/ml/model` exists, which is how SageMaker starts a container.
    """

    allow_anonymous: bool = setting(rules.boolean(), False)
    """Serve on an address other than loopback without `api_key`. Off, so that nobody opens a server by mistake."""

    api_key: str | None = setting(rules.secret("a key"), None)
    """Ask every request but `/ping` and `/health` for `Authorization: Bearer <key>`. Default: no key is wanted."""

    cors_allow_origins: tuple[str, ...] = setting(rules.names(), ())
    """Origins whose web pages may call the server, separated by commas; `*` for all. Default: none."""

    dialect: str = setting(
        rules.choice("auto", "tgi-1.0", "tgi-3", "lmi-0.25", "lmi-0.26", "lmi-0.27", "lmi-17", "openai", "torchserve"),
        "auto",
    )
    """
    How `/invocations` speaks; every other route has one dialect of its own. `auto` is `lmi-17` when the settings came
    in LMI's form (`option.*`, `OPTION_*`), `torchserve` when the model's folder has a `model-config.yaml`, else
    `tgi-3`.
    """

    output_formatter: str | None = setting(
        rules.choice("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat"), None
    )
    """LMI's output formatter: the form of the answer on `/invocations`. Default: the dialect's own."""

    tgi_compat: bool = setting(rules.boolean(), False)
    """With an LMI dialect: answer on `/invocations` in TGI's form (`option.tgi_compat`)."""

    rolling_batch: str = setting(rules.choice("auto", "native"), "auto")
    """Which engine batches the requests. `auto` takes the best one that can run here, which is `native`."""

    dtype: str = setting(rules.choice("auto", "bf16", "w8a8", "w4a8", "smoothquant"), "auto")
    """
    Weight format. `auto` takes the one nearest to the file, but w8a8 for 4-bit files of models under 1 B parameters,
    and less where memory is short or the CPU has no bf16; the log says why.
    `smoothquant` is w8a8 with the weights of `headrace quantize`, made at the first start and kept in the cache.
    """

    smoothquant_alpha: float | None = setting(rules.share_or_auto(), None)
    """
    With `dtype` smoothquant: how much moves from activations to weights, 0 to 1. Default: searched for each place in
    the model.
    """

    kv_dtype: str = setting(rules.choice("auto", "bf16", "int8"), "auto")
    """Format of the KV cache. `auto` is bf16 with bf16 and with the default w8a8 of models under 1 B, else int8."""

    max_model_len: int | None = setting(rules.integer(2), None)
    """Longest prompt + answer, tokens. Default: what the model was trained for, or less if memory does not allow it."""

    max_prompt_tokens: int | None = setting(rules.integer(1), None)
    """Longest prompt, tokens. Default: `max_model_len` - 1."""

    max_num_seqs: int = setting(rules.integer(1), 64)
    """Sequences that run at the same time."""

    max_num_batched_tokens: int = setting(rules.integer(1), 512)
    """Token budget of one step, prompt chunks and running sequences together."""

    kv_cache_bytes: int | None = setting(rules.size(), None)
    """Size of the KV cache. Default: what is left of the memory this process may use."""

    max_kv_cache_tokens: int | None = setting(rules.integer(1), None)
    """
    Most tokens that the KV cache holds, of all sequences together, whatever memory there is; rounded down to whole
    blocks of 32. Default: no limit but memory.
    """

    max_memory_bytes: int | None = setting(rules.size(), None)
    """
    Memory that this server may plan with: weights, workspace, KV cache and the rest of the process. A model that does
    not fit is refused before it is loaded. Default: what is free.
    """

    threads: int | None = setting(rules.integer(1), None)
    """Threads of a step. Default: the physical cores this process may use."""

    isa: str | None = setting(rules.choice("avx512", "avx2", "portable"), None)
    """Kernels to run. Default: the fastest that this CPU has."""

    enable_prefix_caching: bool = setting(rules.boolean(), True)
    """Keep the KV blocks of finished prompts, and use them again for prompts that begin alike."""

    max_draft_tokens: int = setting(rules.integer(0), 8)
    """
    Most tokens of a sequence that are guessed from its own repeats and verified in one step (prompt lookup, n-gram
    speculation); 0 turns it off. Answers do not change; fewer are guessed, or none, where that would not be faster.
    """

    max_itl_ms: float = setting(rules.number(0, "milliseconds"), 75.0)
    """
    How long a prompt chunk may hold up running streams: inter-token latency, milliseconds; 0 is no limit. The default
    reads as a steady flow.
    """

    max_concurrent_requests: int = setting(rules.integer(1), 256)
    """
    Requests in the server at the same time, running and waiting; one more is answered 429 with `Retry-After`.
    More than can run at once, so that the engine never idles, and few enough that the last one does not wait minutes.
    """

    max_best_of: int = setting(rules.integer(1), 8)
    """Largest `n` and `best_of` of one request: each is a sequence of its own."""

    max_stop_sequences: int = setting(rules.integer(0), 16)
    """Largest number of stop strings of one request."""

    max_top_n_tokens: int = setting(rules.integer(0), 20)
    """Largest number of alternatives a token (`top_n_tokens`, `top_logprobs`). 20 is OpenAI's limit."""

    default_max_new_tokens: int = setting(rules.integer(1), 50)
    """Length of an answer where the body is a prompt and nothing else, which is so in the `torchserve` dialect."""

    eula_check: str = setting(rules.choice("ignore", "gated", "required"), "ignore")
    """
    What `accept_eula` in the custom attributes of `/invocations` decides. `gated`: a request that declines the licence
    of a gated model (`meta-llama/...`) is refused. `required`: so is one that does not accept it, whatever the model,
    as by SageMaker JumpStart's containers of Llama.
    """

    max_body_bytes: int = setting(rules.size(), 25 * 1024 * 1024)
    """Largest request body. The default is SageMaker's own limit."""

    max_buffered_bytes: int = setting(rules.size(), 256 * 1024 * 1024)
    """
    Size of all request bodies that the server holds at a time; one more is answered 429 with `Retry-After`. The first
    64 KiB of each body do not count, so that large bodies never keep out small ones.
    """

    max_connections: int = setting(rules.integer(1), 1024)
    """Connections at a time, idle ones included; one more is answered 503 and closed."""

    receive_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """
    Time for a client to send the head of a request, and again for its body (and a second more for each 256 KiB of it);
    then it is answered 408 and the connection is closed.
    """

    send_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time that a client may leave a part of its answer unread; then it is dropped, and its sequences are aborted."""

    chat_template: str | None = setting(rules.text("a template or a file with one"), None)
    """A Jinja chat template, or a file with one, in place of the model's own."""

    shutdown_grace_s: float = setting(rules.number(0, "seconds"), 25.0)
    """
    After SIGTERM: time for running requests to finish, seconds, `shutdown_delay_s` included; then they are aborted. The
    default leaves a reserve of the 30 s that SageMaker and Kubernetes have between SIGTERM and SIGKILL.
    """

    shutdown_delay_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    After SIGTERM: time in which `/ping` and `/health` answer 503 and everything else is still served, seconds, so that
    load balancers look elsewhere before the port closes. SIGINT (Ctrl-C) skips it. Default: 5, or 0 on a loopback
    address; never more than `shutdown_grace_s`.
    """

    cache_dir: Path | None = setting(rules.folder(), None)  # noqa: RUF009 -- a field, as all others
    """Folder for packed weights and downloaded models. Default: the user's cache folder."""

    metrics: bool = setting(rules.boolean(), True)
    """Serve Prometheus metrics on `/metrics`."""

    web: bool = setting(rules.boolean(), True)
    """Serve the chat page to browsers on `/`."""

    log_format: str = setting(rules.choice("auto", "console", "json"), "auto")
    """Form of the log. `auto` is `console` on a terminal, else `json`."""

    log_level: str = setting(rules.choice("debug", "info", "warning", "error"), "info")
    """The least important events that are logged."""

    log_prompts: bool = setting(rules.boolean(), False)
    """Log prompts and answers too. Off: they are the users' own."""

    def __repr__(self) -> str:
        shown = []
        for spec in fields(self):
            value = getattr(self, spec.name)
            is_masked = spec.metadata["rule"].is_secret and value is not None
            shown.append(f"{spec.name}={'***' if is_masked else repr(value)}")
        return f"ServerSettings({', '.join(shown)})"


def setting_names() -> tuple[str, ...]:
    """All fields, in order."""
    return tuple(spec.name for spec in fields(ServerSettings))


def setting_rule(name: str) -> Rule:
    """How the setting `name` is read."""
    rule: Rule = ServerSettings.__dataclass_fields__[name].metadata["rule"]
    return rule


def env_name(name: str) -> str:
    """The environment variable of the setting `name`."""
    return ENV_PREFIX + name.upper()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`; a name other than localhost is taken to be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


DEFAULT_SHUTDOWN_DELAY_S = 5.0
"""Kubernetes takes a pod that ends out of its services within a second or two; load balancers ask less often."""


def resolve_shutdown_delay(delay_s: float | None, *, grace_s: float, host: str) -> float:
    """Return the seconds for which a server that was told to stop goes on serving."""
    if delay_s is None:
        delay_s = 0.0 if is_loopback(host) else DEFAULT_SHUTDOWN_DELAY_S
    return min(delay_s, grace_s)


def check_shutdown(delay_s: float | None, *, grace_s: float) -> None:
    """
    Refuse a delay that the grace period has no room for.

    Raises:
        SettingsError: it is longer.
    """
    if delay_s is not None and delay_s > grace_s:
        raise SettingsError(
            f"shutdown_delay_s is {delay_s:g} and shutdown_grace_s is {grace_s:g}; expected at most as much, as the "
            "delay is part of the grace period. Lower the first or raise the second.",
            name="shutdown_delay_s",
        )


def load_settings(
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    properties: Mapping[str, str] | None = None,
    model_config: Mapping[str, str] | None = None,
    *,
    container: bool = False,
) -> tuple[ServerSettings, list[Notice]]:
    """
    Put the sources together and check the result.

    Args:
        overrides: field name → value, from the command line; None means not given.
        env: the environment.
        properties: the content of `serving.properties`, if there is one.
        model_config: the content of `model-config.yaml`, if there is one (`settings.model_folder.parse_model_config`).
        container: whether the process looks like it was started as a container (`container_is_evident`); the setting
            `container` overrules it.

    Returns:
        The settings, and what a person should be told: names that were obeyed, have no effect here, or are unknown.

    Raises:
        SettingsError: a value is not what is wanted, an own name is unknown, or values contradict each other.
    """
    values = _own_env(env)
    values |= {
        name: _read(name, flag_name(name), text_of(value)) for name, value in overrides.items() if value is not None
    }
    is_container = bool(values.get("container", container))
    foreign = read_container_names(env, properties or {}, model_config or {}, container=is_container)
    for name, (source, raw) in foreign.values.items():
        if name not in values:
            values[name] = _read(name, source, raw)
    notices = list(foreign.notices)
    if is_container:
        values["container"] = True
        values.setdefault("host", "0.0.0.0")  # noqa: S104 -- a container's port is published by its platform
    if values.get("dialect", "auto") == "auto":
        values["dialect"] = "lmi-17" if foreign.is_lmi else "torchserve" if model_config else "tgi-3"
    settings = ServerSettings(**values)
    if settings.smoothquant_alpha is not None and settings.dtype != "smoothquant":
        name = foreign.values.get("smoothquant_alpha", ("smoothquant_alpha", ""))[0]
        why = "it is for dtype smoothquant (option.quantize=smoothquant)"
        notices.append(Notice(name, "ignored", f"{name} has no effect: {why}."))
    _check_together(settings)
    return settings, notices


def _own_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The values of `HEADRACE_*`."""
    rules_by_name = {name: setting_rule(name) for name in setting_names()}
    return read_environment(
        env,
        rules_by_name,
        prefix=ENV_PREFIX,
        command="headrace serve",
        foreign=FOREIGN_ENV_NAMES,
        foreign_prefix=PLATFORM_PREFIX,
    )


def _read(name: str, source: str, raw: str) -> Any:
    """Read `raw` by the rule of the field `name`; the sentence of the error names where the value came from."""
    is_own = source in (flag_name(name), env_name(name))
    return read_value(setting_rule(name), raw, name=name, source=source, is_own=is_own)


def _check_together(settings: ServerSettings) -> None:
    """Refuse values that cannot be true at the same time."""
    if not settings.model:
        raise SettingsError(
            "No model was named. Name one: `headrace serve smollm2`, or set HEADRACE_MODEL or HF_MODEL_ID.",
            name="model",
        )
    longest, prompt = settings.max_model_len, settings.max_prompt_tokens
    if longest is not None and prompt is not None and prompt >= longest:
        raise SettingsError(
            f"max_prompt_tokens is {prompt} and max_model_len is {longest}; the prompt must leave room for at least "
            "one token of the answer. Lower the first or raise the second.",
            name="max_prompt_tokens",
        )
    kv_tokens = settings.max_kv_cache_tokens
    if longest is not None and kv_tokens is not None and longest > kv_tokens:
        raise SettingsError(
            f"max_model_len is {longest} (MAX_TOTAL_TOKENS) and max_kv_cache_tokens is {kv_tokens} "
            "(MAX_BATCH_TOTAL_TOKENS); expected room for at least one whole context in the KV cache. Lower the first "
            "or raise the second.",
            name="max_kv_cache_tokens",
        )
    check_shutdown(settings.shutdown_delay_s, grace_s=settings.shutdown_grace_s)
    is_open = not is_loopback(settings.host) and settings.api_key is None
    if is_open and not settings.allow_anonymous and not settings.container:
        raise SettingsError(
            f"host is {settings.host}, which others on the network can reach, and there is no api_key. "
            "Set --api-key (or HEADRACE_API_KEY), or say --allow-anonymous if everybody may use the server.",
            name="host",
        )
