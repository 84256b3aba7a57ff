"""
Build a tokenizer from the files of a Hugging Face folder.

`tokenizer.json` is complete. Without it the folder has the vocabulary of another library: `tokenizer.model` of
SentencePiece or tiktoken, `*.tiktoken`, `tiktoken.model` or `tekken.json`; or that of an older transformers:
`vocab.json` with `merges.txt`, or `vocab.txt`. `tokenizer_config.json` adds special tokens.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.core.errors import BrokenModel
from headrace.inference.models.fields import Fields, read_whole
from headrace.inference.models.generation_config import token_ids
from headrace.inference.models.hf_vocabulary import (
    MAX_VOCABULARY_BYTES,
    VOCAB_JSON,
    VOCAB_TXT,
    Vocabulary,
    hf_vocabulary,
    token_text,
)
from headrace.inference.models.panics import broken_if_refused
from headrace.inference.models.sentencepiece import parse_sentencepiece, sentencepiece_backend
from headrace.inference.models.tiktoken_file import is_tiktoken, parse_tekken, parse_tiktoken, tiktoken_backend
from headrace.inference.models.tokenizer import Tokenizer
from headrace.inference.models.tokenizer_json import check_tokenizer_json
from headrace_handler.stray_files import listed

if TYPE_CHECKING:
    import tokenizers


TOKENIZER: Final = "tokenizer.json"
_VOCABULARIES: Final = (
    *("tokenizer.model", "tekken.json", "*.tiktoken", "tiktoken.model"),
    *(VOCAB_JSON, VOCAB_TXT),
)
"""Vocabulary files of other libraries and of older transformers, in order of preference."""
_SAMPLE: Final = "The quick\nbrown  fox 123 \u00e9\u4e2d"
"""Tokenised once, so that a broken vocabulary that panics is refused at the start and not with the first request."""
_MAX_ID_DIGITS: Final = 10
_FLAGS: Final = ("special", "lstrip", "rstrip", "single_word", "normalized")
"""Properties of an added token."""
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_hf_tokenizer(
    folder: Path, *, settings: Fields, config: Fields, generation: Fields, vocab_size: int
) -> Tokenizer:
    """
    Return the tokenizer of a folder, given its `tokenizer_config.json`, `config.json` and `generation_config.json`.

    `vocab_size` is the number of rows of the embedding. Raises `BrokenModel` or `UnsupportedModel`.
    """
    files = listed(folder, (TOKENIZER, *_VOCABULARIES))
    if not files:
        raise BrokenModel(f"{folder} has no tokenizer: {TOKENIZER} does not exist, nor do {', '.join(_VOCABULARIES)}.")
    file = files[0]
    with broken_if_refused(f"{file} cannot be read", " Download it again.", path=str(file)):
        found = _build(file, read_whole(file, max_bytes=MAX_VOCABULARY_BYTES), settings, config)
        with suppress(Exception):  # a vocabulary need not express the sample
            found.backend.encode(_SAMPLE)
    backend = found.backend
    _add_tokens(backend, settings)
    names = {name: text for name in _NAMES if (text := token_text(settings.values.get(name))) is not None}
    names = {**found.names, **names}
    if found.has_plain_specials:
        _mark_special(backend, settings, names)
    settings = settings.with_defaults(found.settings)
    bos, eos = _id_of(backend, names.get("bos_token")), _id_of(backend, names.get("eos_token"))
    _set_ends(backend, settings, names)
    ends = sorted(token_ids(generation, "eos_token_id") | token_ids(config, "eos_token_id"))
    if bos is None:
        bos = min(token_ids(config, "bos_token_id"), default=None)
    return Tokenizer(
        backend,
        vocab_size=vocab_size,
        bos_token_id=bos,
        eos_token_ids=ends if eos is None else [eos, *ends],
        special_names=names,
        source=str(file),
    )


def _build(file: Path, content: bytes, settings: Fields, config: Fields) -> Vocabulary:
    from tokenizers import Tokenizer as Backend

    if file.name == TOKENIZER:
        check_tokenizer_json(content, str(file))
        backend = Backend.from_str(content.decode())
        backend.no_padding()
        backend.no_truncation()
        return Vocabulary(backend=backend)
    if file.name in (VOCAB_JSON, VOCAB_TXT):
        return hf_vocabulary(file, content, settings, config)
    if file.name != "tekken.json" and not is_tiktoken(content):
        model = parse_sentencepiece(content, str(file))
        ids = {"bos": model.bos_id, "eos": model.eos_id, "unk": model.unk_id, "pad": model.pad_id}
        return Vocabulary(
            backend=sentencepiece_backend(model),
            names={f"{n}_token": model.texts[index] for n, index in ids.items() if 0 <= index < len(model.texts)},
            settings={"add_bos_token": model.bos_id >= 0},
        )
    is_tekken = file.name == "tekken.json"
    model_type = config.text("model_type", "")
    if is_tekken:
        ranks = parse_tekken(content, str(file))
    else:
        ranks = parse_tiktoken(content, str(file), model_type, names=_added_names(settings))
    names = {"bos_token": ranks.bos, "eos_token": ranks.eos}
    return Vocabulary(
        backend=tiktoken_backend(ranks),
        names={name: text for name, text in names.items() if text is not None},
        settings={"add_bos_token": ranks.bos is not None},
    )


def _added_names(settings: Fields) -> dict[int, str]:
    """Return the texts of the tokens that `tokenizer_config.json` lists, by id."""
    listed = settings.sub("added_tokens_decoder").values
    texts = {int(key): token_text(value) for key, value in listed.items() if _is_id(key)}
    return {index: text for index, text in texts.items() if text is not None}


def _is_id(key: str) -> bool:
    return key.isdecimal() and len(key) <= _MAX_ID_DIGITS


def _add_tokens(backend: "tokenizers.Tokenizer", settings: Fields) -> None:
    """Add the tokens that only `tokenizer_config.json` lists, as is common in fine-tuned models."""
    from tokenizers import AddedToken

    listed = settings.sub("added_tokens_decoder").values
    known = backend.get_added_tokens_decoder()
    ids = {int(key): key for key in listed if _is_id(key)}
    entries = {
        index: Fields(_mapping(listed[key]), f"{settings.source}, added_tokens_decoder, {key}")
        for index, key in sorted(ids.items())
        if index not in known
    }
    backend.add_tokens(
        [
            AddedToken(entry.text("content"), **{name: entry.flag(name, default=False) for name in _FLAGS})
            for entry in entries.values()
        ]
    )
    for index, entry in entries.items():
        if backend.token_to_id(entry.text("content")) != index:
            raise BrokenModel(
                f"{entry.source}: the token {entry.text('content')!r:.200} has another id in the vocabulary."
            )


def _mark_special(backend: "tokenizers.Tokenizer", settings: Fields, names: Mapping[str, str]) -> None:
    """Split off the named special tokens of the vocabulary before any other tokenisation."""
    from tokenizers import AddedToken

    listed: list[object] = [settings.values.get(name) or text for name, text in names.items()]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.values.get(key)
        listed += more if isinstance(more, list) else []
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in listed:
        text = token_text(token)
        if text and text not in added and backend.token_to_id(text) is not None:
            flags = {name: _mapping(token).get(name) is True for name in _FLAGS}
            backend.add_special_tokens([AddedToken(text, **{**flags, "special": True})])


def _set_ends(backend: "tokenizers.Tokenizer", settings: Fields, names: Mapping[str, str]) -> None:
    """Apply `add_bos_token` and `add_eos_token`, which override tokenizer.json (as in transformers 5)."""
    from tokenizers import processors

    if not settings.has("add_bos_token") and not settings.has("add_eos_token"):
        return
    bos = names.get("bos_token") if settings.flag("add_bos_token", default=False) else None
    eos = names.get("eos_token") if settings.flag("add_eos_token", default=False) else None
    ends = [(name, index) for name in (bos, eos) if (index := _id_of(backend, name)) is not None and name is not None]
    single = [name for name in (bos, "$A", eos) if name is not None]
    try:
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    except ValueError as exc:  # a token that the vocabulary does not have, or whose text is a template itself
        raise BrokenModel(
            f"{settings.source}: the tokens {bos!r:.50} and {eos!r:.50} cannot be added to texts: {exc}. "
            "Expected tokens of the vocabulary in bos_token and eos_token."
        ) from exc


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _id_of(backend: "tokenizers.Tokenizer", name: str | None) -> int | None:
    return None if name is None else backend.token_to_id(name)
