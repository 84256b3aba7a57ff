"""
The model in the forms that the peers read, all made from the GGUF file that Headrace serves.

`FORMS` lists the forms, and which peer's programs make each.
"""

import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import run_logged
from benchmarks.peers.manifest import Manifest

_WRITE_FOLDER = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
source, target = Path(sys.argv[1]), sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
model.hf_quantizer = None  # it is plain bfloat16 by now, but still marked as quantized, which cannot be saved
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
"""
"""Dequantizes a GGUF file to a Hugging Face folder in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to store the model."""

    name: str
    readers: tuple[str, ...]
    """The peers that need it."""
    maker: str | None
    """The peer whose environment makes it; None: Headrace does."""
    file: str
    """Name of the file or folder."""
    command: Callable[[Manifest, Path, Path], list[str]]
    """Makes the command from the manifest, the GGUF file and the target."""


def _folder_command(manifest: Manifest, source: Path, target: Path) -> list[str]:
    return [manifest.peers["transformers"].python, "-c", _WRITE_FOLDER, str(source), str(target)]


def _w8a8_command(manifest: Manifest, source: Path, target: Path) -> list[str]:  # noqa: ARG001 - ours, not a peer's
    return [sys.executable, "-m", "headrace", "quantize", str(source), str(target)]


def _quantize_command(kind: str, *options: str) -> Callable[[Manifest, Path, Path], list[str]]:
    def command(manifest: Manifest, source: Path, target: Path) -> list[str]:
        tools = manifest.peers["llamacpp"].tools
        return [f"{tools}/llama-quantize", "--allow-requantize", *options, str(source), str(target), kind]

    return command


def _openvino_command(*options: str) -> Callable[[Manifest, Path, Path], list[str]]:
    def command(manifest: Manifest, source: Path, target: Path) -> list[str]:  # noqa: ARG001 - from the folder
        program = Path(manifest.peers["openvino"].python).parent / "optimum-cli"
        folder = manifest.models["hf-bf16"]
        task = ["--task", "text-generation-with-past"]
        return [str(program), "export", "openvino", "--model", folder, *task, *options, str(target)]

    return command


FORMS: tuple[Form, ...] = (
    Form(
        name="hf-bf16",
        readers=("transformers", "openvino", "vllm"),
        maker="transformers",
        file="hf-bf16",
        command=_folder_command,
    ),
    Form(name="hf-w8a8", readers=("vllm",), maker=None, file="hf-w8a8", command=_w8a8_command),
    Form(
        name="gguf-bf16",
        readers=("llamacpp",),
        maker="llamacpp",
        file="bf16.gguf",
        command=_quantize_command("BF16"),
    ),
    Form(
        name="gguf-q8_0",
        readers=("llamacpp",),
        maker="llamacpp",
        file="q8_0.gguf",
        command=_quantize_command("Q8_0"),
    ),
    Form(
        name="gguf-q4_0",
        readers=("llamacpp",),
        maker="llamacpp",
        file="q4_0.gguf",
        command=_quantize_command("Q4_0"),
    ),
    Form(
        name="gguf-q4_0-pure",
        readers=("llamacpp",),
        maker="llamacpp",
        file="q4_0-pure.gguf",
        command=_quantize_command("Q4_0", "--pure"),
    ),
    Form(
        name="openvino-fp16",
        readers=("openvino",),
        maker="openvino",
        file="openvino-fp16",
        command=_openvino_command("--weight-format", "fp16"),
    ),
    Form(
        name="openvino-int8",
        readers=("openvino",),
        maker="openvino",
        file="openvino-int8",
        command=_openvino_command("--weight-format", "int8"),
    ),
    Form(
        name="openvino-int4",
        readers=("openvino",),
        maker="openvino",
        file="openvino-int4",
        command=_openvino_command("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0"),
    ),
)


def wanted_forms(peers: Iterable[str]) -> tuple[Form, ...]:
    """Return the forms that these peers read, each after its sources."""
    wanted = set(peers)
    return tuple(form for form in FORMS if wanted.intersection(form.readers))


def make_form(form: Form, manifest: Manifest, source: Path, folder: Path, log: Path) -> Path:
    """
    Make one form unless it exists, and return its path.

    Raises:
        StepFailed: The program that makes it failed.
    """
    target = folder / form.file
    if target.exists():
        return target
    unfinished = folder / f"unfinished-{form.file}"
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    folder.mkdir(parents=True, exist_ok=True)
    run_logged(form.command(manifest, source, unfinished), log)
    return unfinished.rename(target)
