"""
LMI's answers, whole and streamed: fragments of one JSON object, or one JSON object per token.

Tokens and details have the form of each version, and the JSON has the spacing of Python's `json`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk, Finish, FinishReason, Token, TokenLogprob
from headrace.serving.wire import framing
from headrace.serving.wire.answers import Answer, FinishedChoice, finite_logprob
from headrace.serving.wire.dialect import ClosingStream, StreamRenderer, Timings
from headrace.serving.wire.framing import json_fragment, json_line, json_number, one_line, to_json

Version = Literal["0.25", "0.26", "0.27", "17"]

_VLLM_REASONS = {FinishReason.LENGTH: "length", FinishReason.EOS: "stop", FinishReason.STOP: "stop"}


def spaced_json(value: object) -> bytes:
    """Encode JSON with the spacing of Python's `json.dumps(value, ensure_ascii=False)`."""
    return one_line(json.dumps(value, ensure_ascii=False).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class LmiOptions:
    """Options of the request and the settings for the format of the answer."""

    version: Version
    form: str
    """The formatter: json, jsonlines or sse."""
    stream: bool
    is_batch: bool
    """True if `inputs` was a list."""
    in_array: bool
    """True if `tgi_compat` is on: a list of one object, and TGI's names in tokens."""
    details: bool
    top_tokens: bool
    with_special: bool
    prompts: tuple[str, ...]
    return_full_text: bool

    def prefix(self, request: int) -> str:
        return self.prompts[request] if self.return_full_text else ""

    def reason(self, finish: Finish) -> str:
        """Return `finish_reason`: TGI's values up to 16, vLLM's from 17."""
        return _VLLM_REASONS[finish.reason] if self.version == "17" else finish.reason.value

    def text_of(self, token: Token | TokenLogprob) -> str:
        """Return the text of a token; special tokens have none."""
        return "" if token.special and not self.with_special else token.text

    def token(
        self, token: Token | TokenLogprob, *, is_prompt: bool = False, may_lack_text: bool = False
    ) -> dict[str, object]:
        """
        Return one token as an object.

        NOTE: 0.26 omitted empty and 0 values. Here the logprob is always present, and the text except on the last line
        with details: published clients read both unconditionally, and recognise the last line by the missing text.
        """
        text = token.text if is_prompt else self.text_of(token)
        logprob = finite_logprob(token.logprob)
        written: dict[str, object]
        if self.version == "17" or self.in_array:
            written = {"id": token.id, "text": text, "logprob": logprob}
            return {**written, "special": True} if self.in_array and token.special else written
        written = {"id": token.id, "text": text, "log_prob": logprob}
        if token.special:
            written["special_token"] = True
        if self.version != "0.26":
            return written
        kept = {"log_prob"} if may_lack_text else {"log_prob", "text"}
        return {key: value for key, value in written.items() if value or (key in kept and value is not None)}

    def token_json(self, token: Token) -> bytes:
        """Render `token` as bytes, without msgspec: this runs for every token of every stream."""
        if token.special or (self.version == "0.26" and (token.id == 0 or token.logprob is None)):
            return spaced_json(self.token(token))
        return b'{"id": %d, "text": %b, "%b": %b}' % (
            token.id,
            to_json(token.text),
            b"logprob" if self.version == "17" or self.in_array else b"log_prob",
            json_number(finite_logprob(token.logprob)),
        )

    def stream_details(self, finish: Finish, request: int, tokens: list[Token]) -> dict[str, object]:
        details: dict[str, object] = {"finish_reason": self.reason(finish)}
        if self.version == "0.26":
            if self.form == "json":
                details["tokens"] = [self.token(token, may_lack_text=True) for token in tokens]
        elif self.version == "17":
            details["seed"] = finish.seed
            details["generated_tokens"] = finish.output_tokens
            details["input_length"] = finish.prompt_tokens
        else:
            details["generated_tokens"] = finish.output_tokens
            details["inputs"] = self.prompts[request]
        return details

    def sequence_details(
        self, choice: FinishedChoice, prompt: tuple[Token, ...] | None, request: int
    ) -> dict[str, object]:
        tokens = [self.token(token) for token in choice.tokens]
        prefill = [self.token(token, is_prompt=True) for token in prompt or ()]
        details: dict[str, object] = {
            "finish_reason": self.reason(choice.finish),
            "generated_tokens": choice.finish.output_tokens,
        }
        if self.version == "17":
            details.update(seed=choice.finish.seed, prefill=prefill, tokens=tokens)
        else:
            details.update(inputs=self.prompts[request], tokens=tokens)
            if prompt is not None:
                details["prefill"] = prefill
        if self.top_tokens:
            details["top_tokens"] = [[self.token(top) for top in token.top] for token in choice.tokens]
        return details


_HEAD = b'{"generated_text": "'
_TAIL = b'"}'
_NO_TOKEN = Token(0, "", None)


class FragmentStream(ClosingStream):
    """
    The `json` formatter of 0.25 and 0.26: one JSON object whose text is sent as it is generated.

    Head, text and tail are separate fragments, because published clients strip head and tail by character sets.
    """

    def __init__(self, options: LmiOptions) -> None:
        super().__init__()
        self._options = options
        self._tokens: list[Token] = []
        self._head = [_HEAD]
        """The part that is not sent yet."""

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        parts, self._head = self._head, []
        if self._options.details:
            self._tokens.extend(chunk.tokens)
        if chunk.text:
            parts.append(json_fragment(chunk.text))
        if chunk.finish is not None:
            tail = _TAIL
            if self._options.details and self._options.version != "0.25":
                details = self._options.stream_details(chunk.finish, request, self._tokens)
                tail = b'", "details": %b}' % spaced_json(details)
            parts.append(tail)
            self._is_closed = True
        return parts

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        return [*self._head, b'", "error": %b, "code": 424}' % to_json(error.message)]


class LineStream(ClosingStream):
    """The `jsonlines` and `sse` formatters: a line per token, the last one with the whole text."""

    def __init__(self, options: LmiOptions) -> None:
        super().__init__()
        self._options = options
        self._texts: list[str] = []
        self.keep_alive = framing.SSE_KEEP_ALIVE if options.form == "sse" else b""

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        self._is_closed = chunk.finish is not None
        if self._options.version == "0.25":
            return [self._framed(b'{"outputs": [%b]}' % to_json(chunk.text))] if chunk.text or chunk.finish else ()
        self._texts.append(chunk.text)
        if chunk.finish is None:
            return [self._line(token, chunk.index) for token in chunk.tokens]
        *before, last = self._with_textless_end(chunk.tokens)
        lines = [self._line(token, chunk.index) for token in before]
        return [*lines, self._last_line(last, chunk.index, chunk.finish, request)]

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render a line whose `finish_reason` is `error` (17: a line with `error`)."""
        if self._options.version == "0.25":
            return [self._framed(spaced_json({"outputs": [""], "error": error.message, "code": 424}))]
        if self._options.version == "17":
            written: dict[str, object] = {"error": {"message": error.message, "type": error.code, "code": 424}}
            return [self._framed(spaced_json(written))]
        name, flag = ("logprob", "special") if self._options.in_array else ("log_prob", "special_token")
        token = {"id": -1, "text": "", name: -1, flag: True, "error_msg": error.message}
        details = {"finish_reason": "error", "generated_tokens": None, "inputs": None}
        return [self._framed(spaced_json({"token": token, "generated_text": "", "details": details}))]

    def _with_textless_end(self, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        """
        Return the tokens of the last chunk, at least one.

        NOTE: readers of 0.26's `details` look for `generated_text` only on a line whose token has no `text`: the
        end-of-sequence token, or an empty token if the answer ended without one.
        """
        if not tokens:
            return (_NO_TOKEN,)
        if self._options.version == "0.26" and self._options.details and self._options.text_of(tokens[-1]):
            return (*tokens, _NO_TOKEN)
        return tokens

    def _line(self, token: Token, index: int) -> bytes:
        written = self._options.token_json(token)
        if self._options.version == "17":
            line = b'{"index": %d, "token": %b, "generated_text": null, "details": null}' % (index, written)
        else:
            line = b'{"token": %b}' % written
        return self._framed(line)

    def _last_line(self, token: Token, index: int, finish: Finish, request: int) -> bytes:
        text = self._options.prefix(request) + "".join(self._texts)
        written = self._options.token(token, may_lack_text=self._options.details)
        line: dict[str, object] = {"token": written, "generated_text": text}
        if self._options.details:
            line["details"] = self._options.stream_details(finish, request, [])
        if self._options.version == "17":
            line = {"index": index, **line, "details": line.get("details")}
        return self._framed(spaced_json(line))

    def _framed(self, line: bytes) -> bytes:
        return b"data: %b\n\n" % line if self._options.form == "sse" else json_line(line)


_CONTENT_TYPES = {
    "json": framing.JSON_CONTENT_TYPE,
    "jsonlines": framing.JSONLINES_CONTENT_TYPE,
    "sse": framing.SSE_CONTENT_TYPE,
}


@dataclass(frozen=True, slots=True)
class LmiReply:
    """Renders one answer in LMI's format."""

    options: LmiOptions

    @property
    def content_type(self) -> str:
        """DJL's content type for the formatter."""
        return _CONTENT_TYPES[self.options.form] if self.options.stream else framing.JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        del timings
        return ()

    def stream(self) -> StreamRenderer:
        """Return a renderer of fragments of one JSON object (0.25, 0.26), or of one object per token."""
        return FragmentStream(self.options) if self.options.form == "json" else LineStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body: an object, or a list of objects for a list of inputs."""
        objects = [self._object(answer, request) for request, answer in enumerate(answers)]
        is_list = self.options.is_batch or self.options.in_array
        body = spaced_json(objects if is_list else objects[0])
        return body + b"\n" if self.options.version == "17" else body

    def _object(self, answer: Answer, request: int) -> dict[str, object]:
        best, *others = answer.best_first()
        prefix = self.options.prefix(request)
        written: dict[str, object] = {"generated_text": prefix + best.text}
        if self.options.details or others:
            details = self.options.sequence_details(best, answer.prompt, request)
            if others:
                details["best_of_sequences"] = [
                    {
                        **self.options.sequence_details(other, answer.prompt, request),
                        "generated_text": prefix + other.text,
                    }
                    for other in others
                ]
            written["details"] = details
        return written
