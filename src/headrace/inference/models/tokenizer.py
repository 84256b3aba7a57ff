"""
Convert text to tokens and back, with the exact bytes of every token.

Wraps the `tokenizers` library; `hf_tokenizer` and `gguf_tokenizer` build a `Tokenizer` from the files of a checkpoint.
Chat templates are in `chat`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from headrace.core.errors import EngineFailed, HeadraceError, InvalidRequest, UnsupportedModel
from headrace.core.generation import TextSpan
from headrace.inference.models.panics import is_panic
from headrace.inference.models.pretokenizers import is_known_regex

if TYPE_CHECKING:
    import llguidance
    import tokenizers

SPACE_MARK: Final = "\u2581"
"""The character that stands for a space in SentencePiece vocabularies."""
NFC_SHRINK: Final = 4
"""Upper bound of the factor by which NFC shortens a text (a Hangul syllable: 9 bytes to 3)."""
LONG_TEXT_CHARACTERS: Final = 8192
"""Longer texts are tokenised without the GIL, so that other threads can run."""
_MASK_SLICES: Final = [
    "[a-z]{1,3}",
    "[a-z]{1,6}",
    "[A-Za-z ]{1,6}",
    "[A-Za-z ]{1,12}",
    *(rf'[^"\\\x00-\x1F\x7F]{times}' for times in ("{1,10}", "{1,30}", "+")),
]
"""
Sets of tokens that llguidance allows or forbids together where the grammar does, instead of one by one.

The last three are its defaults for strings; with those of letters a mask inside a bounded string or a pattern takes
0.6 of the time (measured with SmolLM2's vocabulary).
"""
_MARK: Final = "\u263a"
"""A character that merges with no other one."""
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ByteForm(StrEnum):
    """The way in which a vocabulary represents bytes."""

    BYTE_LEVEL = "byte_level"
    """One printable character for each byte (GPT-2)."""
    SENTENCEPIECE = "sentencepiece"
    """Text with a mark for spaces, and `<0xNN>` for bytes that are not text."""
    WORDPIECE = "wordpiece"
    """Words, and parts of words that begin with `##` (BERT)."""


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
        infill_names: Mapping[str, str] | None = None,
        source: str = "The tokenizer",
    ) -> None:
        """
        Wrap a backend that was read from `source`; raises `UnsupportedModel` for an unknown kind of vocabulary.

        `vocab_size` is the number of rows of the model's embedding; higher ids cannot be used. `eos_token_ids` end an
        answer, the most common first. `special_names` are `bos_token` and the like with their text, for chat templates;
        `infill_names` are those that a GGUF file names for fill-in-the-middle, by the parts of `infill.InfillTokens`.
        """
        self.vocab_size = vocab_size
        self.bos_token_id = bos_token_id if bos_token_id is not None and bos_token_id < vocab_size else None
        self._eos_order = tuple(dict.fromkeys(eos_token_ids))
        self.eos_token_ids = frozenset(self._eos_order)
        self.special_names: Mapping[str, str] = special_names or {}
        self.infill_names: Mapping[str, str] = infill_names or {}
        self._backend = backend
        self.form = _byte_form(backend, source)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added = {index: token.content for index, token in added.items()}
        self._strips = any(token.lstrip or token.rstrip for token in added.values())
        self._bytes: dict[int, bytes] = {}
        self.may_backtrack = _has_unknown_regex(backend)
        """A short text may take long: tokenise it off the event loop."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """
        Return the token ids of a text. Special tokens spelled out in the text become special tokens.

        Raises:
            InvalidRequest: the text is not valid Unicode, or the vocabulary cannot express it.
            EngineFailed: the vocabulary is broken in a way that only this text shows.
        """
        return self._checked(self._encode(text, add_special_tokens=add_special_tokens, has_offsets=False).ids)

    def encode_inside(self, text: str) -> list[int]:
        """Return the ids of a text that continues another one: SentencePiece would begin it with a space."""
        if self.form is not ByteForm.SENTENCEPIECE:
            return self.encode(text, add_special_tokens=False)
        mark = self.encode(_MARK, add_special_tokens=False)
        return self.encode(_MARK + text, add_special_tokens=False)[len(mark) :]

    def encode_segments(
        self, first: str, second: str | None, *, most: int | None = None, side: str = "right"
    ) -> tuple[list[int], int]:
        """
        Return the token ids of a text, or of two texts as segments of one input, with special tokens.

        The second value is the position of the first token of type 1, or -1.
        With `most`, the text (of two texts the second one) is cut on `side` so that no more tokens remain.
        """
        encoding = self._encode_pair(first, second)
        if most is None or len(encoding.ids) <= most:
            return self._checked(encoding.ids), _second_start(encoding)
        texts = (first,) if second is None else (first, second)
        parts = [self._encode(text, add_special_tokens=False, has_offsets=False) for text in texts]
        room = most - self._backend.num_special_tokens_to_add(second is not None)
        parts[-1].truncate(max(0, room - sum(len(part.ids) for part in parts[:-1])), direction=side)
        pair = parts[1] if len(parts) > 1 else None
        with _translated_errors():
            encoding = self._backend.post_process(parts[0], pair)
        return self._checked(encoding.ids), _second_start(encoding)

    def encode_spans(self, text: str, *, add_special_tokens: bool = True) -> list[TextSpan]:
        """Return the tokens of a text with the characters each covers (none for an added bos token)."""
        encoding = self._encode(text, add_special_tokens=add_special_tokens, has_offsets=True)
        ids = self._checked(encoding.ids)
        spans = zip(ids, encoding.tokens, encoding.offsets, strict=True)
        return [
            TextSpan(id=index, text=text[start:stop], start=start, stop=stop, piece=piece)
            for index, piece, (start, stop) in spans
        ]

    def token_bytes(self, token_id: int) -> bytes:
        """
        Return the exact bytes that a token appends to a text; empty for an id without a token.

        A leading space of a SentencePiece token is kept. A special token gives its own name.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return the bytes of a token as text, with the replacement character for an incomplete character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def to_json(self) -> str:
        text: str = self._backend.to_str()
        return text

    def to_config(self, *, max_tokens: int) -> dict[str, object]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_tokens,
            "clean_up_tokenization_spaces": False,
            **self.special_names,
        }

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens as a continuation: a leading space is kept."""
        hidden = self.special_ids if skip_special_tokens else frozenset()
        joined = b"".join(self.token_bytes(index) for index in token_ids if index not in hidden)
        return joined.decode(errors="replace")

    def decode_whole(self, token_ids: Iterable[int]) -> str:
        """Return the text of all tokens: special ones too, without the space that encoding puts before a text."""
        if self.form is ByteForm.BYTE_LEVEL:
            return self.decode(token_ids, skip_special_tokens=False)
        with _translated_errors():
            text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text

    def min_tokens(self, text: str) -> int:
        """
        Return a lower bound of the number of tokens of `text` without tokenising it.

        Used to refuse a huge prompt immediately. 0 if no bound is known.
        """
        longest = self._longest_token_bytes
        if not longest:
            return 0
        counted = "".join(text.split()) if self._strips else text
        spelled = counted.encode(errors="replace").translate(None, self._unspellable)
        return -(-len(spelled) // longest)

    def grammar_tokenizer(self) -> "llguidance.LLTokenizer":
        """Return the vocabulary for llguidance, built once (a few tenths of a second)."""
        return self._grammar_tokenizer

    @cached_property
    def spelled_tokens(self) -> Sequence[bytes]:
        """The bytes of all tokens; none for special ones and the ends of answers, which a grammar does not spell."""
        unspelled = self.special_ids | self.eos_token_ids
        return [b"" if index in unspelled else self.token_bytes(index) for index in range(self.vocab_size)]

    @cached_property
    def _grammar_tokenizer(self) -> "llguidance.LLTokenizer":
        import llguidance
        from llguidance import TokenizerWrapper

        vocabulary = TokenizerWrapper(_GrammarVocabulary(self))
        eos = list(self._eos_order) or None
        return llguidance.LLTokenizer(vocabulary, n_vocab=self.vocab_size, eos_token=eos, slices=_MASK_SLICES)

    @cached_property
    def _unspellable(self) -> bytes:
        """Bytes without a token in a byte-level vocabulary (SmolLM lacks some): encoding drops them."""
        if self.form is not ByteForm.BYTE_LEVEL:
            return b""
        return bytes(byte for character, byte in _BYTE_OF.items() if self._backend.token_to_id(character) is None)

    @cached_property
    def _longest_token_bytes(self) -> int:
        """Most bytes of text that one token can represent; 0 if there is no limit."""
        shrink = _shrink_factor(_state(self._backend.normalizer))
        if not shrink:
            return 0
        pieces = self._backend.get_vocab(with_added_tokens=False)
        is_text = self.form is not ByteForm.BYTE_LEVEL  # else a character is a byte
        longest = max((len(p.replace(SPACE_MARK, " ").encode() if is_text else p) for p in pieces), default=0)
        added = max((len(content.encode()) for content in self._added.values()), default=0)
        return shrink * max(longest, added)

    def _encode_pair(self, first: str, second: str | None) -> "tokenizers.Encoding":
        if second is None:
            return self._encode(first, add_special_tokens=True, has_offsets=False)
        for text in (first, second):
            _refuse_surrogates(text)
        with _translated_errors():
            return self._backend.encode_batch_fast([(first, second)], add_special_tokens=True)[0]

    def _encode(self, text: str, *, add_special_tokens: bool, has_offsets: bool) -> "tokenizers.Encoding":
        """Encode a text. NOTE: `encode` holds the GIL, for seconds on a huge text; the batch calls release it."""
        with _translated_errors():
            try:
                if len(text) <= LONG_TEXT_CHARACTERS and not self.may_backtrack:
                    return self._backend.encode(text, add_special_tokens=add_special_tokens)
                batch = self._backend.encode_batch if has_offsets else self._backend.encode_batch_fast
                return batch([text], add_special_tokens=add_special_tokens)[0]
            except TypeError:
                _refuse_surrogates(text)  # the only text that it rejects
                raise

    def _checked(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self.vocab_size:
            name = self.token_text(next(index for index in ids if index >= self.vocab_size))
            raise InvalidRequest(f"The text has the token {name!r}, which this model does not have.", param="prompt")
        return ids

    def _spell(self, token_id: int) -> bytes:
        content = self._added.get(token_id)
        if content is not None:
            return content.encode()
        piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return b""
        if self.form is ByteForm.BYTE_LEVEL:
            try:
                return bytes([_BYTE_OF[character] for character in piece])
            except KeyError:
                return piece.encode()
        if self.form is ByteForm.WORDPIECE:
            return piece.removeprefix("##").encode() if piece.startswith("##") else f" {piece}".encode()
        match = _BYTE_TOKEN.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace(SPACE_MARK, " ").encode()


def byte_characters() -> dict[str, int]:
    """
    Map each character of byte-level vocabularies to its byte.

    Printable Latin-1 bytes are their own character, the others use 256 and up. Source: GPT-2 `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF: Final = byte_characters()


def _refuse_surrogates(text: str) -> None:
    """Refuse a lone surrogate, which JSON can represent."""
    place = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if place is not None:
        raise InvalidRequest(
            f"The text has half of a surrogate pair at character {place}, which is not valid Unicode.", param="prompt"
        )


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except HeadraceError:
        raise
    except Exception as exc:
        text = f"The vocabulary of this model cannot express the text: {exc}."
        raise InvalidRequest(text, param="prompt") from exc
    except BaseException as exc:
        if not is_panic(exc):
            raise
        text = f"The tokenizer of this model failed on the text: {exc!s:.200}. Download the model again."
        raise EngineFailed(text) from exc


def _state(part: object) -> dict[str, object]:
    """Return the JSON of a component of a tokenizer; empty if it has none."""
    state = getattr(part, "__getstate__", None)
    if part is None or state is None:
        return {}
    value: dict[str, object] = json.loads(state())
    return value


def _steps(state: dict[str, object], key: str) -> list[dict[str, object]]:
    """Return the steps of a `Sequence`, or the component itself as the only step."""
    steps = state.get(key) if state.get("type") == "Sequence" else [state]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _has_unknown_regex(backend: "tokenizers.Tokenizer") -> bool:
    steps = _steps(_state(backend.normalizer), "normalizers") + _steps(_state(backend.pre_tokenizer), "pretokenizers")
    regexes = [pattern.get("Regex") for step in steps if isinstance(pattern := step.get("pattern"), dict)]
    is_nested = any(step.get("type") == "Sequence" for step in steps)
    return is_nested or not all(map(is_known_regex, filter(None, regexes)))


def _byte_form(backend: "tokenizers.Tokenizer", source: str) -> ByteForm:
    kinds = {str(step.get("type")) for step in _steps(_state(backend.decoder), "decoders")}
    if "ByteLevel" in kinds:
        return ByteForm.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback"}:
        return ByteForm.SENTENCEPIECE
    if "WordPiece" in kinds:
        return ByteForm.WORDPIECE
    raise UnsupportedModel(
        f"{source} has a decoder of type {', '.join(sorted(kinds))}; expected a byte-level or SentencePiece decoder."
    )


def _shrink_factor(state: dict[str, object]) -> int:
    """Return the largest factor by which a normalizer can shorten a text; 0 if unknown."""
    factor = 1
    for step in _steps(state, "normalizers") if state else []:
        kind = step.get("type")
        keeps_length = kind == "Prepend" or (kind == "Replace" and step.get("content") == SPACE_MARK)
        if kind == "NFC":
            factor *= NFC_SHRINK
        elif not keeps_length:
            return 0
    return factor


class _GrammarVocabulary:
    """
    The attributes that llguidance's `TokenizerWrapper` reads.

    Handing over the bytes takes half the time of handing over the tokenizer's JSON form, which llguidance would parse,
    and both sides agree on which tokens are text.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos_token_ids, default=0)
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eos_token_ids)
        self.tokens = tokenizer.spelled_tokens
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _second_start(encoding: "tokenizers.Encoding") -> int:
    types = encoding.type_ids
    return types.index(1) if 1 in types else -1
