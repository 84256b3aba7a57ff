"""
The LMI dialects, one per change of the wire format: bodies, DJL's names, defaults and sampling rules, and errors.

`lmi-0.25` (DJL 0.25), `lmi-0.26`, `lmi-0.27` (0.27 to 0.34, LMI v9 to v16) and `lmi-17` (v17 and later).

Source: DJL Serving `lmi_input_output_schema.md`; `vllm_rolling_batch.py` of 0.29 and 0.35 (when tokens are sampled);
`rolling_batch/lmi_dist_rolling_batch.py` of 0.25 and 0.26; `async_utils.py`, `NettyUtils.sendError` (errors).
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from headrace.core import errors
from headrace.core.errors import CodeFailed, EngineFailed, HeadraceError, InvalidRequest
from headrace.core.generation import GenerationRequest, SamplingParams
from headrace.serving.wire import fields
from headrace.serving.wire.constraints import TextParameters, read_constraint
from headrace.serving.wire.dialect import MAX_CHOICES, ErrorReply, ParsedRequest, RequestContext, retry_headers
from headrace.serving.wire.framing import decode_body, refusing_deep_nesting, to_json
from headrace.serving.wire.lmi.reply import LmiOptions, LmiReply, Version

DEFAULT_MAX_NEW_TOKENS = 30


class LmiParameters(TextParameters):
    """The field `parameters` of a body of LMI."""

    random_seed: int | None = None
    presence_penalty: float | None = None
    min_p: float | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    stop_sequences: list[str] | None = None
    stop: list[str] | bool | None = None
    """TGI's name for `stop_sequences`; TensorRT-LLM's flag of this name has no effect."""
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos_token: bool | None = None
    skip_special_tokens: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    num_beams: int | None = None
    beam_width: int | None = None

    @property
    def num_candidates(self) -> int:
        """Number of candidates; the best one is the answer and the others are listed."""
        return max(self.n or 1, self.best_of or 1)

    @property
    def num_top(self) -> int:
        return max(self.top_n_tokens or 0, self.logprobs or 0)


class LmiBody(msgspec.Struct):
    """The body of `/invocations` and `/predictions/{model}`."""

    inputs: str | list[str]
    parameters: LmiParameters | None = None
    stream: bool | None = None
    adapters: str | list[str] | None = None
    model: str | None = None


BODY_FIELDS = fields.body_table(LmiBody)
PARAMETER_FIELDS = fields.field_table("lmi", LmiParameters)


def prompts_of(body: LmiBody) -> tuple[str, ...]:
    """Return the prompts: one, or a client-side batch. Raises `InvalidRequest`: one is empty, or there are too many."""
    prompts = (body.inputs,) if isinstance(body.inputs, str) else tuple(body.inputs)
    if not prompts or "" in prompts:
        raise InvalidRequest("The 'inputs' field does not contain any content.", param="inputs")
    if len(prompts) > MAX_CHOICES:
        text = f"'inputs' has {len(prompts)} prompts; expected at most {MAX_CHOICES}."
        raise InvalidRequest(text, param="inputs")
    return prompts


def adapters_of(body: LmiBody, num_prompts: int) -> tuple[str | None, ...]:
    """Return the adapter of each prompt; "" is the base model. Raises `InvalidRequest`: the list has another length."""
    if body.adapters is None or isinstance(body.adapters, str):
        return (body.adapters or None,) * num_prompts
    if len(body.adapters) != num_prompts:
        text = f"'adapters' has {len(body.adapters)} names; expected one for each of {num_prompts} inputs."
        raise InvalidRequest(text, param="adapters")
    return tuple(name or None for name in body.adapters)


def sampling_params(
    parameters: LmiParameters, context: RequestContext, *, version: Version, shows_tokens: bool
) -> SamplingParams:
    """Check the parameters and convert them. Raises `InvalidRequest`: a value is out of range."""
    _check(parameters, context)
    seed = parameters.random_seed if parameters.seed is None else parameters.seed
    max_new_tokens = parameters.max_new_tokens
    wants_tokens = shows_tokens or parameters.num_candidates > 1
    stop = parameters.stop if isinstance(parameters.stop, list) else ()
    by_default = version in {"0.25", "0.26"}  # lmi-dist keeps the stop sequence, as TGI does; vLLM does not
    includes_stop = parameters.include_stop_str_in_output
    shows_prompt = parameters.decoder_input_details and parameters.details
    return SamplingParams(
        max_new_tokens=DEFAULT_MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        min_new_tokens=parameters.min_new_tokens or parameters.min_length or 0,
        temperature=_temperature(parameters, version),
        top_k=fields.clamp_count(max(0, parameters.top_k or 0)),
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        min_p=parameters.min_p or 0.0,
        typical_p=1.0 if parameters.typical_p is None else parameters.typical_p,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty or 0.0,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        seed=None if seed is None else seed & fields.LARGEST_SEED,
        stop=(*(parameters.stop_sequences or ()), *stop),
        stop_token_ids=tuple(parameters.stop_token_ids or ()),
        include_stop=by_default if includes_stop is None else includes_stop,
        ignore_eos=bool(parameters.ignore_eos_token),
        skip_special_tokens=parameters.skip_special_tokens is not False,
        n=parameters.num_candidates,
        logprobs=parameters.num_top if wants_tokens else None,
        prompt_logprobs=(parameters.prompt_logprobs or 0) if shows_prompt else None,
        grammar=read_constraint(parameters, prefix="parameters."),
    )


def _temperature(parameters: LmiParameters, version: Version) -> float:
    """Return the temperature; up to DJL 0.31 sampling needs `do_sample: true`, later a temperature suffices."""
    if parameters.do_sample is None:
        inferred = 0.0 if version != "17" or parameters.temperature is None else parameters.temperature
        return fields.effective_temperature(inferred)
    if not parameters.do_sample:
        return 0.0
    return fields.effective_temperature(1.0 if parameters.temperature is None else parameters.temperature)


def _check(parameters: LmiParameters, context: RequestContext) -> None:
    limits = context.limits
    for name, low, high in (
        ("temperature", 0.0, None),
        ("top_k", -1, None),
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("typical_p", 0.0, 1.0),
        ("repetition_penalty", 0.0, None),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("max_new_tokens", 1, None),
        ("min_new_tokens", 0, None),
        ("min_length", 0, None),
        ("truncate", 1, context.model.max_prompt_tokens),
        ("top_n_tokens", 0, limits.max_top_n_tokens),
        ("logprobs", 0, limits.max_top_n_tokens),
        ("prompt_logprobs", 0, limits.max_top_n_tokens),
        ("n", 1, limits.max_best_of),
        ("best_of", 1, limits.max_best_of),
    ):
        _check_range(name, getattr(parameters, name), low, high)
    for name in ("top_p", "typical_p", "repetition_penalty"):
        if getattr(parameters, name) == 0:
            raise InvalidRequest(f"`{name}` must be > 0. Given: 0", param=name)
    for name in ("num_beams", "beam_width"):
        if (getattr(parameters, name) or 1) != 1:
            text = f"`{name}` must be 1: beam search is not available, only sampling and greedy decoding."
            raise InvalidRequest(text, param=name)
    ids = parameters.stop_token_ids
    for token_id in (min(ids), max(ids)) if ids else ():  # there may be hundreds of thousands
        _check_range("stop_token_ids", token_id, 0, context.model.vocab_size - 1)
    stops = [*(parameters.stop_sequences or ()), *(parameters.stop if isinstance(parameters.stop, list) else ())]
    if "" in stops:
        raise InvalidRequest("`stop_sequences` must not contain an empty string.", param="stop_sequences")


def _check_range(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None or (value >= low and (high is None or value <= high)):
        return
    expected = f">= {low:g}" if high is None else f">= {low:g} and <= {high:g}"
    raise InvalidRequest(f"`{name}` must be {expected}. Given: {value}", param=name)


_FAILED_DEPENDENCY = 424

_EXCEPTIONS: dict[type[HeadraceError], str] = {
    errors.Busy: "WlmCapacityException",
    errors.Unavailable: "ServiceUnavailableException",
    errors.CodeUnavailable: "WlmException",
    errors.NotFound: "ResourceNotFoundException",
    errors.ModelNotFound: "ModelNotFoundException",
    errors.PayloadTooLarge: "BadRequestException",
    errors.Unauthorized: "BadRequestException",
    errors.InsufficientMemory: "WlmOutOfMemoryException",
    errors.RequestAborted: "TranslateException",
}


def render_error(error: HeadraceError) -> ErrorReply:
    body: dict[str, object]
    if isinstance(error, EngineFailed):
        body = {"code": _FAILED_DEPENDENCY, "message": "invoke handler failure", "error": error.message}
    elif isinstance(error, CodeFailed | InvalidRequest):
        prefix = "Input Parsing failed. Ensure that the request payload is valid. "
        text = error.message if isinstance(error, CodeFailed) else f"{prefix}{error.message}"
        body = {"error": text, "code": _FAILED_DEPENDENCY}
    else:
        kind = _EXCEPTIONS.get(type(error), "InternalServerException")
        body = {"code": error.http_status, "type": kind, "message": error.message}
        return ErrorReply(status=error.http_status, body=to_json(body), headers=retry_headers(error))
    return ErrorReply(status=_FAILED_DEPENDENCY, body=to_json(body))


Formatter = Literal["json", "jsonlines", "sse"]

_decoder = msgspec.json.Decoder(LmiBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lmi:
    """A version of LMI with its settings."""

    version: Version = "17"
    formatter: Formatter | None = None
    """The setting `option.output_formatter`; None: the version's default."""
    tgi_compat: bool = False
    """The setting `option.tgi_compat`: a list of one object, server-sent events, TGI's names in tokens."""

    @property
    def name(self) -> str:
        return f"lmi-{self.version}"

    @property
    def openai_framing(self) -> Literal["sse", "jsonlines"]:
        """Framing of a chat stream on the same route: JSON lines unless the settings select server-sent events."""
        return "sse" if self.formatter == "sse" or self.tgi_compat else "jsonlines"

    def configured(self, *, formatter: Formatter | None, tgi_compat: bool) -> "Lmi":
        return replace(self, formatter=formatter, tgi_compat=tgi_compat)

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        decoded = decode_body(body, _decoder)
        ignored = fields.check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        parameters = decoded.parameters or LmiParameters()
        prompts = prompts_of(decoded)
        adapters = adapters_of(decoded, len(prompts))
        is_batch = isinstance(decoded.inputs, list)
        form, stream = self._form(parameters, wants_stream=bool(decoded.stream))
        # A stream has one sequence.
        if is_batch or parameters.num_candidates > 1:
            form, stream = "json", False
        if parameters.decoder_input_details and stream and self.version not in {"0.25", "0.26"}:
            text = "`decoder_input_details` cannot be used with streaming."
            raise InvalidRequest(text, param="decoder_input_details")
        shows_tokens = stream and form != "json" and self.version != "0.25"
        details = self.tgi_compat if parameters.details is None else parameters.details
        sampling = sampling_params(parameters, context, version=self.version, shows_tokens=shows_tokens or details)
        options = LmiOptions(
            version=self.version,
            form=form,
            stream=stream,
            is_batch=is_batch,
            in_array=self.tgi_compat,
            details=details,
            top_tokens=bool(parameters.top_n_tokens),
            with_special=not sampling.skip_special_tokens,
            prompts=prompts,
            return_full_text=bool(parameters.return_full_text) and self.version not in {"0.25", "0.26"},
        )
        requests = tuple(
            GenerationRequest(
                request_id=f"{context.request_id}-{number}" if is_batch else context.request_id,
                prompt=prompt,
                sampling=sampling,
                truncate_prompt_tokens=parameters.truncate,
                adapter=adapter,
            )
            for number, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True))
        )
        return ParsedRequest(requests=requests, stream=stream, reply=LmiReply(options), ignored=ignored)

    render_error = staticmethod(render_error)

    def _form(self, parameters: LmiParameters, *, wants_stream: bool) -> tuple[Formatter, bool]:
        """
        Return the formatter of the answer, and whether it streams.

        Up to 0.26 the formatter alone decides, and all of them write token by token. Clients of 0.26 read an answer
        with `details` or `stream` as lines.
        """
        if self.version == "0.25":
            return self.formatter or "json", True
        if self.version == "0.26":
            lines = bool(parameters.details) or wants_stream
            return self.formatter or ("jsonlines" if lines else "json"), True
        if self.formatter in {"jsonlines", "sse"}:
            return self.formatter, True
        if not wants_stream or self.formatter == "json":
            return "json", False
        return ("sse" if self.tgi_compat else "jsonlines"), True
