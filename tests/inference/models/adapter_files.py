"""PEFT folders for tests: written by hand in PEFT's layout, so that tests without torch need no PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headrace.inference.models.adapter import is_adaptable
from headrace.inference.models.families.registry import family_of
from headrace.inference.models.places import folder_places
from headrace.inference.models.spec import ModelSpec

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}


def write_adapter(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    return folder


def random_tensors(
    spec: ModelSpec, *, rank: int = 4, seed: int = 0, scale: float = 0.3, parts: tuple[str, ...] = ("q", "v")
) -> dict[str, np.ndarray]:
    """Return the tensors of an adapter of these parts in all layers, with PEFT's names."""
    rng = np.random.default_rng(seed)
    places = folder_places(family_of(spec), spec)
    tensors: dict[str, np.ndarray] = {}
    for name, place in places.items():
        if not is_adaptable(name) or name.rpartition(".")[2] not in parts:
            continue
        module = f"base_model.model.{place.stored.removesuffix('.weight')}"
        num_rows, num_columns = place.shape
        if f"{module}.lora_A.weight" in tensors:
            continue
        tensors[f"{module}.lora_A.weight"] = _random(rng, (rank, num_columns), num_columns**-0.5)
        tensors[f"{module}.lora_B.weight"] = _random(rng, (num_rows, rank), scale * rank**-0.5)
    return tensors


def _random(rng: np.random.Generator, shape: tuple[int, int], scale: float) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)
