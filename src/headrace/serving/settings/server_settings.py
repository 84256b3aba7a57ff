"""
Settings of the model server: one field = one flag = one environment variable = one row in the docs.

`settings.loading` fills them from their sources. The first sentence of a field's text is its line in `--help`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from headrace.core.engine_names import BACKENDS, ENGINES, engine_name
from headrace.serving.settings import rules
from headrace.serving.settings.code_settings import CodeSettings
from headrace.serving.settings.rules import FileScope, Rule, model_setting, setting
from headrace.serving.settings.values import masked_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(CodeSettings):
    """Settings of one model server. None and `auto` are resolved at the start, from the model and the machine."""

    model: str = model_setting(
        rules.text("an alias, a Hub id, an s3:// prefix, a folder or a .gguf file"), "", FileScope.INSIDE
    )
    """Model to serve: an alias (`smollm2`), a Hub id, an `s3://` prefix, a folder or a `.gguf` file. No default."""

    revision: str | None = setting(rules.text("a branch, tag or commit"), None)
    """Branch, tag or commit of a Hub model. Default: its main branch."""

    served_model_name: str | None = model_setting(rules.text("a name"), None)
    """Name that clients send as `model`. Default: the model as given."""

    task: str = model_setting(rules.choice("auto", "generate", "embed", "score", "features"), "auto")
    """
    Use of the model: to generate text, to embed or to score. `auto` reads it from the model's files. `features` is
    `embed`, and `/invocations` returns a vector per token.
    """

    pooling: str = model_setting(rules.choice("auto", "last", "mean", "cls"), "auto")
    """Pooling of embeddings. `auto` follows the model's files, else it is `last` for decoders, `mean` for encoders."""

    dialect: str = model_setting(
        rules.choice(
            *("auto", "tgi-1.0", "tgi-3", "lmi-0.25", "lmi-0.26", "lmi-0.27", "lmi-17"),
            *("openai", "torchserve", "tei", "hf-toolkit"),
        ),
        "auto",
    )
    """
    Request and response format of `/invocations`; every other route has a fixed one. `auto` is `lmi-17` if settings
    have LMI's names (`option.*`, `OPTION_*`), `torchserve` if the model's folder has a `model-config.yaml`,
    `hf-toolkit` if `HF_TASK` names a task without generated text, else `tgi-3`.
    """

    output_formatter: str | None = model_setting(
        rules.choice("json", "jsonlines", "sse", "json_chat", "jsonlines_chat", "sse_chat"), None
    )
    """LMI's output formatter: the response format of `/invocations`. Default: that of the dialect."""

    tgi_compat: bool = model_setting(rules.boolean(), False)
    """With an LMI dialect: answer `/invocations` in TGI's format (`option.tgi_compat`)."""

    chat_template: str | None = model_setting(rules.text("a template or a file with one"), None, FileScope.INSIDE)
    """Jinja chat template, or a file with one. Default: the model's own."""

    generation_config: str = model_setting(
        rules.text("auto, vllm or a folder with a generation_config.json"), "auto", FileScope.INSIDE
    )
    """
    Source of the sampling defaults of requests, see [models](models.md#sampling-defaults). `auto`: the checkpoint's
    `generation_config.json` or GGUF metadata, else the model card of a known model; `vllm`: none; a folder: the
    `generation_config.json` in it.
    """

    default_max_new_tokens: int = model_setting(rules.integer(1), 50)
    """Length of an answer if the request is only a prompt, as in the `torchserve` dialect."""

    host: str = setting(rules.text("a host name or address"), "127.0.0.1")
    """
    Address to listen on; 0.0.0.0 lets other machines connect, and needs `api_key`. The default is loopback, because a
    server without a key should not be open to the network; with `container` it is 0.0.0.0.
    """

    port: int = setting(rules.integer(0, 65535), 8080)
    """Port to listen on; 0 takes a free one. The default is SageMaker's."""

    api_key: str | None = setting(rules.secret("a key"), None)
    """Key that clients send as `Authorization: Bearer <key>`; `/ping` and `/health` need none. Default: no key."""

    allow_anonymous: bool = setting(rules.boolean(), False)
    """Serve without `api_key` on an address other than loopback. Off, so that no server is open by mistake."""

    cors_allow_origins: tuple[str, ...] = setting(rules.names(), ())
    """Websites whose pages may call the server, as origins separated by commas; `*` allows all. Default: none."""

    allowed_hosts: tuple[str, ...] = setting(rules.host_names(), ())
    """
    Host names of the server besides `localhost` and IP addresses, separated by commas. `*.example.com` is every name
    below that domain, `*` any name. Default: any; on a loopback address without `api_key` none, which prevents DNS
    rebinding.
    """

    tls_cert: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """
    PEM file with the certificate and intermediate ones, to speak HTTPS only. The server reads it again when it changes.
    Default: plain HTTP.
    """

    tls_key: Path | None = setting(rules.path("a file"), None)  # noqa: RUF009 -- a field, as all others
    """PEM file with the private key of the certificate, without a password. Default: the file of `tls_cert`."""

    container: bool = setting(rules.boolean(), False)
    """
    Behave as a container of SageMaker. The server listens on 0.0.0.0 without a key, because the platform around it
    guards the port; it reads names that are too general elsewhere (`PORT`, `DTYPE`, …) and trusts the model's files.
    `headrace up` turns it on.
    """

    dtype: str = model_setting(
        rules.choice("auto", "bf16", "fp16", "fp32", "fp8", "w8a16", "w8a8", "w4a16", "w4a8", "smoothquant"),
        "auto",
    )
    """
    Format of weights and activations. `auto` follows the file: bf16, w8 or w4, with a16 for models under 1 B parameters
    and a8 for larger ones; it takes a smaller format if memory is short or the CPU has no bf16. The log says why.
    a16 keeps the quality of the weights; a8 computes prompts and large batches up to twice as fast.
    `smoothquant` is w8a8 with the weights of `headrace quantize`, computed at the first start and cached. `fp16` and
    `fp32` need another backend than `native`, `fp8` needs `torch` on a GPU.
    """

    kv_dtype: str = model_setting(rules.choice("auto", "bf16", "int8"), "auto")
    """Format of the KV cache. `auto` is int8 with w8a8 and w4a8, else bf16."""

    smoothquant_alpha: float | None = model_setting(rules.share_or_auto(), None)
    """
    With `dtype` smoothquant: migration strength from activations to weights, 0 to 1. Default: searched for each layer
    group of the model.
    """

    threads: int | None = setting(rules.integer(1), None)
    """Threads of a step. Default: the physical cores that this process may use."""

    isa: str | None = setting(rules.choice("avx512", "avx_vnni", "avx2", "neon_i8mm", "neon", "portable"), None)
    """Kernels to run. Default: the fastest that this CPU supports."""

    max_draft_tokens: int = model_setting(rules.integer(0), 8)
    """
    Maximum draft tokens per sequence and step, from prompt lookup (n-gram speculation); 0 turns it off. Answers do not
    change; the engine drafts fewer tokens, or none, if that would not be faster.
    """

    max_itl_ms: float = setting(rules.number(0, "milliseconds"), 75.0)
    """
    Longest gap between two tokens of a stream that the prompts of other requests may cause; 0 is no limit. With the
    default, text appears as a steady flow. The limit grows with the wait of the oldest prompt, to twice the value
    after 2 s, and never falls below 1.5 times what the step of the running streams takes alone: under load prompts do
    not starve.
    """

    batch_invariant: bool | None = setting(rules.boolean(), None)
    """
    Compute the same bits for a sequence whatever else is in the batch; slower on a GPU. Default: that of the backend;
    `native` always does.
    """

    max_model_len: int | None = model_setting(rules.integer(2), None)
    """Context length: prompt and answer, tokens. Default: the model's trained context, or less if memory is short."""

    rope: Mapping[str, object] | None = model_setting(rules.json_object('{"rope_type": "yarn", "factor": 4.0}'), None)
    """Rotary embedding: `rope_parameters` to merge into the checkpoint's, for longer contexts. Default: as stored."""

    max_prompt_tokens: int | None = model_setting(rules.integer(1), None)
    """Longest prompt, tokens. Default: `max_model_len` - 1."""

    max_num_seqs: int = model_setting(rules.integer(1), 64)
    """Sequences that run at the same time. Fewer if the states of so many do not fit (models with state layers)."""

    max_num_batched_tokens: int = model_setting(rules.integer(1), 512)
    """Token budget of one step, prompt chunks and running sequences together."""

    max_memory_bytes: int | None = model_setting(rules.size(), None)
    """
    Memory for weights, workspace, KV cache and the rest of the process. The server rejects a model that does not fit
    before it loads it. Default: the free memory.
    """

    kv_cache_bytes: int | None = model_setting(rules.size(), None)
    """Size of the KV cache. Default: the rest of the memory that this process may use."""

    max_kv_cache_tokens: int | None = model_setting(rules.integer(1), None)
    """Maximum tokens in the KV cache over all sequences, in whole blocks of 32. Default: limited by memory only."""

    enable_prefix_caching: bool = model_setting(rules.boolean(), True)
    """Reuse the KV blocks of prompts with the same prefix; with state layers, up to a checkpoint of the state."""

    prefix_cache_dir: Path | None = setting(rules.path("a folder"), None)  # noqa: RUF009 -- a field, as all others
    """Folder in which the prefix cache outlives the server; as sensitive as the prompts. Default: in memory only."""

    prefix_cache_disk_bytes: int = setting(rules.size(), 10 << 30)
    """Size of `prefix_cache_dir`; the prefixes that were used least recently are removed."""

    cache_dir: Path | None = setting(rules.path("a folder"), None)  # noqa: RUF009 -- a field, as all others
    """Folder for downloaded models and packed weights. Default: `HEADRACE_HOME`, else `~/.cache/headrace`."""

    enable_lora: bool = model_setting(rules.boolean(), False)
    """
    Reserve slots for LoRA adapters, which requests choose by name, and load those in the folder `adapters` of the
    model. Default: on if `adapter` is set.
    """

    adapter: tuple[str, ...] = setting(rules.assignments(), ())
    """Adapter to load at the start: `name=folder`, a folder that PEFT wrote. Repeatable."""

    max_loras: int = model_setting(rules.integer(1, 1024), 4)
    """
    Adapters that may be loaded at the same time; with more in `adapter`, as many as those. Each takes memory for
    `max_lora_rank` once it is loaded.
    """

    max_lora_rank: int = model_setting(rules.integer(1, 512), 16)
    """Largest rank of an adapter."""

    allow_runtime_lora_updating: bool = setting(rules.boolean(), False)
    """Let clients load and unload adapters over HTTP. Off, because such a client can change answers."""

    adapter_folders: tuple[str, ...] = setting(rules.names(), ())
    """Folders below which clients may load adapters, separated by commas. Default: `adapters` in the model's folder."""

    backend: str = setting(rules.choice("auto", *BACKENDS), "auto")
    """
    Library that runs the network. `auto` is the best one that is installed and runs this model on this machine, see
    docs/backends.md; the log and `/info` say which and why. With any other value the server starts with that one or
    not at all.
    """

    rolling_batch: str = model_setting(rules.spelled(engine_name, *ENGINES), "auto")
    """
    LMI's name of the engine to prefer. If that engine cannot serve this model here, the backend that `auto` chooses
    does, and a notice says so. `backend` overrides it.
    """

    strict_backend: bool = setting(rules.boolean(), False)
    """Do not start if the engine that `rolling_batch` names cannot serve the model."""

    device: str = setting(rules.choice("auto", "cpu", "cuda"), "auto")
    """Device that runs the network. `auto` is `cuda` if the process sees a GPU and a backend for it is installed."""

    tensor_parallel_size: int | None = model_setting(rules.count_or_max(), None)
    """Devices to split the network over; `max`: all GPUs of this process. Default: 1."""

    gpu_memory_utilization: float = model_setting(rules.share(), 0.9)
    """Share of a GPU's memory that this server may use, more than 0 to 1. The default leaves room for other buffers."""

    enforce_eager: bool = model_setting(rules.boolean(), False)
    """Start sooner by capturing no CUDA graphs and compiling nothing (`torch`, `vllm`); decoding is slower."""

    step_timeout_s: float = model_setting(rules.number(1, "seconds"), 300.0)
    """Longest step of vLLM, by default its own limit; after that, requests fail and `/ping` answers 503."""

    vllm_args: Mapping[str, object] | None = model_setting(
        rules.json_object('{"kv_cache_dtype": "fp8"}'), None, FileScope.LIMITS
    )
    """Arguments of vLLM's engine under their own names, which override the other settings. Default: none."""

    max_concurrent_requests: int = model_setting(rules.integer(1), 256)
    """
    Requests that may run and wait at the same time; others get 429 with `Retry-After`. The default is more than can run
    at once, so that the engine never idles, and few enough that the last one does not wait minutes.
    """

    max_best_of: int = model_setting(rules.integer(1), 8)
    """Largest `n` and `best_of` of a request; each candidate is a sequence of its own."""

    max_stop_sequences: int = model_setting(rules.integer(0), 16)
    """Maximum stop strings of a request."""

    max_top_n_tokens: int = model_setting(rules.integer(0), 20)
    """Maximum alternatives per token (`top_n_tokens`, `top_logprobs`). 20 is OpenAI's limit."""

    eula_check: str = setting(rules.choice("ignore", "gated", "required"), "ignore")
    """
    Effect of `accept_eula` in the custom attributes of `/invocations`. `gated`: the server rejects a request that
    declines the licence of a gated model (`meta-llama/...`). `required`: it rejects a request that does not accept the
    licence, for any model, as SageMaker JumpStart's Llama containers do.
    """

    max_body_bytes: int = model_setting(rules.size(), 25 * 1024 * 1024)
    """Largest request body. The default is SageMaker's limit."""

    max_buffered_bytes: int = setting(rules.size(), 256 * 1024 * 1024)
    """Memory for request bodies beyond the first 64 KiB of each; a body for which it does not suffice gets 429."""

    max_connections: int = setting(rules.integer(1), 1024)
    """Client connections at the same time, including idle ones; the server answers others with 503 and closes them."""

    receive_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time for a client to send the head of a request, and again its body (1 s more for each 256 KiB); then 408."""

    send_timeout_s: float = setting(rules.number(0.1, "seconds"), 120.0)
    """Time that a client may leave a response unread; then the server closes the connection and aborts the answer."""

    reasoning_end_message: str = model_setting(rules.text("a sentence"), "\n\nI stop thinking and answer now.\n")
    """Text that ends a reasoning at the budget of its request, such as `thinking_token_budget`, beyond its tokens."""

    grammar_timeout_s: float = setting(rules.number(0.1, "seconds"), 10.0)
    """Longest compilation of a request's JSON schema, regular expression or grammar; then the request fails."""

    stored_responses_bytes: int = setting(rules.size(0), 64 * 1024 * 1024)
    """Memory for stored responses of the Responses API; 0 stores none. The least recently used go first."""

    stored_responses_age_s: float = setting(rules.number(1, "seconds"), 86400.0)
    """Time for which the server stores a response. When it stops, all are lost."""

    batch_bytes: int = setting(rules.size(0), 10 * 1024**3)
    """Disk space for the files of batches; while they have more, no other one is taken. 0 turns batches off."""

    batch_folder: Path | None = setting(rules.path("a folder"), None)  # noqa: RUF009 -- a field, as all others
    """Folder of the files of batches. Default: one for each model, in `$HEADRACE_HOME/batches`."""

    stateful_sessions: bool = model_setting(rules.boolean(), True)
    """Serve stateful sessions on `/invocations`, as LMI's containers do; off: reject requests that open or name one."""

    session_lifetime_s: float = model_setting(rules.number(1, "seconds"), 1200.0)
    """Time from the opening of a stateful session until it expires. The default is LMI's."""

    shutdown_grace_s: float = setting(rules.number(0, "seconds"), 25.0)
    """
    Time for running requests to finish after SIGTERM, `shutdown_delay_s` included; then the server aborts them. The
    default leaves a margin within the 30 s that SageMaker and Kubernetes allow between SIGTERM and SIGKILL.
    """

    shutdown_delay_s: float | None = setting(rules.number(0, "seconds"), None)
    """
    Time after SIGTERM in which `/ping` and `/health` answer 503 and all else still works. Load balancers then route
    elsewhere before the port closes. SIGINT (Ctrl-C) skips it. Default: 5, or 0 on a loopback address; never more than
    `shutdown_grace_s`.
    """

    metrics: bool = setting(rules.boolean(), True)
    """Serve Prometheus metrics on `/metrics`."""

    web: bool = setting(rules.boolean(), True)
    """Serve the chat page to browsers on `/`."""

    log_format: str = setting(rules.choice("auto", "console", "json"), "auto")
    """Format of the log. `auto` is `console` on a terminal, else `json`."""

    log_level: str = setting(rules.choice("debug", "info", "warning", "error"), "info")
    """Lowest level to log."""

    log_prompts: bool = setting(rules.boolean(), False)
    """Log prompts and answers too. Off, because they belong to the users."""

    otlp_traces_endpoint: str | None = setting(rules.text("an http://, https:// or grpc:// URL", "URL"), None)
    """
    Receiver for the spans of requests, see [tracing](tracing.md); needs the extra `otel`. Default: the receiver in the
    `OTEL_*` variables, if any.
    """

    def __repr__(self) -> str:
        return masked_repr(self)


def setting_names() -> tuple[str, ...]:
    return tuple(spec.name for spec in fields(ServerSettings))


def setting_rule(name: str) -> Rule:
    rule: Rule = ServerSettings.__dataclass_fields__[name].metadata["rule"]
    return rule
