"""The TGI dialects: `tgi-1.0` (as 1.0.3) and `tgi-3` (as 3.x), each for three kinds of route."""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import GenerationRequest
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import check_nested
from headrace.wire.framing import decode_body, refusing_deep_nesting
from headrace.wire.tgi.errors import render_error
from headrace.wire.tgi.parameters import (
    BODY_FIELDS,
    PARAMETER_FIELDS,
    GenerateBody,
    GenerateParameters,
    Version,
    sampling_params,
)
from headrace.wire.tgi.reply import TgiOptions, TgiReply

Route = Literal["compat", "generate", "generate_stream"]

_decoder = msgspec.json.Decoder(GenerateBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tgi:
    """
    A version of TGI on one kind of route.

    `compat` is `/` and `/invocations`: `stream` in the body selects events or an array of one object, and the prompt
    precedes the text unless `return_full_text` is false (as in TGI for models of the text-generation task).
    `generate` returns the object and `generate_stream` events, regardless of the body.
    """

    version: Version = "3"
    route: Route = "compat"

    @property
    def name(self) -> str:
        """The name `tgi-1.0` or `tgi-3`."""
        return f"tgi-{self.version}"

    def on(self, route: Route) -> "Tgi":
        """Return the same version on another kind of route."""
        return replace(self, route=route)

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a generate request.

        Raises:
            InvalidRequest: with TGI's text.
        """
        decoded = decode_body(body, _decoder)
        ignored = check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        parameters = decoded.parameters or GenerateParameters()
        stream = self.route == "generate_stream" or (self.route == "compat" and bool(decoded.stream))
        sampling = sampling_params(
            parameters,
            version=self.version,
            stream=stream,
            limits=context.limits,
            max_input_tokens=context.model.max_prompt_tokens,
        )
        if not decoded.inputs:
            raise InvalidRequest("`inputs` cannot be empty", param="inputs")
        request = GenerationRequest(
            request_id=context.request_id,
            prompt=decoded.inputs,
            sampling=sampling,
            truncate_prompt_tokens=parameters.truncate,
            adapter=parameters.adapter_id or None,
        )
        return ParsedRequest(
            requests=(request,),
            stream=stream,
            reply=TgiReply(self.options(decoded.inputs, parameters, stream=stream)),
            ignored=ignored,
        )

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error": ..., "error_type": ...}` with TGI's status."""
        return render_error(error)

    def options(self, inputs: str, parameters: GenerateParameters, *, stream: bool) -> TgiOptions:
        """Return the form of the answer to a prompt."""
        full_text = parameters.return_full_text
        return TgiOptions(
            version=self.version,
            stream=stream,
            in_array=self.route == "compat",
            details=bool(parameters.details or (parameters.decoder_input_details and not stream)),
            top_tokens=bool(parameters.top_n_tokens),
            prompt=inputs,
            return_full_text=self.route == "compat" if full_text is None else full_text,
        )
