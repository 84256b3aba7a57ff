"""
Build a tokenizer from the files that transformers saved before tokenizer.json.

They have only the vocabulary (`vocab.json` with `merges.txt`, or `vocab.txt`): the class that `tokenizer_config.json`
names decides how texts are split.
Source: transformers 5 `models/*/tokenization_*.py` and `models/auto/tokenization_auto.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields, read_whole
from headrace.inference.models.pretokenizers import PRE_TOKENIZERS, byte_level_parts

if TYPE_CHECKING:
    import tokenizers

VOCAB_JSON: Final = "vocab.json"
VOCAB_TXT: Final = "vocab.txt"
MERGES: Final = "merges.txt"
MAX_VOCABULARY_BYTES: Final = 256 << 20
"""Ten times the largest vocabulary known."""
_VERSION: Final = "#version"
_CLASS: Final = "tokenizer_class"
_Vocab = dict[str, Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer, with the names of special tokens and the settings that its file implies."""

    backend: "tokenizers.Tokenizer"
    names: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    has_plain_specials: bool = False
    """The special tokens are in the vocabulary like all others, and only their names tell them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """A tokenizer class of transformers."""

    names: Mapping[str, str]
    """The special tokens that its constructor assumes."""
    pre: str = "gpt-2"
    """The pre-tokenizer of a byte-level vocabulary."""
    composes: bool = False
    """Normalises to Unicode NFC first."""
    file: str = VOCAB_JSON


_END_OF_TEXT: Final = "<|endoftext|>"
_GPT2_NAMES: Final = MappingProxyType(dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT))
_QWEN_NAMES: Final = MappingProxyType(dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT))
_BERT_NAMES: Final = MappingProxyType(
    {
        name: f"[{name.removesuffix('_token').upper()}]"
        for name in ("cls_token", "sep_token", "unk_token", "pad_token", "mask_token")
    }
)
_ROBERTA_NAMES: Final = MappingProxyType(
    {
        **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
        **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
)
_GPT2: Final = _Class(names=_GPT2_NAMES)
_GPT_NEOX: Final = _Class(names=_GPT2_NAMES, composes=True)
_QWEN2: Final = _Class(names=_QWEN_NAMES, pre="qwen2", composes=True)
_ROBERTA: Final = _Class(names=_ROBERTA_NAMES)
_BERT: Final = _Class(names=_BERT_NAMES, file=VOCAB_TXT)
_MPNET: Final = _Class(names={**_ROBERTA_NAMES, "unk_token": "[UNK]"}, file=VOCAB_TXT)

_CLASSES: Final = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), _GPT2),
    "GPTNeoXTokenizer": _GPT_NEOX,
    "Qwen2Tokenizer": _QWEN2,
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), _ROBERTA),
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), _BERT),
    "MPNetTokenizer": _MPNET,
}
"""Classes by name; `Fast` at the end of a name makes no difference."""
_BY_MODEL_TYPE: Final = {
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo", "gpt_bigcode", "codegen", "opt", "phi", "starcoder2"), _GPT2),
    **dict.fromkeys(("gpt_neox", "olmo", "olmoe", "mamba", "mpt"), _GPT_NEOX),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_next"), _QWEN2
    ),
    **dict.fromkeys(("roberta", "bart", "longformer", "led"), _ROBERTA),
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert", "nomic_bert"), _BERT),
    "mpnet": _MPNET,
}
"""Classes of models whose files name none."""


def hf_vocabulary(file: Path, content: bytes, settings: Fields, config: Fields) -> Vocabulary:
    """Return the tokenizer of a `vocab.json` or `vocab.txt`; raises `BrokenModel` or `UnsupportedModel`."""
    kind = _class_of(file, settings, config)
    names = {**kind.names, **{name: text for name in kind.names if (text := token_text(settings.values.get(name)))}}
    if file.name == VOCAB_TXT:
        lines = _decoded(content, str(file)).removesuffix("\n").split("\n")
        vocab = {token: index for index, token in enumerate(lines)}  # of equal tokens the last counts
        backend = _wordpiece(vocab, names, settings)
    else:
        try:
            vocab = msgspec.json.decode(content, type=_Vocab)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BrokenModel(f"{file} cannot be read: {exc}. Expected the id of each token.", path=str(file)) from exc
        backend = _byte_level(vocab, _read_merges(file.with_name(MERGES)), kind, settings)
    if "cls_token" in kind.names:
        _set_ends(backend, vocab, names, str(file), is_bert=kind is _BERT)
    return Vocabulary(backend=backend, names=names, has_plain_specials=True)


def token_text(value: object) -> str | None:
    """Return the text of a token given as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _class_of(file: Path, settings: Fields, config: Fields) -> _Class:
    name = settings.text(_CLASS, "") or config.text(_CLASS, "")
    model_type = config.text("model_type", "")
    kind = _CLASSES.get(name.removesuffix("Fast")) if name else _BY_MODEL_TYPE.get(model_type)
    if kind is not None and kind.file == file.name:
        return kind
    known = ", ".join(name for name, other in _CLASSES.items() if other.file == file.name)
    what = f"{_CLASS} is {name!r:.100}" if name else f"no file names a {_CLASS}, and model_type is {model_type!r:.100}"
    raise UnsupportedModel(
        f"{file.parent} has {file.name} but no tokenizer.json, and {what}; expected one of {known}. "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes a tokenizer.json.",
        tokenizer=name,
    )


def _read_merges(file: Path) -> list[tuple[str, str]]:
    if not file.is_file():
        raise BrokenModel(f"{file.parent} has {VOCAB_JSON} but no {MERGES}. Download it again.", path=str(file))
    lines = [
        line
        for line in _decoded(read_whole(file, max_bytes=MAX_VOCABULARY_BYTES), str(file)).split("\n")
        if line.strip() and not line.startswith(_VERSION)
    ]
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError as exc:
        raise BrokenModel(f"{file} has a line that is not two pieces separated by a space.", path=str(file)) from exc


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise BrokenModel(f"{source} is not UTF-8: {exc}. Download it again.", path=source) from exc


def _byte_level(
    vocab: dict[str, int], merges: list[tuple[str, str]], kind: _Class, settings: Fields
) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    adds_space = settings.flag("add_prefix_space", default=False)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    if kind.pre == "gpt-2":  # `ByteLevel` has its pattern, and adds the space to the text instead of each word
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    elif adds_space:
        raise UnsupportedModel(f"{settings.source}: add_prefix_space is true; expected false for this {_CLASS}.")
    else:
        backend.pre_tokenizer = byte_level_parts(PRE_TOKENIZERS[kind.pre])[1]
    if kind.composes:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _wordpiece(vocab: dict[str, int], names: Mapping[str, str], settings: Fields) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    if not settings.flag("do_basic_tokenize", default=True):
        raise UnsupportedModel(f"{settings.source}: do_basic_tokenize is false; expected true.")
    backend = Tokenizer(models.WordPiece(vocab, unk_token=names["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.flag("do_lower_case", default=True),
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", default=True),
        strip_accents=settings.flag("strip_accents", default=False) if settings.has("strip_accents") else None,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _set_ends(
    backend: "tokenizers.Tokenizer", vocab: dict[str, int], names: Mapping[str, str], source: str, *, is_bert: bool
) -> None:
    """Put texts between the tokens that a class for encoders adds."""
    from tokenizers import processors

    needed = ("cls_token", "sep_token", "unk_token")
    missing = [f"{names[name]!r:.50} ({name})" for name in needed if names[name] not in vocab]
    if missing:
        raise BrokenModel(f"{source} has no {', '.join(missing)}. Check tokenizer_config.json.", path=source)
    sep, cls = ((names[name], vocab[names[name]]) for name in ("sep_token", "cls_token"))
    process = processors.BertProcessing if is_bert else processors.RobertaProcessing
    backend.post_processor = process(sep, cls)
