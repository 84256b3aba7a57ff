"""LMI's streams: fragments of one JSON object, or one JSON object per token."""

from collections.abc import Sequence

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk, Finish, Token
from headrace.wire.framing import SSE_KEEP_ALIVE, json_fragment, json_line, to_json
from headrace.wire.lmi.tokens import LmiOptions, spaced_json
from headrace.wire.streams import ClosingStream

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
        self._has_begun = False

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        """Render the escaped text; the first chunk is preceded by the head."""
        parts = self._begun()
        if self._options.details:
            self._tokens.extend(chunk.tokens)
        if chunk.text:
            parts.append(json_fragment(chunk.text))
        if chunk.finish is not None:
            parts.append(self._tail(chunk.finish, request))
            self._is_closed = True
        return parts

    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render the end of the object, with `error` and `code`."""
        return [*self._begun(), b'", "error": %b, "code": 424}' % to_json(error.message)]

    def _begun(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [_HEAD]

    def _tail(self, finish: Finish, request: int) -> bytes:
        if not self._options.details or self._options.version == "0.25":
            return _TAIL
        return b'", "details": %b}' % spaced_json(self._options.stream_details(finish, request, self._tokens))


class LineStream(ClosingStream):
    """The `jsonlines` and `sse` formatters: a line per token, the last one with the whole text."""

    def __init__(self, options: LmiOptions) -> None:
        super().__init__()
        self._options = options
        self._texts: list[str] = []
        self.keep_alive = SSE_KEEP_ALIVE if options.form == "sse" else b""

    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        """Render one line per token of the chunk."""
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
