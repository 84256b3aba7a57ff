"""
Validate KubeRay's RayClusters in manifests, which kubernetes-validate knows nothing about.

Their own fields are checked by `raycluster.schema.json`, their pod templates by the schema of Kubernetes. Needs the
packages of `scripts/environment deploy`: `scripts/check-deploy` calls it. Exit 1 if one is wrong, or none was found.

python scripts/check_raycluster.py FILE...
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

SCHEMA = json.loads((Path(__file__).parent / "raycluster.schema.json").read_text(encoding="utf-8"))


def pod_templates(cluster: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the template of each group as an object of the kind PodTemplate."""
    spec = cluster["spec"]
    for group in [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]:
        name = group.get("groupName", "head")
        yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": group["template"]}


def check(cluster: dict[str, Any]) -> None:
    """Raise a ValidationError if a RayCluster or one of its pod templates does not match."""
    jsonschema.validate(cluster, SCHEMA)
    for template in pod_templates(cluster):
        kubernetes_validate.validate(template, kubernetes_validate.latest_version(), strict=True)


def main() -> int:
    """Check the RayClusters of all files."""
    found = 0
    for path in sys.argv[1:]:
        documents = yaml.safe_load_all(Path(path).read_text(encoding="utf-8"))
        for cluster in (document for document in documents if document["kind"] == "RayCluster"):
            found += 1
            try:
                check(cluster)
            except jsonschema.ValidationError as error:
                print(f"{path}: {error.json_path}: {error.message}", file=sys.stderr)
                return 1
            print(f"INFO {path} passed for resource raycluster/{cluster['metadata']['name']}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
