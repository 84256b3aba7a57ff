"""
GGUF files in several parts (`name-00001-of-00003.gguf`), as llama.cpp splits large models.

The first part has the metadata and the vocabulary; each part lists and holds its own tensors.
Source: llama.cpp `tools/gguf-split`, gguf-py `constants.py` (`Keys.Split`).
"""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.errors import BrokenModel
from headrace.models.fields import Fields
from headrace.models.gguf_file import GgufFile, GgufTensor, open_gguf

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_COUNT: Final = "split.count"
_NUMBER: Final = "split.no"
_NUM_TENSORS: Final = "split.tensors.count"


def split_parts(path: Path) -> list[Path]:
    """Return the paths of all parts that belong to the name of one; the file alone if its name is not of that form."""
    match = _PART.fullmatch(path.name)
    count = int(match[3]) if match else 0
    if match is None or not 0 < int(match[2]) <= count:
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def open_all_parts(path: Path) -> GgufFile:
    """
    Open a GGUF file, with all other parts if it is one of several.

    Raises:
        BrokenModel: A part is missing, malformed or of another file; the message names it.
        UnsupportedModel: The version or the type of a tensor is unknown.
    """
    file = open_gguf(path)
    count = Fields(file.metadata, str(path)).whole(_COUNT, 1, minimum=0)
    if count <= 1:
        return file
    paths = split_parts(path)
    if len(paths) != count:
        raise BrokenModel(
            f"{path} is a part of a GGUF file in {count} parts; "
            f"expected a name that ends in -00001-of-{count:05}.gguf, as it was downloaded.",
            path=str(path),
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise BrokenModel(
            f"{path.parent} has {len(missing)} of {count} parts of {path.name} missing: {missing[0]}. "
            "Download all parts into one folder.",
            path=str(path),
        )
    return _joined([open_gguf(part) for part in paths])


def _joined(parts: list[GgufFile]) -> GgufFile:
    tensors: dict[str, GgufTensor] = {}
    digest = hashlib.blake2b(digest_size=16)
    for number, part in enumerate(parts):
        fields = Fields(part.metadata, str(part.path))
        found, count = fields.whole(_NUMBER, minimum=0), fields.whole(_COUNT)
        if (found, count) != (number, len(parts)):
            raise BrokenModel(
                f"{part.path} is part {found} of {count}; "
                f"expected part {number} (counted from 0) of {len(parts)}. Download it again.",
                path=str(part.path),
            )
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise BrokenModel(f"{part.path} has the tensor {min(twice)}, which another part has too.")
        tensors |= part.tensors
        digest.update(part.fingerprint.encode())
    expected = Fields(parts[0].metadata, str(parts[0].path)).whole(_NUM_TENSORS, len(tensors), minimum=0)
    if expected != len(tensors):
        raise BrokenModel(f"{parts[0].path}: all parts have {len(tensors)} tensors; expected {expected}.")
    return replace(parts[0], tensors=tensors, fingerprint=digest.hexdigest())
