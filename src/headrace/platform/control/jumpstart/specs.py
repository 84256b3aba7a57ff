"""
The objects of JumpStart's bucket that SageMaker SDKs read, made from rows of the catalogue: manifests and specs. Pure.

Source: `sagemaker/jumpstart/types.py` of the SDK 2.x (`JumpStartModelHeader`, `JumpStartModelSpecs`) and `cache.py`
(keys); `sagemaker/core/jumpstart` of 3.x reads the same.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.platform.cluster.instance_types import instance_families
from headrace.platform.control.jumpstart.catalogue import CatalogueRow, bucket_of
from headrace.serving.wire.aws.scope import partition_of

Json = dict[str, Any]

MANIFEST: Final = "models_manifest.json"
MARKETPLACE_MANIFEST: Final = "proprietary-sdk-manifest.json"
_MIN_SDK: Final = "2.49.0"
_ACCOUNT: Final = "763104351884"
"""Account of AWS's Deep Learning Containers; Headrace ignores the registry of an image."""
_START_TIMEOUT_S: Final = 1200
_INSTANCE_TYPES: Final = (
    *(f"ml.g5.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")),
    *(f"ml.g6.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")),
    *("ml.g6e.xlarge", "ml.g6e.12xlarge", "ml.g6e.48xlarge", "ml.g4dn.xlarge", "ml.g4dn.12xlarge"),
    *("ml.p3.2xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"),
    *("ml.c5.xlarge", "ml.c5.2xlarge", "ml.m5.xlarge", "ml.m5.2xlarge", "ml.m5.4xlarge"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The container of a row's `server`."""

    image: str
    framework: str
    payload: Json
    """The body of an example, which `retrieve_all_examples` returns."""
    environment: Mapping[str, str] = field(default_factory=dict)


_TEXT: Final = {"inputs": "The sea is", "parameters": {"max_new_tokens": 64}}
_MODEL_FOLDER: Final = {"HF_MODEL_ID": "/opt/ml/model"}
_SERVERS: Final = {
    "tgi": Server(
        image="huggingface-pytorch-tgi-inference:2.4.0-tgi2.4.0-gpu-py311-cu124-ubuntu22.04",
        framework="huggingface-llm",
        payload=_TEXT,
        environment={"ENDPOINT_SERVER_TIMEOUT": "3600", "SM_NUM_GPUS": "1", **_MODEL_FOLDER},
    ),
    "lmi": Server(
        image="djl-inference:0.36.0-lmi18.0.0-cu128",
        framework="djl-lmi",
        payload=_TEXT,
        environment=_MODEL_FOLDER,
    ),
    "embedding": Server(
        image="huggingface-pytorch-inference:2.1.0-transformers4.37.0-gpu-py310-cu118-ubuntu20.04",
        framework="huggingface",
        payload={"text_inputs": ["The sea is calm."]},
        environment={"HF_TASK": "feature-extraction", **_MODEL_FOLDER},
    ),
    "marketplace": Server(image="", framework="", payload={}),
}


def bucket_content(rows: Mapping[str, CatalogueRow], key: str, *, region: str) -> bytes | None:
    """Return an object of JumpStart's bucket of a region; None if the catalogue does not have it."""
    if key in (MANIFEST, MARKETPLACE_MANIFEST):
        return _encoded(manifest(rows.values(), of_marketplace=key == MARKETPLACE_MANIFEST))
    for row in _named(rows, key):
        if key == _eula_key(row):
            return _eula(row).encode()
        for version in row.versions:
            if key == _spec_key(row, version):
                return _encoded(model_spec(row, version, region=region))
    return None


def _named(rows: Mapping[str, CatalogueRow], key: str) -> Iterable[CatalogueRow]:
    """Return the row that a key names by its second folder or its file; empty if there is none."""
    folder, _, rest = key.partition("/")
    row = rows.get(rest.partition("/")[0] if folder != _TERMS else rest.rpartition("/")[2].removesuffix(".txt"))
    return () if row is None else (row,)


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


_TERMS: Final = "fmhMetadata"


def _eula_key(row: CatalogueRow) -> str:
    return f"{_TERMS}/eula/{row.model_id}.txt"


def _eula(row: CatalogueRow) -> str:
    return (
        f"{row.model_id} has an end-user license agreement, which Headrace does not contain. Headrace serves "
        f"{row.model} for it: read the licence on its model card.\n"
    )


def _spec_key(row: CatalogueRow, version: str) -> str:
    if row.is_marketplace:
        return f"proprietary-models/{row.model_id}/proprietary_specs_{version}.json"
    return f"community_models/{row.model_id}/specs_v{version}.json"


def manifest(rows: Iterable[CatalogueRow], *, of_marketplace: bool) -> list[Json]:
    """Return the headers of all versions of all models with open weights, or of the marketplace's."""
    return [
        {
            "model_id": row.model_id,
            "version": version,
            "min_version": _MIN_SDK,
            "spec_key": _spec_key(row, version),
            "search_keywords": keywords(row),
        }
        for row in rows
        if row.is_marketplace is of_marketplace
        for version in row.versions
    ]


def keywords(row: CatalogueRow) -> list[str]:
    """Return the keywords by which SDKs search: framework and task are the first two words of an id."""
    framework, task = [*row.model_id.split("-", 2), ""][:2]
    return [f"@framework:{framework}", f"@task:{task}", f"@model:{row.model_id}"]


def image_uri(row: CatalogueRow, region: str) -> str:
    domain = "amazonaws.com.cn" if partition_of(region) == "aws-cn" else "amazonaws.com"
    return f"{_ACCOUNT}.dkr.ecr.{region}.{domain}/{_SERVERS[row.server].image}"


def environment(row: CatalogueRow) -> dict[str, str]:
    return {**_SERVERS[row.server].environment, **row.environment}


def example(row: CatalogueRow) -> Json:
    """Return the body of an example request."""
    return _SERVERS[row.server].payload


def artifact_uri(row: CatalogueRow, version: str, region: str) -> str:
    return f"s3://{bucket_of(region, gated=row.gated)}/{row.artifact_key(version)}"


def eula_uri(row: CatalogueRow, region: str) -> str | None:
    return f"s3://{bucket_of(region, gated=False)}/{_eula_key(row)}" if row.gated else None


def instance_types(row: CatalogueRow) -> list[str]:
    """Return the supported types, the default first. All others that Headrace knows work too."""
    return list(dict.fromkeys([row.instance_type, *_INSTANCE_TYPES]))


PREDICTOR: Final = {
    "default_content_type": "application/json",
    "supported_content_types": ["application/json"],
    "default_accept_type": "application/json",
    "supported_accept_types": ["application/json"],
}
RESOURCES: Final = {"num_accelerators": 1, "min_memory_mb": 1024}
"""Of an inference component, unless `deploy` names its own: little memory, as the model may be of any size."""
VARIABLE: Final = {"type": "text", "scope": "container", "required_for_model_class": True}


def model_spec(row: CatalogueRow, version: str, *, region: str) -> Json:
    """Return the spec of one version of a model."""
    common: Json = {
        "model_id": row.model_id,
        "version": version,
        "url": model_url(row),
        "min_sdk_version": _MIN_SDK,
        "training_supported": False,
        "incremental_training_supported": False,
        "inference_vulnerable": False,
        "training_vulnerable": False,
        "deprecated": False,
        "default_inference_instance_type": row.instance_type,
        "supported_inference_instance_types": instance_types(row),
        "hosting_use_script_uri": False,
        "predictor_specs": PREDICTOR,
        "inference_environment_variables": [],
        "model_kwargs": {},
        "deploy_kwargs": {},
        "resource_name_base": row.model_id[:40].rstrip("-"),
    }
    return common | (_marketplace(row, region) if row.is_marketplace else _hosting(row, version, region))


def _hosting(row: CatalogueRow, version: str, region: str) -> Json:
    server, key = _SERVERS[row.server], row.artifact_key(version)
    image = {"regional_properties": {"image_uri": "$image"}}
    return {
        "hosting_ecr_specs": {"framework": server.framework, "framework_version": version, "py_version": "py311"},
        "hosting_artifact_key": key,
        "hosting_prepacked_artifact_key": key,
        "hosting_instance_type_variants": {
            "regional_aliases": {region: {"image": image_uri(row, region)}},
            "variants": dict.fromkeys(instance_families(), image),
        },
        "inference_environment_variables": [
            {"name": name, "default": value, **VARIABLE} for name, value in environment(row).items()
        ],
        "default_payloads": {
            "Example": {"content_type": "application/json", "accept": "application/json", "body": example(row)}
        },
        "deploy_kwargs": {
            "model_data_download_timeout": _START_TIMEOUT_S,
            "container_startup_health_check_timeout": _START_TIMEOUT_S,
        },
        "dynamic_container_deployment_supported": True,
        "hosting_resource_requirements": RESOURCES,
        "gated_bucket": row.gated,
        **({"hosting_eula_key": _eula_key(row)} if row.gated else {}),
    }


def _marketplace(row: CatalogueRow, region: str) -> Json:
    arn = f"arn:{partition_of(region)}:sagemaker:{region}:{_ACCOUNT}:model-package/{row.model_id}"
    return {
        "hosting_model_package_arns": {region: arn},
        "model_subscription_link": "https://aws.amazon.com/marketplace/machine-learning",
    }


def model_url(row: CatalogueRow) -> str:
    """Return the page of a model: that of the Hub, or empty."""
    is_hub_id = row.model.count("/") == 1 and not row.model.startswith(("/", ".", "~"))
    return f"https://huggingface.co/{row.model}" if is_hub_id else ""
