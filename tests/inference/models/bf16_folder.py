"""Write a model as a bf16 Hugging Face folder: the real small model is a GGUF file, which only one backend reads."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from headrace.inference.models.decoding import decode
from headrace.inference.models.families.registry import family_of
from headrace.inference.models.folder_export import export_files, new_folder
from headrace.inference.models.loading import NEUTRAL, load_model
from headrace.inference.models.places import stored_name


def write_bf16_folder(source: Path, target: Path) -> None:
    """Write config, tokenizer, chat template and weights, rounded to bf16, without recommended sampling."""
    model = load_model(str(source), generation_config=NEUTRAL)
    names = family_of(model.spec).tensors
    tensors = {}
    for name in model.weights.names():
        values = decode(model.weights.load(name))
        values = values[0] if len(values) == 1 else values
        tensors[stored_name(name, names)] = torch.tensor(values, dtype=torch.bfloat16)
    with new_folder(target) as folder:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        export_files(model, folder, {"torch_dtype": "bfloat16"})
