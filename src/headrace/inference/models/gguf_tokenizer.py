"""
Build a tokenizer from the vocabulary of a GGUF file.

Four kinds of vocabulary: `gpt2` (byte-level BPE with a list of merges), `gemma4` (BPE of characters with a list of
merges), `llama` (SentencePiece BPE with scores), and `bert` (WordPiece).
Source: llama.cpp `src/llama-vocab.cpp`, `conversion/bert.py`, and the tokenizer.json files of the same models.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.core.telemetry import get_logger
from headrace.inference.models.fields import Fields
from headrace.inference.models.gguf_file import GgufFile
from headrace.inference.models.panics import broken_if_refused
from headrace.inference.models.pretokenizers import PRE_TOKENIZERS, byte_level_parts
from headrace.inference.models.sentencepiece import CONTROL, NORMAL, Pieces, add_special_pieces, bpe_model, set_spaces
from headrace.inference.models.tokenizer import SPACE_MARK, Tokenizer

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models


_PREFIX: Final = "tokenizer.ggml."
_ENDS: Final = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<|end|>", "<|return|>", "<|call|>", "<turn|>", "[EOT]", "[e~[", "<end_of_utterance>"),
)
"""Control tokens that end an answer: the metadata often names only one of several."""
_ENDS_OF_CALLS: Final = ("<|tool_response>",)
"""Tokens after a call, in whose place the result comes; files show them to chat clients, as tokens of the user."""
_ENDS_A_MESSAGE: Final = "<|end|>"
"""Ends an answer, but only one of its messages in vocabularies with `<|return|>` (Harmony, the format of gpt-oss)."""
_WORDPIECE_ENDS: Final = (
    ("[CLS]", "cls_token_id", "bos_token_id"),
    ("[SEP]", "seperator_token_id", "eos_token_id"),
)
"""The usual first and last piece of a text, and the keys that name others, with GGUF's spelling."""
_ID: Final = "_token_id"
_NEEDED_IDS: Final = ("bos_token_id", "eos_token_id")
_NO_TOKEN: Final = (-1, 0xFFFF_FFFF)
_SPECIAL_NAMES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

_INFILL_NAMES: Final = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
"""The keys of fill-in-the-middle; the second name of a part is of older files."""


def read_gguf_tokenizer(file: GgufFile, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a GGUF file; raises `BrokenModel` or `UnsupportedModel`."""
    source = str(file.path)
    values = {key.removeprefix(_PREFIX): value for key, value in file.metadata.items() if key.startswith(_PREFIX)}
    fields = Fields(values, f"{source}, {_PREFIX[:-1]}")
    tokens = _strings(fields, "tokens")
    types = _numbers(fields, "token_type", len(tokens), default=NORMAL)
    if fields.text("model") == "bert":
        tokens = wordpieces(tokens, types)
    fields = _without_unknown_ids(fields, len(tokens))
    backend = _backend(fields, tokens, types)
    add_special_pieces(backend, tokens, types)
    bos = _token_id(fields, "bos_token_id", len(tokens))
    eos = _eos_ids(fields, tokens, types)
    _set_ends(backend, fields, tokens, bos, eos)
    return Tokenizer(
        backend,
        vocab_size=vocab_size,
        bos_token_id=bos,
        eos_token_ids=eos,
        special_names={
            name: tokens[index]
            for name, key in _SPECIAL_NAMES.items()
            if (index := _token_id(fields, key, len(tokens))) is not None
        },
        infill_names={
            part: tokens[index]
            for part, keys in _INFILL_NAMES.items()
            for key in reversed(keys)
            if (index := _token_id(fields, key, len(tokens))) is not None
        },
        source=source,
    )


def _backend(fields: Fields, tokens: list[str], types: list[float]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend

    model, unknown_id = fields.text("model"), _token_id(fields, "unknown_token_id", len(tokens))
    unknown = None if unknown_id is None else tokens[unknown_id]
    with broken_if_refused(f"{fields.source}: the vocabulary is inconsistent"):
        if model == "gpt2":
            return _byte_level_bpe(fields, tokens)
        if model == "gemma4":
            backend = Backend(_character_bpe(fields, tokens, unknown))
            set_spaces(backend, adds_space=False)
            return backend
        if model == "llama":
            scores = _numbers(fields, "scores", len(tokens), default=0.0)
            backend = Backend(bpe_model(Pieces(tokens, scores, types), unknown=unknown))
            set_spaces(backend, adds_space=fields.flag("add_space_prefix", default=True))
            return backend
        if model == "bert":
            return wordpiece(tokens, types, "[UNK]" if unknown is None else unknown)
    raise UnsupportedModel(
        f"{fields.source}: the vocabulary has type {model!r:.200}; expected gpt2, gemma4, llama or bert.",
        tokenizer=model,
    )


def _byte_level_bpe(fields: Fields, tokens: list[str]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    pre = fields.text("pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{fields.source}: the pre-tokenizer is {pre!r:.100}; expected one that llama.cpp knows for byte-level "
            "vocabularies, such as gpt-2, llama-bpe or qwen2. Convert the model with a current llama.cpp.",
            tokenizer=pre,
        )
    rules = PRE_TOKENIZERS[pre]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=_merges(fields), ignore_merges=rules.ignore_merges))
    backend.normalizer, backend.pre_tokenizer = byte_level_parts(rules)
    backend.decoder = decoders.ByteLevel()
    return backend


def _character_bpe(fields: Fields, tokens: list[str], unknown: str | None) -> "models.BPE":
    """Return the model of Gemma 4: merges of characters over whole texts, and bytes for unknown characters."""
    from tokenizers import models

    vocab = {token: index for index, token in enumerate(tokens)}
    return models.BPE(vocab=vocab, merges=_merges(fields), unk_token=unknown, fuse_unk=True, byte_fallback=True)


def _merges(fields: Fields) -> list[tuple[str, str]]:
    try:
        return [(left, right) for left, right in (merge.split(" ") for merge in _strings(fields, "merges"))]
    except ValueError as exc:
        raise BrokenModel(f"{fields.source}: merges has an entry that is not two pieces separated by a space.") from exc


def _set_ends(
    backend: "tokenizers.Tokenizer", fields: Fields, tokens: list[str], bos: int | None, eos: Iterable[int]
) -> None:
    from tokenizers import processors

    if fields.text("model") == "bert":
        cls, sep = (_end_of_wordpieces(fields, tokens, *keys) for keys in _WORDPIECE_ENDS)
        backend.post_processor = processors.BertProcessing((tokens[sep], sep), (tokens[cls], cls))
        return
    has_marks = fields.text("model") in {"llama", "gemma4"}
    by_default = has_marks or PRE_TOKENIZERS[fields.text("pre", "default")].add_bos
    first = [bos] if bos is not None and fields.flag("add_bos_token", default=by_default) else []
    end = next(iter(eos), None)
    last = [end] if end is not None and fields.flag("add_eos_token", default=False) else []
    special = [(tokens[index], index) for index in (*first, *last)]
    single = [*(tokens[index] for index in first), "$A", *(tokens[index] for index in last)]
    if special:
        try:
            backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
        except ValueError as exc:  # the text of a token is a template itself
            added = " and ".join(f"{text!r:.50}" for text, _ in special)
            raise BrokenModel(f"{fields.source}: {added} cannot be added to texts: {exc}.") from exc
    elif not has_marks:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)


def _end_of_wordpieces(fields: Fields, tokens: list[str], piece: str, *keys: str) -> int:
    """Return the token that begins or separates texts: the first key that the metadata has, or the usual piece."""
    index = next((_token_id(fields, key, len(tokens)) for key in keys if fields.has(key)), None)
    if index is None and piece not in tokens:
        raise BrokenModel(f"{fields.source} has no {keys[0]} and no piece {piece}.", key=keys[0])
    return tokens.index(piece) if index is None else index


def _eos_ids(fields: Fields, tokens: list[str], types: list[float]) -> list[int]:
    named = [_token_id(fields, key, len(tokens)) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    ids = {token: index for index, token in enumerate(tokens) if types[index] == CONTROL}
    ends = [ids.get(name) for name in _ENDS if name != _ENDS_A_MESSAGE or "<|return|>" not in ids]
    if fields.text("model") == "gemma4":
        ends += [tokens.index(name) for name in _ENDS_OF_CALLS if name in tokens]
    return list(dict.fromkeys(index for index in named + ends if index is not None))


def _without_unknown_ids(fields: Fields, num_tokens: int) -> Fields:
    """
    Leave out the ids of tokens that the vocabulary lacks, with a notice.

    Converters write them for padded vocabularies, and -1 for tokens that a model lacks. Any other id of bos or eos
    stays and is refused where it is read: without them, other texts would be encoded and answers would not end.
    """
    outside = {
        key: value
        for key, value in fields.values.items()
        if key.endswith(_ID)
        and isinstance(value, int)
        and not 0 <= value < num_tokens
        and (key not in _NEEDED_IDS or value in _NO_TOKEN)
    }
    if outside:
        listed = ", ".join(f"{key} {value}" for key, value in outside.items())
        message = f"{fields.source}: the vocabulary has {num_tokens} tokens, so these ids are ignored: {listed}."
        get_logger().warning("model.ids_ignored", message=message)
    return fields.without(*outside)


def _token_id(fields: Fields, key: str, num_tokens: int) -> int | None:
    if not fields.has(key):
        return None
    index = fields.whole(key, minimum=0)
    if index >= num_tokens:
        raise BrokenModel(f"{fields.source}: {key} is {index}; the vocabulary has {num_tokens} tokens.", key=key)
    return index


def _strings(fields: Fields, key: str) -> list[str]:
    """Return a list of strings, decoded in one call: several times faster than one by one."""
    raw = fields.values.get(key)
    if not isinstance(raw, list) or not raw or not all(isinstance(item, bytes) for item in raw):
        raise BrokenModel(f"{fields.source} has no list {key}, so the tokenizer cannot be built.", key=key)
    try:
        joined = b"\0".join(raw).decode().split("\0")
        return joined if len(joined) == len(raw) else [item.decode() for item in raw]
    except UnicodeDecodeError as exc:
        raise BrokenModel(f"{fields.source}: {key} contains a string that is not UTF-8.", key=key) from exc


def _numbers(fields: Fields, key: str, length: int, *, default: float) -> list[float]:
    values = fields.values.get(key)
    if values is None:
        return [default] * length
    listed = values.tolist() if hasattr(values, "tolist") else None
    if not isinstance(listed, list) or len(listed) != length:
        raise BrokenModel(f"{fields.source}: {key} must have one number for each of the {length} tokens.", key=key)
    return listed


def wordpieces(tokens: Sequence[str], types: Sequence[float]) -> list[str]:
    """Return the tokens as WordPiece spells them: in the file words begin with a space mark, other pieces have none."""
    return [
        token if kind != NORMAL else token.removeprefix(SPACE_MARK) if token.startswith(SPACE_MARK) else f"##{token}"
        for token, kind in zip(tokens, types, strict=True)
    ]


def wordpiece(pieces: Sequence[str], types: Sequence[float], unknown: str) -> "tokenizers.Tokenizer":
    """
    Return the tokenizer of a vocabulary.

    The metadata does not say whether text is lowercased: it is, unless a piece has an uppercase letter.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    normal = [piece for piece, kind in zip(pieces, types, strict=True) if kind == NORMAL]
    is_lower = all(piece == piece.lower() or (piece.startswith("[") and piece.endswith("]")) for piece in normal)
    backend = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend
