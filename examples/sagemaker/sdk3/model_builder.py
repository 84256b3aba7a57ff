"""
Use the SageMaker SDK 3.x with Headrace: `ModelBuilder`, from an image and the name of a model to an endpoint.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/model_builder.py

Without `s3_model_data_url` the SDK makes up a prefix and uploads nothing there: the model that `HF_MODEL_ID` names is
served. The SDK itself sleeps for 30 seconds between two polls of an endpoint. Its
`Endpoint.invoke_with_response_stream` fails against every server (`'EventStream' object has no attribute 'get'`):
boto3 streams.
"""

import json

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import EndpointConfig
from sagemaker.serve import ModelBuilder

NAME = name_from_base("smollm2-builder")
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)

builder = ModelBuilder(
    image_uri=IMAGE,
    env_vars={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"},
    role_arn=get_execution_role(),
    instance_type="ml.g5.2xlarge",
)
model = builder.build(model_name=NAME)
endpoint = builder.deploy(endpoint_name=NAME, initial_instance_count=1)

body = {"inputs": "The sea is", "parameters": {"max_new_tokens": 12}}
answer = endpoint.invoke(body=json.dumps(body), content_type="application/json")
print("at once: ", json.loads(answer.body.read())[0]["generated_text"])

response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=NAME, Body=json.dumps({**body, "stream": True}), ContentType="application/json"
)
parts = b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"])
events = [json.loads(line.removeprefix(b"data:")) for line in parts.splitlines() if line.startswith(b"data:")]
print("streamed:", "".join(event["token"]["text"] for event in events))

endpoint.delete()
EndpointConfig.get(endpoint_config_name=NAME).delete()
model.delete()
