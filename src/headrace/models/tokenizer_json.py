"""
Checks of a `tokenizer.json` that `tokenizers` does not make.

It reads the file in Rust. Where a merge's right side lacks the prefix of continued words, it cuts bytes out of the
middle of a character; the error that follows ends the whole process (tokenizers 0.23 `models/bpe/model.rs`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from headrace.core.errors import BrokenModel

_PAIR: Final = 2


class _Model(msgspec.Struct):
    continuing_subword_prefix: str | None = None
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _File(msgspec.Struct):
    model: _Model


def check_tokenizer_json(content: bytes, source: str) -> None:
    """
    Check the merges of a vocabulary whose continued words have a prefix; those of others are not decoded.

    Raises:
        BrokenModel: the file is not JSON, or a merge does not match the prefix.
    """
    try:
        model = msgspec.json.decode(content, type=_File).model
        prefix = model.continuing_subword_prefix
        if not prefix:
            return
        merges = msgspec.json.decode(model.merges, type=list[str | list[str]] | None) or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BrokenModel(f"{source} cannot be read: {exc}. Download it again.", path=source) from exc
    wrong = next((right for right in _rights(merges) if not right.startswith(prefix)), None)
    if wrong is not None:
        raise BrokenModel(
            f"{source} has a merge with {wrong!r:.80} on its right side; expected it to begin with the "
            f"`continuing_subword_prefix` {prefix!r:.80}. Download it again.",
            path=source,
        )


def _rights(merges: list[str | list[str]]) -> Iterator[str]:
    """Yield the right side of each merge; malformed entries are left to `tokenizers`, which refuses them."""
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) == _PAIR:
            yield parts[1]
