"""Choose the files of a model among those of a repository or a prefix. Pure."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.core.errors import ModelNotFound
from headrace.inference.models.gguf_file import split_parts
from headrace_handler.stray_files import is_hidden

PARAMS: Final = "params.json"
"""The config of Mistral's own folders, which have no config.json."""
_MODULES: Final = "[0-9]*_*"
"""Folders of the modules of sentence-transformers, such as `1_Pooling`."""
_WANTED: Final = (
    *("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "*.py"),
    "additional_chat_templates/*.jinja",
    *(f"{_MODULES}/*.json", f"{_MODULES}/*.safetensors"),
    *("adapters/*/adapter_config.json", "adapters/*/adapter_model.safetensors", "adapters/*/adapter_model.bin"),
)
"""The files that loaders read; other folders have other formats. `*.py` runs only with `trust_remote_code`."""
_PICKLES: Final = ("pytorch_model*.bin", "*.pth", "pytorch_model.bin/*", f"{_MODULES}/pytorch_model.bin")
"""Needed only in folders without safetensors."""
_SECOND_COPY: Final = "consolidated"
"""Beside a config.json, files of this name are Mistral's second copy of the weights."""


def choose_files(names: Iterable[str], source: str) -> list[str]:
    """
    Return the files of a model among POSIX paths below its folder: a GGUF file with its parts, or those of a folder.

    Raises `ModelNotFound` if there is neither, or more than one GGUF file; `source` is the model's name in errors.
    """
    shown = sorted(name for name in names if all(part and not is_hidden(part) for part in name.split("/")))
    if PARAMS in shown and "config.json" not in shown:
        return [name for name in shown if _matches(name, _WANTED)]
    if "config.json" in shown:
        first = [name for name in shown if not name.startswith(_SECOND_COPY)]
        wanted = [name for name in first if _matches(name, _WANTED)]
        complete = {PurePosixPath(name).parent for name in wanted if name.endswith(".safetensors")}
        pickles = [name for name in first if _matches(name, _PICKLES) and _folder_of(name) not in complete]
        return sorted([*wanted, *pickles])
    files = [name for name in shown if name.endswith(".gguf") and "/" not in name]
    if files and files == [part.name for part in split_parts(Path(files[0]))]:
        return files
    if files:
        raise ModelNotFound(f"{source} has several GGUF files ({', '.join(files[:10])}). Name one of them.")
    raise ModelNotFound(
        f"{source} has neither a config.json nor a .gguf file; expected an unpacked model, not an archive of one."
    )


def is_wanted_folder(name: str) -> bool:
    """Return whether a folder of a model has files that loaders read."""
    return _matches(name, tuple({pattern.partition("/")[0] for pattern in (*_WANTED, *_PICKLES) if "/" in pattern}))


def _folder_of(name: str) -> PurePosixPath:
    """Return the folder of a file with weights; that of a split one stands for a file."""
    folder = PurePosixPath(name).parent
    return folder.parent if folder.name == "pytorch_model.bin" else folder


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    parts = name.split("/")
    return any(
        len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
        for wanted in (pattern.split("/") for pattern in patterns)
    )
