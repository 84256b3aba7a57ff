"""The model's tokenizer, which input formatters get and few of them use."""

import importlib
from pathlib import Path
from typing import Any


class Tokenizer:
    """
    The tokenizer of transformers, loaded from local files on first use.

    The import of transformers takes seconds, and formatters that only have the parameter need not wait for it.
    """

    def __init__(self, model: str) -> None:
        """Take the name of a folder, a `.gguf` file, or a model in the cache of Hugging Face."""
        self._model = model
        self._loaded: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tokenizer()(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._tokenizer())

    def __bool__(self) -> bool:
        return True

    def _tokenizer(self) -> Any:
        if self._loaded is None:
            transformers = importlib.import_module("transformers")
            path = Path(self._model)
            is_file = path.suffix == ".gguf"
            self._loaded = transformers.AutoTokenizer.from_pretrained(
                str(path.parent) if is_file else self._model,
                local_files_only=True,
                **({"gguf_file": path.name} if is_file else {}),
            )
        return self._loaded
