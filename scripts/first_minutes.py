"""
Time a new user's first minutes: from a clone, and from a wheel, to the first answer of a model.

python scripts/first_minutes.py                       both ways, at HEAD; prints a table
python scripts/first_minutes.py clone --commit v0.1   one way, at another commit

Each way starts with an empty home, so without caches of pip, Headrace or models, in a temporary folder of this machine:
the compiler and Python are those of the system. CPU seconds include those of child processes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUESTION = "What is the capital of France?"
PASSED_ON = ("CXX", "HEADRACE_PYTHON", "PATH", "TERM")
PREFIXES = ("PIP_", "SSL_", "http_", "https_", "HTTP_", "HTTPS_", "NO_PROXY", "REQUESTS_")

Step = tuple[str, list[str]]


def clone_steps(source: str, commit: str) -> list[Step]:
    """Return the steps of a user with a compiler."""
    clone = ["sh", "-c", 'git clone --quiet "$0" headrace && git -C headrace checkout --quiet "$1"', source, commit]
    return [("`git clone`", clone), ("`scripts/demo --check`", ["headrace/scripts/demo", "--check"])]


def wheel_steps(source: str, commit: str) -> list[Step]:
    """Return the steps of a user with a wheel; the first two stand for those who build and publish it."""
    generate = ["venv/bin/headrace", "generate", "smollm2", "-p", QUESTION, "--max-new-tokens", "16"]
    return [
        ("`python3 -m venv`", ["python3", "-m", "venv", "venv"]),
        clone_steps(source, commit)[0],
        (
            "build the wheel, all kernels",
            ["sh", "-c", "CMAKE_ARGS=-DHEADRACE_KERNELS=all venv/bin/pip wheel --quiet --no-deps ./headrace"],
        ),
        ("`pip install` of the wheel", ["sh", "-c", "venv/bin/pip install --quiet ./headrace-*.whl"]),
        ("`headrace doctor`", ["venv/bin/headrace", "doctor"]),
        ("`headrace generate smollm2`, first time", generate),
        ("`headrace generate smollm2`, again", generate),
    ]


def timed(step: Step, folder: Path, home: Path) -> str:
    """Run a step and return its row of the table; exit with its output if it fails."""
    title, command = step
    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith(PREFIXES)}
    started_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wall_s, after = time.monotonic() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{title} ended with exit code {done.returncode}:\n{done.stdout.decode()}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"| {title} | {wall_s:.1f} | {cpu_s:.1f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the ways and print a table for each."""
    ways = {"clone": clone_steps, "wheel": wheel_steps}
    parser = argparse.ArgumentParser(description="Time a new user's first minutes.")
    parser.add_argument("ways", nargs="*", choices=[[], *ways], help="default: both")
    parser.add_argument("--commit", default="HEAD")
    options = parser.parse_args(arguments)
    commit = subprocess.check_output(["git", "rev-parse", options.commit], cwd=ROOT, text=True).strip()
    for way in options.ways or ways:
        print(f"\n{way}, {commit[:8]}, {time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}\n")
        print("| step | seconds | CPU seconds |\n|---|---:|---:|")
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder, "home")
            home.mkdir()
            for step in ways[way](str(ROOT), commit):
                print(timed(step, Path(folder), home), flush=True)


if __name__ == "__main__":
    main()
