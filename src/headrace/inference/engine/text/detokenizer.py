"""
Incremental detokenisation, byte for byte.

A character may span several tokens, and a token may contain the end of one character and the beginning of the next.
The joined pieces equal `bytes.decode("utf-8", errors="replace")` of the joined token bytes, so a stream and a whole
answer never differ.
"""

import codecs

from headrace.inference.models.tokenizer import Tokenizer

_make_decoder = codecs.getincrementaldecoder("utf-8")


class TokenTable:
    """A cache of each token's bytes and, if they are whole characters, its text. Shared by all answers."""

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
        """Return the token's text on its own, with U+FFFD for incomplete characters."""
        raw, text = self.entry(token_id)
        return raw.decode(errors="replace") if text is None else text


class Detokenizer:
    """Decodes the token bytes of one answer."""

    def __init__(self) -> None:
        self._decoder = _make_decoder("replace")
        self.is_mid_character = False
        """True while the last character is incomplete."""

    def push(self, raw: bytes, text: str | None) -> str:
        """Return the text that a token adds, given its entry of the `TokenTable`."""
        if text is not None and not self.is_mid_character:
            return text
        piece = self._decoder.decode(raw)
        self.is_mid_character = bool(self._decoder.getstate()[0])
        return piece

    def finish(self) -> str:
        """Return the rest at the end: U+FFFD if the last character is incomplete."""
        if not self.is_mid_character:
            return ""
        self.is_mid_character = False
        return self._decoder.decode(b"", final=True)
