"""Models for TorchServe as tests write them: folders and archives."""

import json
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_handler.contract import Load
from headrace_handler.contracts.torchserve import make
from headrace_handler.contracts.torchserve.service import TorchServe


def write_model(folder: Path, handler: str, *, entry: str = "service.py", **manifest: Any) -> Path:
    """Write a model in the `no-archive` format, with its handler in `service.py`."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "service.py").write_text(textwrap.dedent(handler))
    model = {"modelName": folder.name, "handler": entry, "modelVersion": "1.0"} | manifest
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model}))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """Pack a model as `torch-model-archiver` does by default."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder))
    return archive


def load(folder: Path, *, batch_size: int = 1, config: Mapping[str, Any] | None = None, **options: str) -> TorchServe:
    """Load a model into the calling process."""
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    contract = make()
    contract.load(
        Load(
            model_name=manifest["model"]["modelName"],
            model_dir=folder,
            entry=manifest["model"]["handler"],
            manifest=manifest,
            model_config=config or {},
            batch_size=batch_size,
            options=options,
        )
    )
    return contract
