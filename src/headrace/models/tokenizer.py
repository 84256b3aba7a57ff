"""
Text to tokens and back, with the exact bytes of every token.

Wraps the `tokenizers` library; `hf_tokenizer` and `gguf_tokenizer` make one from the files of a checkpoint.
It knows nothing of chats or of generation.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from headrace.core.errors import InvalidRequest, UnsupportedModel
from headrace.core.generation import TextSpan

if TYPE_CHECKING:
    import llguidance
    import tokenizers

SPACE_MARK: Final = "\u2581"
"""SentencePiece writes a space as this character."""
NFC_SHRINK: Final = 4
"""Composing characters makes a text at most this many times shorter (three Hangul letters: 9 bytes to 3)."""
LONG_TEXT_CHARACTERS: Final = 8192
"""Longer texts are tokenised without the interpreter lock, so that other threads run on."""
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ByteForm(StrEnum):
    """How the pieces of a vocabulary spell bytes."""

    BYTE_LEVEL = "byte_level"
    """One printable character a byte (GPT-2)."""
    SENTENCEPIECE = "sentencepiece"
    """Text with a mark for spaces, and `<0xNN>` for bytes that are no text."""


class Tokenizer:
    """The tokenizer of one checkpoint. Safe to use from several threads."""

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        vocab_size: int,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        special_names: Mapping[str, str] | None = None,
        source: str = "The tokenizer",
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: the real tokenizer.
            vocab_size: rows of the model's embedding; ids above cannot be used.
            bos_token_id: what a text starts with, if the checkpoint has such a token.
            eos_token_ids: what ends an answer, the most usual first.
            special_names: `bos_token` and so on with their text, for chat templates.
            source: which file it came from, for messages.

        Raises:
            UnsupportedModel: the vocabulary is of a kind whose bytes are not known.
        """
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id
        self._eos_order = tuple(dict.fromkeys(eos_token_ids))
        self.eos_token_ids = frozenset(self._eos_order)
        self.special_names: Mapping[str, str] = special_names or {}
        self._backend = backend
        self.form = _byte_form(backend, source)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added = {index: token.content for index, token in added.items()}
        self._strips = any(token.lstrip or token.rstrip for token in added.values())
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """
        Token ids of a text. Special tokens written out in the text become special tokens.

        Raises:
            InvalidRequest: the text is not valid Unicode, or names a token that the model has no embedding for.
        """
        return self._checked(self._encode(text, add_special_tokens=add_special_tokens, has_offsets=False).ids)

    def encode_spans(self, text: str, *, add_special_tokens: bool = True) -> list[TextSpan]:
        """The same with the characters that each token covers (none for a token that was added in front)."""
        encoding = self._encode(text, add_special_tokens=add_special_tokens, has_offsets=True)
        ids = self._checked(encoding.ids)
        spans = zip(ids, encoding.offsets, strict=True)
        return [TextSpan(id=index, text=text[start:stop], start=start, stop=stop) for index, (start, stop) in spans]

    def token_bytes(self, token_id: int) -> bytes:
        """
        The exact bytes that a token adds to a text that has begun; empty for an id without a token.

        A leading space of a SentencePiece token is kept. A special token gives its own name.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """The bytes of one token as text, with the replacement character where they are half a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def to_json(self) -> str:
        """The content of a `tokenizer.json` with all that this tokenizer knows."""
        text: str = self._backend.to_str()
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some tokens as a continuation: a leading space stays."""
        hidden = self.special_ids if skip_special_tokens else frozenset()
        joined = b"".join(self.token_bytes(index) for index in token_ids if index not in hidden)
        return joined.decode(errors="replace")

    def min_tokens(self, text: str) -> int:
        """
        A number of tokens that `text` has at least, without tokenising it.

        For refusing a huge prompt at once. 0 if nothing can be said.
        """
        longest = self._longest_token_bytes
        if not longest:
            return 0
        counted = "".join(text.split()) if self._strips else text
        spelled = counted.encode(errors="replace").translate(None, self._unspellable)
        return -(-len(spelled) // longest)

    def grammar_tokenizer(self) -> "llguidance.LLTokenizer":
        """The same vocabulary for llguidance, made once (a few tenths of a second)."""
        return self._grammar_tokenizer

    @cached_property
    def _grammar_tokenizer(self) -> "llguidance.LLTokenizer":
        import llguidance

        eos = list(self._eos_order) or None
        return llguidance.LLTokenizer(self._backend.to_str(), n_vocab=self.vocab_size, eos_token=eos)

    @cached_property
    def _unspellable(self) -> bytes:
        """Bytes that a byte-level vocabulary has no token for (SmolLM lacks some): they vanish from a text."""
        if self.form is not ByteForm.BYTE_LEVEL:
            return b""
        return bytes(byte for character, byte in _BYTE_OF.items() if self._backend.token_to_id(character) is None)

    @cached_property
    def _longest_token_bytes(self) -> int:
        """Bytes of text that one token can stand for; 0 if there is no limit."""
        shrink = _shrink_factor(_state(self._backend.normalizer))
        if not shrink:
            return 0
        measure = len if self.form is ByteForm.BYTE_LEVEL else _text_length
        longest = max((measure(piece) for piece in self._backend.get_vocab(with_added_tokens=False)), default=0)
        added = max((len(content.encode()) for content in self._added.values()), default=0)
        return shrink * max(longest, added)

    def _encode(self, text: str, *, add_special_tokens: bool, has_offsets: bool) -> "tokenizers.Encoding":
        """NOTE: `encode` holds the interpreter lock, seconds for a huge text; the calls for batches release it."""
        try:
            if len(text) <= LONG_TEXT_CHARACTERS:
                return self._backend.encode(text, add_special_tokens=add_special_tokens)
            batch = self._backend.encode_batch if has_offsets else self._backend.encode_batch_fast
            return batch([text], add_special_tokens=add_special_tokens)[0]
        except TypeError as exc:
            # It takes every text but those with half a surrogate pair, which JSON can spell.
            place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), 0)
            raise InvalidRequest(
                f"The text holds half of a surrogate pair at character {place}, which is not valid Unicode.",
                param="prompt",
            ) from exc

    def _checked(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self.vocab_size:
            name = self.token_text(next(index for index in ids if index >= self.vocab_size))
            raise InvalidRequest(f"The text holds the token {name!r}, which this model does not have.", param="prompt")
        return ids

    def _spell(self, token_id: int) -> bytes:
        content = self._added.get(token_id)
        if content is not None:
            return content.encode()
        piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return b""
        if self.form is ByteForm.BYTE_LEVEL:
            return _byte_level(piece)
        match = _BYTE_TOKEN.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace(SPACE_MARK, " ").encode()


def byte_characters() -> dict[str, int]:
    """
    The character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 characters stand for themselves, the others for 256 and up. Source: GPT-2 `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF: Final = byte_characters()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()


def _text_length(piece: str) -> int:
    return len(piece.replace(SPACE_MARK, " ").encode())


def _state(part: object) -> dict[str, object]:
    """The JSON of a tokenizer's part; empty where it has none."""
    state = getattr(part, "__getstate__", None)
    if part is None or state is None:
        return {}
    found: dict[str, object] = json.loads(state())
    return found


def _steps(state: dict[str, object], key: str) -> list[dict[str, object]]:
    """The steps of a `Sequence`, or the one step that there is."""
    steps = state.get(key) if state.get("type") == "Sequence" else [state]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _byte_form(backend: "tokenizers.Tokenizer", source: str) -> ByteForm:
    kinds = {str(step.get("type")) for step in _steps(_state(backend.decoder), "decoders")}
    if "ByteLevel" in kinds:
        return ByteForm.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback"}:
        return ByteForm.SENTENCEPIECE
    raise UnsupportedModel(
        f"{source} has a decoder of type {', '.join(sorted(kinds))}; byte-level and SentencePiece ones are supported."
    )


def _shrink_factor(state: dict[str, object]) -> int:
    """How many times shorter a normalizer can make a text; 0 if that is not known."""
    factor = 1
    for step in _steps(state, "normalizers") if state else []:
        kind = step.get("type")
        keeps_length = kind == "Prepend" or (kind == "Replace" and step.get("content") == SPACE_MARK)
        if kind == "NFC":
            factor *= NFC_SHRINK
        elif not keeps_length:
            return 0
    return factor
