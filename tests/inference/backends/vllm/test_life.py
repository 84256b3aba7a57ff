"""
Servers whose vLLM does not start.

`tests/platform/host/test_vllm.py` kills and stops the processes of one that runs, and of one that starts.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.inference.backends.vllm.support import FLAGS, vllm_environment, vllm_python
from tests.parity.checkpoints import write_checkpoint
from tests.waiting import WAIT_S

pytestmark = pytest.mark.timeout(1200)

ARGUMENTS = (*FLAGS, "--max-model-len", "128")


def test_an_unknown_architecture_and_too_little_memory_stop_the_start_with_a_sentence(tmp_path: Path) -> None:
    tiny, broken = tmp_path / "tiny", tmp_path / "broken"
    write_checkpoint("llama", tiny)
    shutil.copytree(tiny, broken)
    config = json.loads((tiny / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["MadeUpForCausalLM"]}))
    unknown, too_little = failures(tmp_path, serve_arguments(broken), serve_arguments(tiny, "--kv-cache-bytes", "1KiB"))
    assert "MadeUpForCausalLM" in unknown
    assert "Lower max_model_len or kv_cache_bytes" in too_little


def serve_arguments(model: Path, *flags: str) -> list[str]:
    return ["serve", str(model), "--port", "0", *ARGUMENTS, *flags]


ONE_AFTER_ANOTHER = """
import json, sys
from headrace.tools.cli.main import cli
for arguments in json.loads(sys.argv[1]):
    try:
        cli(arguments, prog_name="headrace")
    except SystemExit as end:
        assert end.code == 2, end.code
"""
"""Runs commands that fail in one process, which imports vLLM once."""


def failures(folder: Path, *commands: list[str]) -> list[str]:
    """Start servers that cannot run; return their errors."""
    program = [vllm_python(), "-c", ONE_AFTER_ANOTHER, json.dumps(commands)]
    ended = subprocess.run(program, env=vllm_environment(folder), capture_output=True, text=True, timeout=3 * WAIT_S)
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
