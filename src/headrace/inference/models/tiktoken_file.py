"""
Vocabularies of tiktoken: the bytes of each token in the order in which BPE merges them.

Two kinds: lines of `base64 rank` (`*.tiktoken`, `tokenizer.model` of Llama 3), whose pattern and special tokens are in
the code of each model; and Mistral's `tekken.json`, which holds both.
Source: tiktoken `load.py`; Meta's `llama3/tokenizer.py`; Qwen's `tokenization_qwen.py`;
Moonshot's `tokenization_kimi.py`; mistral-common `tekken.py`.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headrace.core.errors import BrokenModel, UnsupportedModel
from headrace.inference.models.fields import Fields, json_fields
from headrace.inference.models.piece_merges import merges_by_score
from headrace.inference.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer, byte_level_parts
from headrace.inference.models.tokenizer import byte_characters

if TYPE_CHECKING:
    import tokenizers

_LINE: Final = re.compile(rb"([A-Za-z0-9+/]+=*) ([0-9]{1,9})\r?")
_MAX_TOKEN_BYTES: Final = 1024
_MAX_SPECIAL: Final = 100_000
_LLAMA3_RESERVED: Final = 256
_QWEN_EXTRA: Final = 205
_KIMI_RESERVED: Final = 256
_ID: Final = "{id}"
NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A vocabulary: bytes of tokens by rank, and special tokens by id."""

    tokens: Sequence[bytes]
    special: Mapping[int, str]
    first_id: int = 0
    """The id of the first rank."""
    rules: PreTokenizer
    bos: str | None = None
    eos: str | None = None


def is_tiktoken(content: bytes) -> bool:
    """Return whether a file begins with a line of tiktoken."""
    return _LINE.fullmatch(content[: 2 * _MAX_TOKEN_BYTES].partition(b"\n")[0]) is not None


def parse_tiktoken(content: bytes, source: str, model_type: str, *, names: Mapping[int, str] = NO_NAMES) -> Ranks:
    """
    Return the vocabulary in lines of `base64 rank`, with the pattern and the special tokens of a family.

    `names` are the texts of tokens that the settings of the model list; they replace those of reserved tokens.

    Raises `BrokenModel` for a malformed line, `UnsupportedModel` for a family whose pattern is not known.
    """
    if model_type not in _FAMILIES:
        raise UnsupportedModel(
            f"{source} is a vocabulary of tiktoken, whose pattern is not known for model_type {model_type!r:.200}; "
            f"expected one of {', '.join(sorted(_FAMILIES))}. Add the tokenizer.json of the model."
        )
    tokens = []
    for number, line in enumerate(content.splitlines()):
        match = _LINE.fullmatch(line)
        if match is None or int(match[2]) != number:
            raise BrokenModel(
                f"{source}, line {number + 1}: expected base64 and the rank {number}. Download it again.", path=source
            )
        tokens.append(_decoded(match[1], source))
    rules, special, bos, eos = _FAMILIES[model_type]
    return Ranks(
        tokens=tokens,
        special=_special_names(special, len(tokens), names, source),
        rules=rules,
        bos=bos,
        eos=eos,
    )


def _special_names(special: Sequence[str], first_id: int, names: Mapping[int, str], source: str) -> dict[int, str]:
    """Return the special tokens after the last rank; `{id}` in a name is the token's id."""
    found = {
        index: names.get(index, name.format(id=index)) if _ID in name else name
        for index, name in enumerate(special, first_id)
    }
    if len(set(found.values())) != len(found):
        raise BrokenModel(f"{source}: the settings name two tokens alike, or as a reserved one.", path=source)
    return found


def parse_tekken(content: bytes, source: str) -> Ranks:
    """Return the vocabulary of a `tekken.json`; raises `BrokenModel`, which names the malformed key."""
    fields = json_fields(content, source)
    values, config = fields.values, fields.sub("config")
    num_special = config.whole("default_num_special_tokens", minimum=0)
    if num_special > _MAX_SPECIAL:
        raise BrokenModel(f"{source}: default_num_special_tokens is {num_special}; expected at most {_MAX_SPECIAL}.")
    num_tokens = config.whole("default_vocab_size") - num_special
    entries = values.get("vocab")
    if not isinstance(entries, list) or not 0 <= num_tokens <= len(entries):
        raise BrokenModel(f"{source}: vocab must be a list of at least {num_tokens} tokens.", path=source)
    tokens = []
    for rank, entry in enumerate(entries[:num_tokens]):
        part = Fields(entry if isinstance(entry, dict) else {}, f"{source}, vocab, {rank}")
        if part.whole("rank", minimum=0) != rank:
            raise BrokenModel(f"{part.source}: rank is {part.values['rank']}; expected {rank}.", path=source)
        tokens.append(_decoded(part.text("token_bytes").encode(), source))
    rules = PreTokenizer(patterns=(config.text("pattern"),), ignore_merges=True)
    special = _tekken_special(values.get("special_tokens"), num_special, source)
    return Ranks(tokens=tokens, special=special, first_id=num_special, rules=rules, bos="<s>", eos="</s>")


def tiktoken_backend(ranks: Ranks) -> "tokenizers.Tokenizer":
    """Return the tokenizer of a vocabulary. `tokenizers` raises no specific errors."""
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Backend

    characters = {byte: character for character, byte in byte_characters().items()}
    texts = ["".join(characters[byte] for byte in token) for token in ranks.tokens]
    vocab = {text: ranks.first_id + rank for rank, text in enumerate(texts)}
    # The rank of a merge is that of the resulting token, whichever pair produces it.
    merges = merges_by_score(vocab, {text: -rank for rank, text in enumerate(texts)})
    listed = {name: index for index, name in ranks.special.items()}
    backend = Backend(models.BPE(vocab=listed | vocab, merges=merges, ignore_merges=True))
    backend.normalizer, backend.pre_tokenizer = byte_level_parts(ranks.rules)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in listed])
    return backend


def _decoded(text: bytes, source: str) -> bytes:
    try:
        token = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise BrokenModel(f"{source} has the token {text!r:.80}, which is not base64: {exc}.", path=source) from exc
    if not 0 < len(token) <= _MAX_TOKEN_BYTES:
        raise BrokenModel(f"{source} has a token of {len(token)} bytes; expected 1 to {_MAX_TOKEN_BYTES}.", path=source)
    return token


def _tekken_special(entries: object, num_special: int, source: str) -> dict[int, str]:
    """Return the special tokens by id: those of older files are not listed, and unused ids have a name of their own."""
    special = dict(enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]", *_TEKKEN_TOOLS)))
    if isinstance(entries, list):
        parts = [Fields(entry if isinstance(entry, dict) else {}, f"{source}, special_tokens") for entry in entries]
        special = {part.whole("rank", minimum=0): part.text("token_str") for part in parts}
    names = {index: special.get(index, f"<SPECIAL_{index}>") for index in range(num_special)}
    if len(set(names.values())) != num_special:
        raise BrokenModel(f"{source}: special_tokens names two tokens alike.", path=source)
    return names


_TEKKEN_TOOLS: Final = (
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
    *("[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_LLAMA3_NAMES: Final = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
)
_LLAMA3_SPECIAL: Final = (
    *_LLAMA3_NAMES,
    *(f"<|reserved_special_token_{index}|>" for index in range(3, 3 + _LLAMA3_RESERVED - len(_LLAMA3_NAMES))),
)
_QWEN_SPECIAL: Final = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|extra_{index}|>" for index in range(_QWEN_EXTRA)),
)
_LLAMA3: Final = (PRE_TOKENIZERS["llama-bpe"], _LLAMA3_SPECIAL, "<|begin_of_text|>", "<|end_of_text|>")
_QWEN: Final = (PRE_TOKENIZERS["qwen2"], _QWEN_SPECIAL, None, "<|endoftext|>")
_KIMI: Final = (PRE_TOKENIZERS["kimi-k2"], (f"<|reserved_token_{_ID}|>",) * _KIMI_RESERVED, None, "[EOS]")
_FAMILIES: Final[Mapping[str, tuple[PreTokenizer, Sequence[str], str | None, str | None]]] = MappingProxyType(
    {"llama": _LLAMA3, "qwen2": _QWEN, "qwen2_moe": _QWEN, "qwen3": _QWEN, "qwen3_moe": _QWEN}
    | dict.fromkeys(("kimi_k2", "kimi_linear"), _KIMI)
)
"""Pattern, special tokens after the last rank, bos and eos by `model_type`."""
