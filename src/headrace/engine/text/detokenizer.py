"""
Tokens to text, one at a time and byte for byte.

A character may be spread over several tokens, and a token may hold the end of one and the beginning of the next.
Joined, the pieces are exactly `bytes.decode("utf-8", errors="replace")` of the joined token bytes: a stream and a whole
answer cannot differ.
"""

import codecs

from headrace.models.tokenizer import Tokenizer

_make_decoder = codecs.getincrementaldecoder("utf-8")


class TokenTable:
    """Each token's bytes and, if they are whole characters, its text: looked up once. Shared by all answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._entries: dict[int, tuple[bytes, str | None]] = {}
        self.special_ids = tokenizer.special_ids

    def entry(self, token_id: int) -> tuple[bytes, str | None]:
        """Return the token's bytes and its text; the text is None if it begins or ends within a character."""
        entry = self._entries.get(token_id)
        if entry is None:
            raw = self._tokenizer.token_bytes(token_id)
            try:
                entry = raw, raw.decode()
            except UnicodeDecodeError:
                entry = raw, None
            self._entries[token_id] = entry
        return entry

    def text(self, token_id: int) -> str:
        """Return the token's text on its own, U+FFFD where it is half a character."""
        raw, text = self.entry(token_id)
        return raw.decode(errors="replace") if text is None else text


class Detokenizer:
    """Of one answer."""

    def __init__(self) -> None:
        self._decoder = _make_decoder("replace")
        self.is_mid_character = False
        """Whether bytes are waiting for the rest of their character."""

    def push(self, raw: bytes, text: str | None) -> str:
        """Return what the token adds to the text, given its entry of the `TokenTable`."""
        if text is not None and not self.is_mid_character:
            return text
        piece = self._decoder.decode(raw)
        self.is_mid_character = bool(self._decoder.getstate()[0])
        return piece

    def finish(self) -> str:
        """Return what is left at the end: U+FFFD if a character was never completed."""
        if not self.is_mid_character:
            return ""
        self.is_mid_character = False
        return self._decoder.decode(b"", final=True)
