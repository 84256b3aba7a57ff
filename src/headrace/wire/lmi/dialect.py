"""
The LMI dialects, one per change of the wire format.

`lmi-0.25` (DJL 0.25), `lmi-0.26`, `lmi-0.27` (0.27 to 0.34, LMI v9 to v16) and `lmi-17` (v17 and later).
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.generation import GenerationRequest
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.fields import check_nested
from headrace.wire.framing import decode_body, refusing_deep_nesting
from headrace.wire.lmi.errors import render_error
from headrace.wire.lmi.parameters import (
    BODY_FIELDS,
    PARAMETER_FIELDS,
    LmiBody,
    LmiParameters,
    Version,
    adapters_of,
    prompts_of,
    sampling_params,
)
from headrace.wire.lmi.reply import LmiReply
from headrace.wire.lmi.tokens import LmiOptions

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
        """The name, `lmi-0.25` to `lmi-17`."""
        return f"lmi-{self.version}"

    @property
    def openai_framing(self) -> Literal["sse", "jsonlines"]:
        """Framing of a chat stream on the same route: JSON lines unless the settings select server-sent events."""
        return "sse" if self.formatter == "sse" or self.tgi_compat else "jsonlines"

    def configured(self, *, formatter: Formatter | None, tgi_compat: bool) -> "Lmi":
        """Return the same version with other settings."""
        return replace(self, formatter=formatter, tgi_compat=tgi_compat)

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body with `inputs`.

        Raises:
            InvalidRequest: with DJL's text if it has one.
        """
        decoded = decode_body(body, _decoder)
        ignored = check_nested(body, BODY_FIELDS, PARAMETER_FIELDS)
        parameters = decoded.parameters or LmiParameters()
        prompts = prompts_of(decoded)
        adapters = adapters_of(decoded, len(prompts))
        is_batch = isinstance(decoded.inputs, list)
        form, stream = self._form(parameters, wants_stream=bool(decoded.stream))
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
        return ParsedRequest(
            requests=requests,
            stream=stream,
            reply=LmiReply(options),
            ignored=ignored,
        )

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"error", "code"}` or `{"code", "type", "message"}`."""
        return render_error(error)

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
