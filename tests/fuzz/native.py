"""Targets of native code: programs of libFuzzer with sanitizers, which `scripts/fuzz --seconds` builds and runs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.libfuzzer import Launch

_SOURCES = Path(__file__).parent / "native"
_BUILD = Path("build/fuzz/native")


def purposes() -> dict[str, str]:
    """Return the first comment of each target, by name."""
    return {
        f"native-{file.stem}": file.read_text().splitlines()[0].removeprefix("// ")
        for file in sorted(_SOURCES.glob("*.cpp"))
    }


def compiler() -> str | None:
    """Return the newest clang there is; CLANGXX names another."""
    names = (os.environ.get("CLANGXX", ""), "clang++", *(f"clang++-{version}" for version in range(25, 13, -1)))
    return next((found for name in names if (found := shutil.which(name))), None)


def build() -> None:
    """Compile the targets with AddressSanitizer and UndefinedBehaviorSanitizer."""
    clang = compiler()
    if clang is None:
        sys.exit("Native targets need clang. Debian: apt-get install clang libclang-rt-14-dev; or name other targets.")
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = (
        "cmake",
        "-S",
        ".",
        "-B",
        str(_BUILD),
        "-G",
        "Ninja",
        "-DHEADRACE_FUZZ=ON",
        f"-DCMAKE_CXX_COMPILER={clang}",
    )
    subprocess.run(configure, env=os.environ | tools, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(("cmake", "--build", str(_BUILD), "--parallel"), env=os.environ | tools, check=True)


def launcher(name: str) -> Launch:
    """Return what runs the program of a target."""
    options = {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=0:max_allocation_size_mb=2048",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }

    def launch(flags: Sequence[str], log: Path) -> int:
        with log.open("wb") as file:
            command = (_BUILD / name, *flags)
            return subprocess.run(command, env=os.environ | options, stdout=file, stderr=file, check=False).returncode

    return launch
