"""
Deploys a model of JumpStart by its id with the SageMaker SDK 3.x, and prints one line of JSON for each part.

`python jumpstart_sdk3.py` with the environment of `headrace env`. It imports no part of Headrace.
"""

import json

import boto3
from sagemaker.core import image_uris, model_uris
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.jumpstart.configs import JumpStartConfig
from sagemaker.core.jumpstart.document import get_hub_content_and_document
from sagemaker.core.jumpstart.search import search_public_hub_models
from sagemaker.serve import ModelBuilder

ROLE = "arn:aws:iam::000000000000:role/any"
MODEL = "a-llm-small"


def main() -> None:
    image = image_uris.retrieve(
        framework=None,
        region="us-east-1",
        model_id=MODEL,
        model_version="*",
        image_scope="inference",
        instance_type="ml.g5.2xlarge",
    )
    show("defaults", [image, model_uris.retrieve(model_id=MODEL, model_version="*", model_scope="inference")])
    show("found", [content.hub_content_name for content in search_public_hub_models("@framework:a")])
    content, document = get_hub_content_and_document(JumpStartConfig(model_id=MODEL))
    show("document", [content.hub_content_version, document.HostingEcrUri == image, document.HostingArtifactUri])
    name = name_from_base("jumpstart3", short=True)
    builder = ModelBuilder(model=MODEL, role_arn=ROLE, instance_type="ml.m5.xlarge")
    builder.build(model_name=name)
    builder.deploy(endpoint_name=name, initial_instance_count=1, wait=False)
    client = boto3.client("sagemaker")
    client.get_waiter("endpoint_in_service").wait(EndpointName=name)
    body = json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 4}})
    answer = boto3.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=name, Body=body, ContentType="application/json"
    )
    show("predicted", json.loads(answer["Body"].read()))
    client.delete_endpoint(EndpointName=name)


def show(name: str, value: object) -> None:
    print("\n" + json.dumps({name: value}), flush=True)


if __name__ == "__main__":
    main()
