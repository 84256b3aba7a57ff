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


MakeCommand = Callable[[Manifest, Path, Path], list[str]]
"""Makes a command from the manifest, the GGUF file and the target."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to store the model."""

    name: str
    readers: tuple[str, ...]
    """The peers that need it."""
    maker: str | None
    """The peer whose environment makes it; None: Headrace does."""
    command: MakeCommand

    @property
    def file(self) -> str:
        """Name of the file or folder."""
        kind, _, format_ = self.name.partition("-")
        return f"{format_}.gguf" if kind == "gguf" else self.name


def _folder_command(manifest: Manifest, source: Path, target: Path) -> list[str]:
    return [manifest.peers["transformers"].python, "-c", _WRITE_FOLDER, str(source), str(target)]


def _w8a8_command(manifest: Manifest, source: Path, target: Path) -> list[str]:  # noqa: ARG001 - ours, not a peer's
    return [sys.executable, "-m", "headrace", "quantize", str(source), str(target)]


def _quantize_command(kind: str, *options: str) -> MakeCommand:
    def command(manifest: Manifest, source: Path, target: Path) -> list[str]:
        tools = manifest.peers["llamacpp"].tools
        return [f"{tools}/llama-quantize", "--allow-requantize", *options, str(source), str(target), kind]

    return command


def _openvino_command(*options: str) -> MakeCommand:
    def command(manifest: Manifest, source: Path, target: Path) -> list[str]:  # noqa: ARG001 - from the folder
        program = Path(manifest.peers["openvino"].python).parent / "optimum-cli"
        folder = manifest.models["hf-bf16"]
        task = ["--task", "text-generation-with-past"]
        return [str(program), "export", "openvino", "--model", folder, *task, *options, str(target)]

    return command


def _gguf(format_: str, kind: str, *options: str) -> Form:
    return Form(f"gguf-{format_}", ("llamacpp",), "llamacpp", _quantize_command(kind, *options))


def _openvino(format_: str, *options: str) -> Form:
    return Form(f"openvino-{format_}", ("openvino",), "openvino", _openvino_command("--weight-format", *options))


FORMS: tuple[Form, ...] = (
    Form("hf-bf16", ("transformers", "openvino", "vllm"), "transformers", _folder_command),
    Form("hf-w8a8", ("vllm",), None, _w8a8_command),
    _gguf("bf16", "BF16"),
    _gguf("q8_0", "Q8_0"),
    _gguf("q4_0", "Q4_0"),
    _gguf("q4_0-pure", "Q4_0", "--pure"),
    _openvino("fp16", "fp16"),
    _openvino("int8", "int8"),
    _openvino("int4", "int4", "--group-size", "64", "--ratio", "1.0"),
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
