"""
Use the SageMaker SDK 3.x with Headrace: register a model by `ModelBuilder`, approve the version and deploy it.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/registry.py

Only the model's name is specific to Headrace.
"""

import json

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import Endpoint, EndpointConfig, Model, ModelPackage, ModelPackageGroup
from sagemaker.core.shapes import ContainerDefinition, ProductionVariant
from sagemaker.serve import ModelBuilder

GROUP = name_from_base("smollm2-sdk3-registry")
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
role = get_execution_role()

builder = ModelBuilder(
    image_uri=IMAGE,
    env_vars={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"},
    role_arn=role,
    instance_type="ml.g5.2xlarge",
)
builder.build(model_name=f"{GROUP}-built")
arn = builder.register(
    model_package_group_name=GROUP,
    content_types=["application/json"],
    response_types=["application/json"],
    inference_instances=["ml.g5.2xlarge"],
)
package = ModelPackage.get(model_package_name=arn)
package.update(model_approval_status="Approved")
print("version: ", package.model_package_version, package.refresh().model_approval_status)

model = Model.create(
    model_name=GROUP, primary_container=ContainerDefinition(model_package_name=arn), execution_role_arn=role
)
variant = ProductionVariant(
    variant_name="AllTraffic",
    model_name=GROUP,
    instance_type="ml.g5.2xlarge",
    initial_instance_count=1,
    initial_variant_weight=1.0,
)
config = EndpointConfig.create(endpoint_config_name=GROUP, production_variants=[variant])
endpoint = Endpoint.create(endpoint_name=GROUP, endpoint_config_name=config)
endpoint.wait_for_status("InService", poll=1, timeout=120)

answer = endpoint.invoke(
    body=json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}}),
    content_type="application/json",
)
print("answer:  ", json.loads(answer.body.read())[0]["generated_text"])

endpoint.delete()
endpoint.wait_for_delete(poll=1, timeout=120)
config.delete()
model.delete()
Model.get(model_name=f"{GROUP}-built").delete()
# `package.delete()` needs a name, which a version does not have.
boto3.client("sagemaker").delete_model_package(ModelPackageName=arn)
ModelPackageGroup.get(model_package_group_name=GROUP).delete()
