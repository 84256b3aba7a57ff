"""The version of the AWS CLI on the path, as old versions ignore `AWS_ENDPOINT_URL` and call AWS."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_FIRST = {1: (1, 29), 2: (2, 13)}
"""The first versions that read the variable. Source: AWS SDKs reference guide, "Service-specific endpoints"."""
_INSTALLED = re.compile(r"/aws-cli/v2/(\d+)\.(\d+)[^/]*/")
_PACKAGE = re.compile(r"awscli-(\d+)\.(\d+)[^/]*\.(?:dist|egg)-info")


def too_old(path: str | None = None) -> str | None:
    """
    Return the version of an AWS CLI that ignores `AWS_ENDPOINT_URL`; None if there is none or its version is unknown.

    The version is read from files, because `aws --version` takes a second.
    """
    program = shutil.which("aws", path=path)
    found = None if program is None else next(_versions(Path(program)), None)
    if found is None or found >= _FIRST.get(found[0], found):
        return None
    return ".".join(map(str, found))


def _versions(program: Path) -> Iterator[tuple[int, int]]:
    """Yield the versions in the paths of a program: of AWS's installer, and of packages for its Python."""
    resolved = program.resolve()
    if match := _INSTALLED.search(str(resolved)):
        yield int(match[1]), int(match[2])
    for library in (resolved.parent.parent / "lib").glob("python3*"):
        for packages in ("site-packages", "dist-packages"):
            for entry in (library / packages).glob("awscli-*-info"):
                if match := _PACKAGE.fullmatch(entry.name):
                    yield int(match[1]), int(match[2])
