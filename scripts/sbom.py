"""
Write a software bill of materials, CycloneDX 1.6 in JSON.

python scripts/sbom.py bundled FILE              for a wheel: what it contains beside our code; CMake calls it
python scripts/sbom.py environment PYTHON FILE   for an installation: its packages, and what they say they contain

The first goes into `headrace-VERSION.dist-info/sboms` (PEP 770), where scanners find it, and the second reads it there
and from the other packages, such as the Rust crates in tokenizers. The second needs `scripts/environment supply`.
"""

import argparse
import base64
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import MetadataPathFinder
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
_VENDORED = ROOT / "src" / "headrace" / "serving" / "http" / "web" / "vendor" / "manifest.json"
_KEPT = ("type", "name", "version", "group", "description", "hashes", "licenses", "purl")
"""Fields of a component in another SBOM that are kept; references would no longer be unique."""
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) and "The SBOM is not valid CycloneDX.")
"""


def _component(name: str, version: str, licence: str, purl: str, **more: Any) -> dict[str, Any]:
    licences = [{"license": {"id": licence}}]
    return {"type": "library", "name": name, "version": version, "licenses": licences, "purl": purl, **more}


def bundled(nanobind: Path) -> Iterator[dict[str, Any]]:
    """Yield what a wheel contains beside our code: the libraries in the native module and in the web pages."""
    version = re.search(r'__version__.*= *"(.+?)"', (nanobind / "__init__.py").read_text())
    policy = (nanobind / "ext" / "robin_map" / "include" / "tsl" / "robin_growth_policy.h").read_text()
    parts = [found[1] for found in re.finditer(r"define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", policy)]
    if version is None or len(parts) != 3:
        raise ValueError(f"The version of nanobind or of its robin_map is not in {nanobind}.")
    yield _component("nanobind", version[1], "BSD-3-Clause", f"pkg:pypi/nanobind@{version[1]}")
    robin_map = ".".join(parts)
    yield _component("robin-map", robin_map, "MIT", f"pkg:github/Tessil/robin-map@v{robin_map}")
    for package in json.loads(_VENDORED.read_text()):
        algorithm, _, digest = package["integrity"].partition("-")
        hashes = [{"alg": algorithm.upper().replace("SHA", "SHA-"), "content": base64.b64decode(digest).hex()}]
        purl = f"pkg:npm/{quote(package['name'], safe='/')}@{package['version']}"
        reference = {
            "type": "distribution",
            "url": f"https://www.npmjs.com/package/{package['name']}",
            "hashes": hashes,
        }
        yield _component(package["name"], package["version"], package["licence"], purl, externalReferences=[reference])


def document(components: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the SBOM of a wheel."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    own = _component("headrace", version, "Apache-2.0", f"pkg:pypi/headrace@{version}")
    listed = [{**component, "bom-ref": component["purl"]} for component in components]
    tree = [{"ref": own["purl"], "dependsOn": [component["purl"] for component in components]}]
    tree += [{"ref": component["purl"]} for component in components]
    metadata = {"component": {**own, "bom-ref": own["purl"]}, "lifecycles": [{"phase": "build"}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": listed,
        "dependencies": tree,
    }


def contents(folders: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what the packages in folders say they contain (PEP 770), by the name of the package."""
    found: dict[str, list[dict[str, Any]]] = {}
    for package in MetadataPathFinder.find_distributions(MetadataPathFinder.Context(path=folders)):
        for file in package.files or ():
            if file.parent.name == "sboms" and file.suffix == ".json":
                read = json.loads(Path(str(package.locate_file(file))).read_text())
                inside = read.get("components", ()) if read.get("bomFormat") == "CycloneDX" else ()
                kept = [{key: part[key] for key in _KEPT if key in part} for part in inside]
                found.setdefault(package.metadata["Name"].lower(), []).extend(
                    part for part in kept if part.get("version")
                )
    return found


def environment(python: str) -> dict[str, Any]:
    """Return the SBOM of an installation."""
    tools = subprocess.run([ROOT / "scripts" / "environment", "supply"], check=True, stdout=subprocess.PIPE, text=True)
    tool = Path(tools.stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "environment.json"
        options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", file]
        subprocess.run([tool.parent / "cyclonedx-py", "environment", *options, python], check=True)
        listed = json.loads(file.read_text())
    asked = subprocess.run(
        [python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], check=True, capture_output=True
    )
    inside = contents(json.loads(asked.stdout))
    for component in [listed["metadata"]["component"], *listed["components"]]:
        if parts := inside.get(component["name"].lower()):
            unique = {json.dumps(part, sort_keys=True): part for part in parts}
            component["components"] = [unique[key] for key in sorted(unique)]
    subprocess.run([tool, "-c", _VALIDATE], input=json.dumps(listed), text=True, check=True)
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a software bill of materials.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("bundled").add_argument("file", type=Path)
    installed = kinds.add_parser("environment")
    installed.add_argument("python")
    installed.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.kind == "environment":
        result = environment(options.python)
    else:
        import nanobind

        result = document(list(bundled(Path(nanobind.__file__).parent)))
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
