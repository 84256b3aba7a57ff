"""The manifest of installed peers: `manifest.json` in their folder, which benchmarks read."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

DEFAULT_ROOT = Path("~/.cache/headrace-peers")
FILE_NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPeer:
    """An installed peer that is ready to run."""

    python: str
    """The interpreter of its environment."""
    tools: str | None
    """Folder with its programs; None: it is a Python library."""
    requirements: tuple[str, ...]
    versions: dict[str, str]
    """Every package of the environment with its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All peers, and the model in the forms that they read."""

    peers: dict[str, InstalledPeer]
    models: dict[str, str]
    """Path by form: `gguf-q4_1`, `hf-bf16`, `openvino-int8` and so on."""

    def with_peer(self, name: str, peer: InstalledPeer) -> "Manifest":
        return replace(self, peers={**self.peers, name: peer})

    def with_model(self, form: str, path: Path) -> "Manifest":
        return replace(self, models={**self.models, form: str(path)})


def read_manifest(root: Path) -> Manifest:
    """Return the manifest of a folder; an empty one if there is none."""
    file = root / FILE_NAME
    if not file.is_file():
        return Manifest(peers={}, models={})
    return msgspec.json.decode(file.read_bytes(), type=Manifest)


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write the manifest atomically, so that readers never see a part of it."""
    unfinished = root / f"{FILE_NAME}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    unfinished.replace(root / FILE_NAME)
