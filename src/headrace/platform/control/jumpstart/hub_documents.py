"""
The hub content of a model of JumpStart, as the operations on `SageMakerPublicHub` return it. Pure.

Source: `HubContentDocument` in `sagemaker/core/jumpstart/models.py` of the SDK 3.x.
"""

import json
from typing import Any, Final

from headrace.platform.control.jumpstart import specs
from headrace.platform.control.jumpstart.catalogue import CatalogueRow
from headrace.serving.wire.aws.scope import partition_of

Json = dict[str, Any]

PUBLIC_HUB: Final = "SageMakerPublicHub"
_SCHEMA_VERSION: Final = "2.4.0"


def hub_arn(region: str) -> str:
    return f"arn:{partition_of(region)}:sagemaker:{region}:aws:hub/{PUBLIC_HUB}"


def hub_summary(region: str, *, created_s: float) -> Json:
    """Return the members that DescribeHub and the summaries of ListHubs share."""
    return {
        "HubName": PUBLIC_HUB,
        "HubArn": hub_arn(region),
        "HubDisplayName": PUBLIC_HUB,
        "HubDescription": "The models in Headrace's catalogue of JumpStart.",
        "HubSearchKeywords": [],
        "HubStatus": "InService",
        "CreationTime": created_s,
        "LastModifiedTime": created_s,
    }


def content_summary(row: CatalogueRow, version: str, region: str, *, created_s: float) -> Json:
    """Return the members that DescribeHubContent and the summaries of lists share."""
    content = f"hub-content/{PUBLIC_HUB}/Model/{row.model_id}/{version}"
    return {
        "HubContentName": row.model_id,
        "HubContentArn": f"arn:{partition_of(region)}:sagemaker:{region}:aws:{content}",
        "HubContentVersion": version,
        "HubContentType": "Model",
        "DocumentSchemaVersion": _SCHEMA_VERSION,
        "HubContentDisplayName": row.model_id,
        "HubContentDescription": _description(row),
        "SupportStatus": "Supported",
        "HubContentSearchKeywords": specs.keywords(row),
        "HubContentStatus": "Available",
        "CreationTime": created_s,
    }


def _description(row: CatalogueRow) -> str:
    return "A proprietary model of AWS Marketplace." if row.is_marketplace else f"Served from {row.model}."


def content(row: CatalogueRow, version: str, region: str, *, created_s: float) -> Json:
    """Return the members of the result of DescribeHubContent."""
    return {
        **content_summary(row, version, region, created_s=created_s),
        "HubName": PUBLIC_HUB,
        "HubArn": hub_arn(region),
        "HubContentMarkdown": _description(row),
        "HubContentDocument": json.dumps(_document(row, version, region)),
        "LastModifiedTime": created_s,
    }


def _document(row: CatalogueRow, version: str, region: str) -> Json:
    spec = specs.model_spec(row, version, region=region)
    framework, task = (keyword.partition(":")[2] for keyword in specs.keywords(row)[:2])
    return {
        "Url": spec["url"],
        "MinSdkVersion": spec["min_sdk_version"],
        "ModelTypes": ["PROPRIETARY" if row.is_marketplace else "OPEN_WEIGHTS"],
        "TrainingSupported": False,
        "IncrementalTrainingSupported": False,
        "Task": task,
        "Framework": framework,
        "DefaultInferenceInstanceType": spec["default_inference_instance_type"],
        "SupportedInferenceInstanceTypes": spec["supported_inference_instance_types"],
        "SageMakerSdkPredictorSpecifications": _camel(spec["predictor_specs"]),
        "InferenceEnvironmentVariables": [_camel(variable) for variable in spec["inference_environment_variables"]],
        "ResourceNameBase": spec["resource_name_base"],
        **(_subscription(spec, region) if row.is_marketplace else _hosting(row, spec, region)),
    }


def _hosting(row: CatalogueRow, spec: Json, region: str) -> Json:
    image, eula = specs.image_uri(row, region), specs.eula_uri(row, region)
    properties = {"Properties": {"ImageUri": image}}
    example = spec["default_payloads"]["Example"]
    return {
        "GatedBucket": row.gated,
        **({"HostingEulaUri": eula} if eula else {}),
        "HostingEcrUri": image,
        "HostingArtifactUri": specs.artifact_uri(row, spec["version"], region),
        "HostingArtifactS3DataType": "S3Prefix",
        "HostingArtifactCompressionType": "None",
        "HostingUseScriptUri": False,
        "HostingInstanceTypeVariants": {
            "Variants": dict.fromkeys(spec["hosting_instance_type_variants"]["variants"], properties)
        },
        "DefaultPayloads": {"Example": {"ContentType": example["content_type"], "Body": json.dumps(example["body"])}},
        "DynamicContainerDeploymentSupported": True,
        "HostingResourceRequirements": _camel(spec["hosting_resource_requirements"]),
        **_camel(spec["deploy_kwargs"]),
    }


def _subscription(spec: Json, region: str) -> Json:
    return {
        "HostingModelPackageArn": spec["hosting_model_package_arns"][region],
        "ModelSubscriptionLink": spec["model_subscription_link"],
    }


def _camel(members: Json) -> Json:
    """Return members in AWS's spelling: `min_memory_mb` becomes `MinMemoryMb`."""
    return {"".join(word.capitalize() for word in name.split("_")): value for name, value in members.items()}
