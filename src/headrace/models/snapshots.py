"""Choose the files of a model among those of a repository or a prefix. Pure."""

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from headrace.core.errors import ModelNotFound
from headrace.models.gguf_split import split_parts
from headrace_handler.stray_files import is_hidden

PARAMS: Final = "params.json"
"""The config of Mistral's own folders, which have no config.json."""
WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken")
PICKLES: Final = ("pytorch_model*.bin", "*.pth")
"""Needed only where there are no safetensors."""
UNWANTED: Final = ("*/*", "consolidated*")
"""Subfolders have other formats; beside a config.json, `consolidated` is Mistral's second copy of the weights."""


def choose_files(names: Iterable[str], source: str) -> list[str]:
    """
    Return the files of a model: a GGUF file with its parts, or a Hugging Face folder.

    Raises:
        ModelNotFound: There is neither, or more than one GGUF file; the message names them.
    """
    top = sorted(name for name in names if Path(name).name == name and not is_hidden(name))
    if PARAMS in top and "config.json" not in top:
        return [name for name in top if _matches(name, WANTED)]
    flat = [name for name in top if not _matches(name, UNWANTED)]
    if "config.json" in flat:
        chosen = [name for name in flat if _matches(name, WANTED)]
        has_safetensors = any(name.endswith(".safetensors") for name in chosen)
        return chosen if has_safetensors else [name for name in flat if _matches(name, (*WANTED, *PICKLES))]
    files = [name for name in flat if name.endswith(".gguf")]
    if files and files == [part.name for part in split_parts(Path(files[0]))]:
        return files
    if files:
        raise ModelNotFound(f"{source} has several GGUF files ({', '.join(files[:10])}). Name one of them.")
    raise ModelNotFound(
        f"{source} has neither a config.json nor a .gguf file; expected an unpacked model, not an archive of one."
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
