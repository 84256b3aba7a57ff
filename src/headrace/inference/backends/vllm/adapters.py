"""Adapters for vLLM: folders of PEFT, checked and hashed here."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.errors import BrokenModel, HeadraceError, InsufficientMemory, SettingsError, UnsupportedModel
from headrace.inference.models.fields import json_fields, read_whole
from headrace.inference.models.peft_adapter import read_peft_config

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """An adapter's folder, and the facts that the registry keeps about it."""

    path: Path
    identity: str
    """A hash of its files."""
    rank: int

    def refusal(self, error: Exception) -> HeadraceError:
        """Translate an error that vLLM raised while it loaded this adapter."""
        if "memory" in str(error).lower():
            return InsufficientMemory(f"vLLM has no memory for the adapter in {self.path}: {error}")
        return UnsupportedModel(f"vLLM cannot apply the adapter in {self.path}: {error}")


def read_adapter(path: Path, *, max_rank: int) -> AdapterFacts:
    """
    Read the config of a PEFT folder, and hash its files.

    Raises:
        BrokenModel: A file is missing or malformed.
        UnsupportedModel: It is not plain LoRA, or its rank is over `max_rank`.
        SettingsError: Adapters are off.
    """
    if max_rank == 0:
        raise SettingsError("Adapters are off. Start the server with --enable-lora.")
    weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
    if weights is None:
        raise BrokenModel(f"{path} has none of {', '.join(_WEIGHTS)}; expected a folder of PEFT's save_pretrained.")
    try:
        raw = read_whole(path / _CONFIG)
    except OSError as error:
        raise BrokenModel(f"{path / _CONFIG} cannot be read: {error}.") from error
    config = read_peft_config(json_fields(raw, str(path / _CONFIG)))
    rank = max([config.rank, *(int(value) for value in config.rank_pattern.values())])
    if rank > max_rank:
        raise UnsupportedModel(
            f"The adapter in {path} has rank {rank}; expected at most {max_rank}. Start the server with "
            f"--max-lora-rank {rank}."
        )
    with weights.open("rb") as file:
        content = hashlib.file_digest(file, "sha256")
    content.update(raw)
    return AdapterFacts(path=path, identity=content.hexdigest(), rank=rank)
