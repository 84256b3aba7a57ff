"""
Settings of the model server: one field = one flag = one environment variable = one row in the docs.

`load_settings` fills `ServerSettings` from these sources, in order of precedence: command line flags, `HEADRACE_*`,
files in the model's folder, names of other containers (`settings.container_names`), defaults. It reads neither the
process environment nor the disk: callers pass both.
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
from headrace.settings.values import flag_name, masked_repr, read_environment, read_value, text_of

ENV_PREFIX = "HEADRACE_"
FOREIGN_ENV_NAMES = frozenset(
    {"HEADRACE_HOME", "HEADRACE_MODEL_FOLDER", "HEADRACE_PYTHON", "HEADRACE_TEST_CACHE", "HEADRACE_URL"}
)
"""Variables with the prefix that are not settings of the server."""

PLATFORM_PREFIX = "HEADRACE_UP_"
"""Settings of `headrace up` (`settings.platform_settings`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of one model server. None and `auto` are resolved at the start, from the model and the machine."""

    model: str = setting(rules.text("an alias, a Hub id, an s3:// prefix, a folder or a .gguf file"), "")
    """Model to serve: an alias (`smollm2`), a Hub id, an `s3://` prefix, a folder or a `.gguf` file. No default."""

    revision: str | None = setting(rules.text("a branch, tag or commit"), None)
    """Branch, tag or commit of a Hub model. Default: its main branch."""

    served_model_name: str | None = setting(rules.text("a name"), None)
    """Name that clients use in `model`. Default: the value of `model`."""

    host: str = setting(rules.text("a host name or address"), "127.0.0.1")
    """
    Address to listen on. The default is loopback, because a server without a key should not be open to the network;
    in a container it is 0.0.0.0.
    """

    port: int = setting(rules.integer(0, 65535), 8080)
    """Port to listen on; 0 takes a free one. The default is SageMaker's."""

    container: bool = setting(rules.boolean(), False)
    """
    Behave as a container: listen on 0.0.0.0 without a key (the platform around it guards the port), and read names that
    are too general elsewhere (`PORT`, `DTYPE`, …). Default: true if no model is named and `/opt/ml/model` exists, which
    is how SageMaker starts a container.
    """

    allow_anonymous: bool = setting(rules.boolean(), False)
    """Serve without `api_key` on an address other than loopback. Off, so that no server is opened by mistake."""

    api_key: str | None = setting(rules.secret("a key"), None)
    """Require `Authorization: Bearer <key>` on all routes but `/ping` and `/health`. Default: no key is required."""

    cors_allow_origins: tuple[str, ...] = setting(rules.names(), ())
    """Origins whose web pages may call the server, separated by commas; `*` allows all. Default: none."""

    task: str = setting(rules.choice("auto", "generate", "embed", "score", "features"), "auto")
    """Use of the model, by default by its files. `features`: `embed`, and `/invocations` returns a vector per token."""

    pooling: str = setting(rules.choice("auto", "last", "mean", "cls"), "auto")
    """Pooling of embeddings. `auto` is what the model's files say, else `last` for decoders, `mean` for encoders."""

    dialect: str = setting(
        rules.choice(
            "auto", "tgi-1.0", "tgi-3", "lmi-0.25", "lmi-0.26", "lmi-0.27", "lmi-17", "openai", "torchserve", "tei"
        ),
        "auto",
    )
    """
    Dialect of `/invocations`; every other route has a fixed dialect. `auto` is `lmi-17` if settings have LMI's names
    (`option.*`, `OPTION_*`), `torchserve` if the model's folder has a `model-config.yaml`, else `tgi-3`.
    """

    output_formatter: str | None = setting(
        rules.choice("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat"), None
    )
    """LMI's output formatter: the format of the answer on `/invocations`. Default: that of the dialect."""

    tgi_compat: bool = setting(rules.boolean(), False)
    """With an LMI dialect: answer on `/invocations` in TGI's format (`option.tgi_compat`)."""

    rolling_batch: str = setting(rules.choice("auto", "native"), "auto")
    """Engine that batches the requests. `auto` is the best one that can run here, which is `native`."""

    dtype: str = setting(rules.choice("auto", "bf16", "w8a16", "w8a8", "w4a16", "w4a8", "smoothquant"), "auto")
    """
    Bits of weights and activations. `auto` is nearest to the file: bf16, else w8 or w4, with a16 for models under 1 B
    parameters and a8 for larger ones; a smaller one if memory is short or the CPU has no bf16. The log says why.
    a16 keeps the quality of the weights; a8 computes prompts and large batches up to twice as fast.
    `smoothquant` is w8a8 with the weights of `headrace quantize`, computed at the first start and cached.
    """

    smoothquant_alpha: float | None = setting(rules.share_or_auto(), None)
    """
    With `dtype` smoothquant: migration strength from activations to weights, 0 to 1. Default: searched for each layer
    group of the model.
    """

    kv_dtype: str = setting(rules.choice("auto", "bf16", "int8"), "auto")
    """Format of the KV cache. `auto` is int8 with w8a8 and w4a8, else bf16."""

    max_model_len: int | None = setting(rules.integer(2), None)
    """Longest prompt + answer, tokens. Default: the model's trained context, or less if memory is short."""

    rope: Mapping[str, object] | None = setting(rules.json_object('{"rope_type": "yarn", "factor": 4.0}'), None)
    """Rotary embedding: `rope_parameters` merged into the checkpoint's, for longer contexts. Default: as stored."""

    max_prompt_tokens: int | None = setting(rules.integer(1), None)
    """Longest prompt, tokens. Default: `max_model_len` - 1."""

    max_num_seqs: int = setting(rules.integer(1), 64)
    """Sequences that run at the same time."""

    max_num_batched_tokens: int = setting(rules.integer(1), 512)
    """Token budget of one step, prompt chunks and running sequences together."""

    kv_cache_bytes: int | None = setting(rules.size(), None)
    """Size of the KV cache. Default: the rest of the memory that this process may use."""

    max_kv_cache_tokens: int | None = setting(rules.integer(1), None)
    """
    Most tokens in the KV cache, over all sequences, even if there is more memory; rounded down to whole blocks of 32.
    Default: limited by memory only.
    """

    max_memory_bytes: int | None = setting(rules.size(), None)
    """
    Memory that this server may use for weights, workspace, KV cache and the rest of the process. A model that does not
    fit is refused before it is loaded. Default: the free memory.
    """

    threads: int | None = setting(rules.integer(1), None)
    """Threads of a step. Default: the physical cores that this process may use."""

    isa: str | None = setting(rules.choice("avx512", "avx2", "portable"), None)
    """Kernels to run. Default: the fastest that this CPU supports."""

    enable_prefix_caching: bool = setting(rules.boolean(), True)
    """Keep the KV blocks of finished prompts, and reuse them for prompts with the same prefix."""

    max_draft_tokens: int = setting(rules.integer(0), 8)
    """
    Most draft tokens per sequence and step, from prompt lookup (n-gram speculation); 0 turns it off. Answers do not
    change; fewer tokens are drafted, or none, if that would not be faster.
    """

    max_itl_ms: float = setting(rules.number(0, "milliseconds"), 75.0)
    """
    Longest inter-token latency of running streams that a prompt chunk may cause, milliseconds; 0 is no limit. The
    default reads as a steady flow.
    """

    max_concurrent_requests: int = setting(rules.integer(1), 256)
    """
    Simultaneous requests, running and waiting; further ones are answered 429 with `Retry-After`. The default is more
    than can run at once, so that the engine never idles, and few enough that the last one does not wait minutes.
    """

    enable_lora: bool = setting(rules.boolean(), False)
    """
    Reserve slots for LoRA adapters, which requests choose by name, and load those in the folder `adapters` of the
    model. Default: true if `adapter` is set.
    """

    adapter: tuple[str, ...] = setting(rules.assignments(), ())
    """Adapter to load at the start: `name=folder`, a folder that PEFT wrote. May be repeated."""

    max_loras: int = setting(rules.integer(1, 1024), 4)
    """
    Adapters that may be loaded at the same time; with more in `adapter`, as many as those. Each takes memory for
    `max_lora_rank` once it is loaded.
    """

    max_lora_rank: int = setting(rules.integer(1, 512), 16)
    """Largest rank of an adapter."""

    allow_runtime_lora_updating: bool = setting(rules.boolean(), False)
    """Load and unload adapters over HTTP. Off by default: a client that can load adapters can change answers."""

    adapter_folders: tuple[str, ...] = setting(rules.names(), ())
    """
    Folders below which adapters may be loaded over HTTP, separated by commas. Default: only the folder `adapters` of
    the model.
    """

    max_best_of: int = setting(rules.integer(1), 8)
    """Largest `n` and `best_of` of one request; each candidate is a sequence of its own."""

    max_stop_sequences: int = setting(rules.integer(0), 16)
    """Largest number of stop strings of one request."""

    max_top_n_tokens: int = setting(rules.integer(0), 20)
    """Largest number of alternatives per token (`top_n_tokens`, `top_logprobs`). 20 is OpenAI's limit."""

    default_max_new_tokens: int = setting(rules.integer(1), 50)
    """Length of an answer if the body is only a prompt, as in the `torchserve` dialect."""

    eula_check: str = setting(rules.choice("ignore", "gated", "required"), "ignore")
    """
    Effect of `accept_eula` in the custom attributes of `/invocations`. `gated`: a request that declines the licence of
    a gated model (`meta-llama/...`) is refused. `required`: a request that does not accept it is refused, for any
    model, as in SageMaker JumpStart's Llama containers.
    """

    max_body_bytes: int = setting(rules.size(), 25 * 1024 * 1024)
    """Largest request body. The default is SageMaker's limit."""

    max_buffered_bytes: int = setting(rules.size(), 256 * 1024 * 1024)
    """
    Total size of all request bodies in memory; a body beyond it is answered 429 with `Retry-After`. The first 64 KiB of
    each body do not count, so that large bodies never keep out small ones.
    """

    max_connections: int = setting(rules.integer(1), 1024)
    """Simultaneous client connections, including idle ones; further ones are answered 503 and closed."""

    receive_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """
    Time for a client to send the head of a request, and again for its body (plus a second for each 256 KiB of it); then
    it is answered 408 and the connection is closed.
    """

    send_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time that a client may leave a part of the response unread; then it is dropped, and its sequences are aborted."""

    chat_template: str | None = setting(rules.text("a template or a file with one"), None)
    """A Jinja chat template, or a file with one, in place of the model's own."""

    shutdown_grace_s: float = setting(rules.number(0, "seconds"), 25.0)
    """
    After SIGTERM: time for running requests to finish, seconds, `shutdown_delay_s` included; then they are aborted. The
    default leaves a margin within the 30 s that SageMaker and Kubernetes allow between SIGTERM and SIGKILL.
    """

    shutdown_delay_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    After SIGTERM: time in which `/ping` and `/health` answer 503 and everything else is still served, seconds, so that
    load balancers route elsewhere before the port closes. SIGINT (Ctrl-C) skips it. Default: 5, or 0 on a loopback
    address; never more than `shutdown_grace_s`.
    """

    cache_dir: Path | None = setting(rules.folder(), None)  # noqa: RUF009 -- a field, as all others
    """Folder for packed weights and downloaded models. Default: the user's cache folder."""

    metrics: bool = setting(rules.boolean(), True)
    """Serve Prometheus metrics on `/metrics`."""

    web: bool = setting(rules.boolean(), True)
    """Serve the chat page to browsers on `/`."""

    log_format: str = setting(rules.choice("auto", "console", "json"), "auto")
    """Format of the log. `auto` is `console` on a terminal, else `json`."""

    log_level: str = setting(rules.choice("debug", "info", "warning", "error"), "info")
    """Lowest level that is logged."""

    log_prompts: bool = setting(rules.boolean(), False)
    """Log prompts and answers too. Off by default, because they belong to the users."""

    def __repr__(self) -> str:
        return masked_repr(self)


def setting_names() -> tuple[str, ...]:
    """Return the names of all fields, in order."""
    return tuple(spec.name for spec in fields(ServerSettings))


def setting_rule(name: str) -> Rule:
    """Return the rule that parses the setting `name`."""
    rule: Rule = ServerSettings.__dataclass_fields__[name].metadata["rule"]
    return rule


def env_name(name: str) -> str:
    """Return the environment variable of the setting `name`."""
    return ENV_PREFIX + name.upper()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on `host`; names other than localhost count as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


DEFAULT_SHUTDOWN_DELAY_S = 5.0
"""Kubernetes removes a terminating pod from its services within a second or two; load balancers poll less often."""


def resolve_shutdown_delay(delay_s: float | None, *, grace_s: float, host: str) -> float:
    """Return the seconds for which a server that was told to stop goes on serving."""
    if delay_s is None:
        delay_s = 0.0 if is_loopback(host) else DEFAULT_SHUTDOWN_DELAY_S
    return min(delay_s, grace_s)


def check_shutdown(delay_s: float | None, *, grace_s: float) -> None:
    """
    Check that the delay fits into the grace period.

    Raises:
        SettingsError: the delay is longer.
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
    Merge the sources and check the result.

    Args:
        overrides: field name → value, from the command line; None: not given.
        env: the environment.
        properties: the content of `serving.properties`, if there is one.
        model_config: the content of `model-config.yaml`, if there is one (`settings.model_folder.parse_model_config`).
        container: whether the process seems to run as a container; the setting `container` takes precedence.

    Returns:
        The settings, and notices about names that were applied, have no effect, or are unknown.

    Raises:
        SettingsError: a value is not as expected, a `HEADRACE_` name is unknown, or values contradict each other.
    """
    values = _own_env(env)
    values |= {
        name: _read(name, flag_name(name), text_of(value))
        for name, value in overrides.items()
        if value not in (None, ())  # an option that may be repeated and was not given
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
    values.setdefault("enable_lora", bool(values.get("adapter")))
    settings = ServerSettings(**values)
    if settings.smoothquant_alpha is not None and settings.dtype != "smoothquant":
        name = foreign.values.get("smoothquant_alpha", ("smoothquant_alpha", ""))[0]
        why = "it is for dtype smoothquant (option.quantize=smoothquant)"
        notices.append(Notice(name, "ignored", f"{name} has no effect: {why}."))
    from headrace.settings.server_checks import check_together  # it reads the settings of this module

    check_together(settings)
    return settings, notices


def _own_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `HEADRACE_*`."""
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
    """Parse `raw` by the rule of the field `name`; an error names the source of the value."""
    is_own = source in (flag_name(name), env_name(name))
    return read_value(setting_rule(name), raw, name=name, source=source, is_own=is_own)
