"""The SBOM of a wheel has what is built into it, and an audit that could not be made is no success."""

import json
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sbom, audit = load("sbom"), load("audit")


def test_the_sbom_of_a_wheel_has_the_libraries_in_its_module_and_in_its_pages() -> None:
    components = list(sbom.bundled(Path(find_spec("nanobind").origin).parent))
    manifest = json.loads((ROOT / "src/headrace/serving/http/web/vendor/manifest.json").read_text())
    found = {part["name"]: part["version"] for part in components}
    expected = {package["name"]: package["version"] for package in manifest}
    assert found.items() >= {**expected, "nanobind": version("nanobind")}.items()
    assert "robin-map" in found
    assert all((ROOT / "csrc" / "licenses" / f"{name}.txt").stat().st_size > 1000 for name in ("nanobind", "robin-map"))
    assert {part["purl"].partition("/")[0] for part in components} == {"pkg:pypi", "pkg:github", "pkg:npm"}
    document = sbom.document(components)
    assert document["dependencies"][0]["dependsOn"] == [part["bom-ref"] for part in document["components"]]


def test_the_sbom_of_an_installation_has_what_its_packages_contain(tmp_path: Path) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    (info / "sboms").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing-1.0.dist-info/sboms/a.json,,\nthing-1.0.dist-info/sboms/b.spdx.json,,\n")
    inside = {"bom-ref": "1", "type": "library", "name": "zlib", "version": "1.3"}
    (info / "sboms" / "a.json").write_text(json.dumps({"bomFormat": "CycloneDX", "components": [inside]}))
    (info / "sboms" / "b.spdx.json").write_text(json.dumps({"spdxVersion": "SPDX-2.3"}))
    assert sbom.contents([str(tmp_path)]) == {"thing": [{"type": "library", "name": "zlib", "version": "1.3"}]}


def test_an_audit_names_what_was_found_and_what_has_no_advisories() -> None:
    vulnerable = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    report = {
        "dependencies": [vulnerable, {"name": "b", "version": "1", "vulns": []}, {"name": "c", "skip_reason": "?"}]
    }
    assert audit.findings(report) == ["a 1: PYSEC-1, fixed in 2"]
    assert audit.unread(report) == ["c"]
