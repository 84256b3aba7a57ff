"""
Copy the browser libraries of our pages from npm into `src/headrace/serving/http/web/vendor`, one folder per package.

`manifest.json` in that folder has each package with its version, the checksum of its archive and the files to copy; a
licence file is one of them. To update a package, change its version and run `python scripts/vendor.py --pin NAME`.

python scripts/vendor.py            download all packages, verify them and copy their files
python scripts/vendor.py --pin NAME the same for one package, and write its checksum to the manifest
python scripts/vendor.py --check    compare the copied files with the manifest, offline; exit 1 if one differs
python scripts/vendor.py --list     print each package as NAME@VERSION
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "src" / "headrace" / "serving" / "http" / "web" / "vendor"
MANIFEST = FOLDER / "manifest.json"


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def folder_of(package: dict[str, Any]) -> Path:
    """Return the folder of a package: its name, or another if that is in a scope of npm."""
    return FOLDER / str(package.get("folder", package["name"]))


def download(name: str, version: str) -> bytes:
    """Return the archive of a package."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).iterdir()
        return archive.read_bytes()


def integrity_of(archive: bytes) -> str:
    """Return the checksum of an archive as npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()


def extract(archive: bytes, package: dict[str, Any], folder: Path) -> None:
    """Copy the files of a package from its archive, and note their digests in the manifest's entry."""
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            for source, entry in package["files"].items():
                member = tar.extractfile(f"package/{source}")
                if member is None:
                    raise SystemExit(f"{package['name']}: {source} is not a file of the package.")
                data = member.read()
                target = folder / entry["to"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                entry["sha256"] = sha256(data)


def update(packages: list[dict[str, Any]], pin: str | None) -> None:
    """Download and copy all packages, or the one whose checksum is to be pinned."""
    for package in packages:
        if pin not in {None, package["name"]}:
            continue
        archive = download(package["name"], package["version"])
        found = integrity_of(archive)
        if pin is not None:
            package["integrity"] = found
        elif found != package["integrity"]:
            raise SystemExit(f"{package['name']}: the checksum is {found}; expected {package['integrity']}.")
        extract(archive, package, folder_of(package))
        print(f"{package['name']} {package['version']}: {len(package['files'])} files")
    MANIFEST.write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")


def differences(packages: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each file that differs from the manifest, is missing, or is not in it."""
    expected = {
        folder_of(package) / entry["to"]: entry["sha256"] for package in packages for entry in package["files"].values()
    }
    present = {path for path in FOLDER.rglob("*") if path.is_file() and path != MANIFEST}
    wrong = [f"{path.relative_to(FOLDER)} is not in the manifest." for path in sorted(present - expected.keys())]
    for path, digest in expected.items():
        if not path.is_file() or sha256(path.read_bytes()) != digest:
            wrong.append(f"{path.relative_to(FOLDER)} is missing or has been changed.")
    return wrong


def main() -> int:
    """Update or check the copied files."""
    parser = argparse.ArgumentParser(description="Copy browser libraries from npm.")
    parser.add_argument("--pin", metavar="NAME", help="update one package and write its checksum to the manifest")
    parser.add_argument("--check", action="store_true", help="download nothing; exit 1 if a file differs")
    parser.add_argument("--list", action="store_true", help="download nothing; print each package as NAME@VERSION")
    options = parser.parse_args()
    packages = json.loads(MANIFEST.read_text(encoding="utf-8"))
    if options.check:
        wrong = differences(packages)
        print("\n".join(wrong), end="\n" if wrong else "")
        return 1 if wrong else 0
    if options.list:
        print("\n".join(f"{package['name']}@{package['version']}" for package in packages))
        return 0
    update(packages, options.pin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
