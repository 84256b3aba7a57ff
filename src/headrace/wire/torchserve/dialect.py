"""
The TorchServe dialect of the published text generation handlers.

Source: pytorch/serve `examples/large_models` (the handlers read `data` or `body` as text, and stream by
`send_intermediate_predict_response`) and `ts/handler_utils/hf_batch_streamer.py` (which returns the prompt first).
"""

from dataclasses import dataclass

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import GenerationRequest, SamplingParams
from headrace.wire.constraints import ConstraintFields, read_constraint
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import (
    MISPLACED_CONSTRAINTS,
    NO_BEAM_SEARCH,
    SAMPLING_NO_EFFECT,
    SAMPLING_REFUSED,
    FieldTable,
    Refused,
    check_nested,
    struct_fields,
)
from headrace.wire.framing import MalformedBody, decode_body, field_names, refusing_deep_nesting
from headrace.wire.sampling import LARGEST_SEED, clamp_count, effective_temperature
from headrace.wire.torchserve.errors import render_error
from headrace.wire.torchserve.words import WordReply


class TorchServeParameters(ConstraintFields):
    """The field `parameters` of a JSON body, which handlers pass to `generate`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    return_full_text: bool | None = None
    """True (or null) if the prompt precedes its continuation."""


class TorchServeBody(msgspec.Struct):
    """A body that is a JSON object with `inputs` and parameters."""

    inputs: str
    parameters: TorchServeParameters | None = None
    stream: bool | None = None
    """Accepted without effect: the answer is always streamed word by word."""


BODY_FIELDS = FieldTable(applied=struct_fields(TorchServeBody), refused=MISPLACED_CONSTRAINTS)
PARAMETER_FIELDS = FieldTable(
    applied=struct_fields(TorchServeParameters),
    refused={
        **SAMPLING_REFUSED,
        "num_beams": Refused(NO_BEAM_SEARCH, neutral=1),
        "num_return_sequences": Refused("a response contains one answer", neutral=1),
        "no_repeat_ngram_size": Refused(
            "blocking repeated n-grams is not supported", "Use 'repetition_penalty'.", neutral=0
        ),
        "bad_words_ids": Refused("excluding words is not supported"),
        "max_length": Refused("limits do not count the prompt", "Use 'max_new_tokens'."),
        "typical_p": Refused("this dialect does not apply it", "Use 'top_p'.", neutral=1),
        "min_p": Refused("this dialect does not apply it", "Use 'top_p'.", neutral=0),
        "penalty_alpha": Refused("contrastive search is not supported", neutral=0),
    },
    no_effect=SAMPLING_NO_EFFECT,
)
_decoder = msgspec.json.Decoder(TorchServeBody)
_text_decoder = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServe:
    """
    The TorchServe dialect: plain text in, plain text out.

    NOTE: clients send text with `Content-Type: application/json`, so the content type is not used. A body that is a
    JSON string is that string (TorchServe decodes it), a JSON object with `inputs` is parsed, and any other body is the
    prompt itself, stripped of surrounding white space.
    """

    @property
    def name(self) -> str:
        """The name `torchserve`."""
        return "torchserve"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: the body is not UTF-8, the prompt is empty, or a field of a JSON object is wrong.
        """
        ignored: tuple[str, ...] = ()
        parameters = TorchServeParameters()
        if "inputs" in field_names(body):
            decoded = decode_body(body, _decoder)
            prompt, parameters = decoded.inputs, decoded.parameters or parameters
            ignored = check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        else:
            prompt = _text(body)
        if not prompt.strip():
            raise InvalidRequest("The prompt is empty: send it as the body, as plain text.", param="inputs")
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=prompt,
            sampling=_sampling(parameters, default_max_new_tokens=context.default_max_new_tokens),
        )
        prefix = "" if parameters.return_full_text is False else prompt
        return ParsedRequest(requests=(request,), stream=True, reply=WordReply(prefix), ignored=ignored)

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"code", "type", "message"}`."""
        return render_error(error)


def _text(body: bytes) -> str:
    """Return the prompt of a body that is not an object."""
    if body.lstrip().startswith(b'"'):
        try:
            return _text_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a prompt that begins with a quote
    try:
        return body.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise MalformedBody("The body is not text in UTF-8.") from None


def _sampling(parameters: TorchServeParameters, *, default_max_new_tokens: int) -> SamplingParams:
    """Convert the parameters as `generate` of transformers does: no sampling without `do_sample`."""
    max_new_tokens, temperature = parameters.max_new_tokens, parameters.temperature
    return SamplingParams(
        max_new_tokens=default_max_new_tokens if max_new_tokens is None else max_new_tokens,
        min_new_tokens=parameters.min_new_tokens or 0,
        temperature=effective_temperature(1.0 if temperature is None else temperature) if parameters.do_sample else 0.0,
        top_k=clamp_count(max(0, parameters.top_k or 0)),
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        seed=None if parameters.seed is None else parameters.seed & LARGEST_SEED,
        stop=tuple(parameters.stop or ()),
        grammar=read_constraint(parameters, prefix="parameters."),
    )
