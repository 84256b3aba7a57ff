"""
The text of one answer: detokenisation, stop strings and the release of text in chunks.

A token is held back while its last character is incomplete (U+FFFD is added if the answer ends there) or while its
text could become a stop string; then it is released with its final text. So the texts of the released tokens always
join to exactly the released text.
"""

from collections import deque
from dataclasses import dataclass, replace

from headrace.core.generation import SamplingParams, Token, TokenLogprob
from headrace.inference.engine.text.detokenizer import Detokenizer, TokenTable
from headrace.inference.engine.text.stop import StopMatch, StopMatcher

Released = tuple[str, tuple[Token, ...]]
"""Text and its tokens."""


@dataclass(slots=True)
class _Held:
    """A token whose text ends at character `end` of the visible text."""

    token: Token
    end: int
    is_visible: bool


class AnswerText:
    """The text of one answer, released as far as it is final."""

    def __init__(self, table: TokenTable, params: SamplingParams, *, shown_ids: frozenset[int] = frozenset()) -> None:
        """Create an empty answer; special tokens in `shown_ids` are always part of the text."""
        self._table = table
        self._shown_ids = shown_ids if params.skip_special_tokens else table.special_ids
        self._includes_stop = params.include_stop
        self._detokenizer = Detokenizer()
        self._matcher = StopMatcher(params.stop) if params.stop else None
        self._held: deque[_Held] = deque()
        self._num_released_chars = 0
        self._num_chars = 0

    def push(self, token_id: int, logprob: float | None, top: tuple[TokenLogprob, ...]) -> StopMatch | None:
        """Add a generated token; return the stop string that it completes, if any."""
        raw, text = self._table.entry(token_id)
        is_special = token_id in self._table.special_ids
        if is_special and token_id not in self._shown_ids:
            name = self._table.text(token_id)
            self._held.append(_Held(Token(token_id, name, logprob, True, top, raw), self._num_chars, False))
            return None
        piece = self._detokenizer.push(raw, text)
        self._num_chars += len(piece)
        self._held.append(_Held(Token(token_id, piece, logprob, is_special, top, raw), self._num_chars, True))
        return self._matcher.push(piece) if self._matcher is not None and piece else None

    def push_end(self, token_id: int, logprob: float | None, top: tuple[TokenLogprob, ...]) -> None:
        """Add the token that ended the answer; an ordinary one (of `stop_token_ids`) is visible only if stops are."""
        if token_id in self._table.special_ids or self._includes_stop:
            self.push(token_id, logprob, top)
        else:
            raw, _ = self._table.entry(token_id)
            self._held.append(_Held(Token(token_id, "", logprob, False, top, raw), self._num_chars, False))

    def release(self) -> Released:
        """Return the text and tokens that are final."""
        held = self._held
        if self._detokenizer.is_mid_character:
            keep_from = max((i for i, h in enumerate(held) if h.is_visible), default=0)
        elif self._matcher is None and len(held) == 1:
            only = held.popleft()
            self._num_released_chars = only.end
            return (only.token.text if only.is_visible else ""), (only.token,)
        else:
            keep_from = len(held)
        safe = self._num_chars if self._matcher is None else self._matcher.num_released
        return self._release(safe, keep_from)

    def finish(self, match: StopMatch | None = None) -> Released:
        """Return the rest; with a stop string the text ends before it, or after it if stops are included."""
        if match is None:
            self._flush_character()
            return self._release(self._num_chars, len(self._held))
        end = match.stop if self._includes_stop else match.start
        starts = [self._num_released_chars, *(held.end for held in self._held)]
        self._held = deque(_clip(held, start, end) for held, start in zip(self._held, starts, strict=False))
        return self._release(end, len(self._held))

    def _flush_character(self) -> None:
        """Add an incomplete character at the end to the last visible token."""
        rest = self._detokenizer.finish()
        if not rest:
            return
        self._num_chars += len(rest)
        for held in reversed(self._held):
            held.end = self._num_chars
            if held.is_visible:
                held.token = replace(held.token, text=held.token.text + rest)
                return

    def _release(self, safe: int, keep_from: int) -> Released:
        """Release the tokens before index `keep_from` whose text ends at or before character `safe`."""
        held = self._held
        text: list[str] = []
        tokens: list[Token] = []
        while held and len(tokens) < keep_from and held[0].end <= safe:
            first = held.popleft()
            tokens.append(first.token)
            if first.is_visible:
                text.append(first.token.text)
            self._num_released_chars = first.end
        return "".join(text), tuple(tokens)


def _clip(held: _Held, start: int, end: int) -> _Held:
    """Return the token with its text cut at character `end`."""
    if not held.is_visible:
        return _Held(held.token, min(held.end, end), False)
    text = held.token.text[: max(0, end - start)]
    return _Held(replace(held.token, text=text), min(held.end, end), True)
