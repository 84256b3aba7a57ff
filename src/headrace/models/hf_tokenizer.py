"""Build a tokenizer from the files of a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.models.fields import Fields
from headrace.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

TOKENIZER: Final = "tokenizer.json"
SENTENCEPIECE: Final = "tokenizer.model"
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_hf_tokenizer(
    folder: Path, *, settings: Fields, config: Fields, generation: Fields, vocab_size: int
) -> Tokenizer:
    """
    Return the tokenizer of a folder.

    Args:
        folder: the folder with `tokenizer.json`.
        settings: `tokenizer_config.json`.
        config: `config.json`.
        generation: `generation_config.json`.
        vocab_size: rows of the embedding.

    Raises:
        BrokenModel: there is no tokenizer, or it cannot be read.
        UnsupportedModel: there is only a SentencePiece model.
    """
    backend = _backend(folder)
    _add_tokens(backend, settings)
    names = {name: text for name in _NAMES if (text := _token_text(settings.values.get(name))) is not None}
    bos, eos = _id_of(backend, names.get("bos_token")), _id_of(backend, names.get("eos_token"))
    _set_ends(backend, settings, names)
    ends = sorted(generation.ids("eos_token_id") | config.ids("eos_token_id"))
    if bos is None:
        bos = min(config.ids("bos_token_id"), default=None)
    return Tokenizer(
        backend,
        vocab_size=vocab_size,
        bos_token_id=bos,
        eos_token_ids=ends if eos is None else [eos, *ends],
        special_names=names,
        source=str(folder / TOKENIZER),
    )


def _backend(folder: Path) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer as Backend

    path = folder / TOKENIZER
    if not path.is_file():
        if (folder / SENTENCEPIECE).is_file():
            raise UnsupportedModel(
                f"{folder} has only a SentencePiece tokenizer ({SENTENCEPIECE}); expected {TOKENIZER}. "
                "Load and save it once with AutoTokenizer of transformers to create that file."
            )
        raise BrokenModel(f"{folder} has no tokenizer: {TOKENIZER} does not exist.")
    try:
        backend = Backend.from_str(path.read_text(encoding="utf-8"))
    except Exception as exc:
        # `tokenizers` raises nothing more specific.
        raise BrokenModel(f"{path} cannot be read: {exc}. Download it again.") from exc
    backend.no_padding()
    backend.no_truncation()
    return backend


def _add_tokens(backend: "tokenizers.Tokenizer", settings: Fields) -> None:
    """Add the tokens that only `tokenizer_config.json` lists, as is common in fine-tuned models."""
    from tokenizers import AddedToken

    listed = settings.sub("added_tokens_decoder").values
    known = backend.get_added_tokens_decoder()
    for key in sorted((key for key in listed if key.isdecimal() and int(key) not in known), key=int):
        entry = Fields(_mapping(listed[key]), f"{settings.source}, added_tokens_decoder, {key}")
        flags = {name: entry.flag(name, default=False) for name in ("lstrip", "rstrip", "single_word", "normalized")}
        special = entry.flag("special", default=False)
        backend.add_tokens([AddedToken(entry.text("content"), special=special, **flags)])
        if backend.token_to_id(entry.text("content")) != int(key):
            raise BrokenModel(f"{entry.source}: the token {entry.text('content')!r} has another id in the vocabulary.")


def _set_ends(backend: "tokenizers.Tokenizer", settings: Fields, names: Mapping[str, str]) -> None:
    """Apply `add_bos_token` and `add_eos_token`, which override tokenizer.json (as in transformers 5)."""
    from tokenizers import processors

    if not settings.has("add_bos_token") and not settings.has("add_eos_token"):
        return
    bos = names.get("bos_token") if settings.flag("add_bos_token", default=False) else None
    eos = names.get("eos_token") if settings.flag("add_eos_token", default=False) else None
    ends = [(name, index) for name in (bos, eos) if (index := _id_of(backend, name)) is not None and name is not None]
    single = [name for name in (bos, "$A", eos) if name is not None]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)


def _token_text(value: object) -> str | None:
    """Return the text of a token given as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _id_of(backend: "tokenizers.Tokenizer", name: str | None) -> int | None:
    return None if name is None else backend.token_to_id(name)
