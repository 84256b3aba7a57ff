"""Adapt the `tqdm` bars of the Hub's downloads to `Progress`."""

import io
from typing import Any, Final

from tqdm.std import tqdm  # type: ignore[import-untyped]

from headrace.core.progress import Progress

_TRANSFER: Final = "Downloading bytes"
"""Name of the Hub's second bar, which counts the same bytes as they arrive."""


def progress_bars(progress: Progress, repo_id: str) -> type[Any]:
    """Return a `tqdm` class that reports to `progress` and prints nothing."""

    class Bars(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **(options | {"file": io.StringIO(), "disable": False}))

        def display(self, *_args: Any, **_options: Any) -> bool:
            if self.total and self.desc != _TRANSFER:
                unit = "bytes" if self.unit == "B" else "files"
                progress(f"Downloading {repo_id} ({unit})", min(int(self.n), int(self.total)), int(self.total), unit)
            return True

    return Bars
