"""
Deploys a model of JumpStart by its id with the SageMaker SDK 3.x, and prints one line of JSON for each part.

`python jumpstart_sdk3.py` with the environment of `headrace env`. It imports no part of Headrace.
"""

import json
import time

import boto3
from sagemaker.core import image_uris, model_uris
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.jumpstart.configs import JumpStartConfig
from sagemaker.core.jumpstart.document import get_hub_content_and_document
from sagemaker.core.jumpstart.search import search_public_hub_models
from sagemaker.serve import ModelBuilder
from sagemaker.serve.ai_inference_recommender import start_benchmark
from sagemaker.serve.builder.schema_builder import SchemaBuilder

ROLE = "arn:aws:iam::000000000000:role/any"
MODEL = "a-llm-small"


def main() -> None:
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.5))  # the SDK polls endpoints every 30 seconds
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
    show("optimised", optimised(name_from_base("jumpstart3-awq", short=True)))
    job = start_benchmark(
        name, tokenizer="any", request_count=3, prompt_input_tokens_mean=16, output_tokens_mean=4, role=ROLE
    )
    measured = job.show_result().metrics
    show("measured", [measured.get("request_count").avg, measured.time_to_first_token.p50])
    client.delete_endpoint(EndpointName=name)


def optimised(name: str) -> str:
    """Quantize a model by `ModelBuilder.optimize`, deploy it, and return its answer."""
    text = {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}
    schema = SchemaBuilder(text, [{"generated_text": "x"}])
    builder = ModelBuilder(model="a-llm-tiny", schema_builder=schema, role_arn=ROLE, instance_type="ml.g5.2xlarge")
    builder.optimize(
        model_name=name,
        instance_type="ml.g5.2xlarge",
        output_path=f"s3://sagemaker-us-east-1-000000000000/{name}/",
        quantization_config={"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}},
        accept_eula=True,
    )
    endpoint = builder.deploy(endpoint_name=name, initial_instance_count=1, wait=False)
    boto3.client("sagemaker").get_waiter("endpoint_in_service").wait(EndpointName=name)
    answer = endpoint.invoke(body=json.dumps(text), content_type="application/json").body.read()
    endpoint.delete()
    return str(json.loads(answer)["generated_text"])


def show(name: str, value: object) -> None:
    print("\n" + json.dumps({name: value}), flush=True)


if __name__ == "__main__":
    main()
