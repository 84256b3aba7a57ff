"""
Use the SageMaker SDK 3.x with Headrace: an inference experiment, which tries a second model in the shadow of the first.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/shadow_test.py

Only the model's name is specific to Headrace. `InferenceExperiment.stop` of the SDK passes no actions: boto3 does.
"""

import json
import time

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import Session, get_execution_role
from sagemaker.core.resources import Endpoint, EndpointConfig, InferenceExperiment, Model
from sagemaker.core.shapes import (
    ContainerDefinition,
    InferenceExperimentDataStorageConfig,
    ModelInfrastructureConfig,
    ModelVariantConfig,
    ProductionVariant,
    RealTimeInferenceConfig,
    ShadowModeConfig,
    ShadowModelVariantConfig,
)

NAME = name_from_base("smollm2-shadow")
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
role, bucket = get_execution_role(), Session().default_bucket()
models = [
    Model.create(
        model_name=f"{NAME}-{kind}",
        primary_container=ContainerDefinition(image=IMAGE, environment={"HF_MODEL_ID": "smollm2"}),
        execution_role_arn=role,
    )
    for kind in ("now", "next")
]
config = EndpointConfig.create(
    endpoint_config_name=NAME,
    production_variants=[
        ProductionVariant(
            variant_name="Now", model_name=f"{NAME}-now", instance_type="ml.m5.large", initial_instance_count=1
        )
    ],
)
endpoint = Endpoint.create(endpoint_name=NAME, endpoint_config_name=config)
endpoint.wait_for_status("InService", poll=1, timeout=120)

infrastructure = ModelInfrastructureConfig(
    infrastructure_type="RealTimeInference",
    real_time_inference_config=RealTimeInferenceConfig(instance_type="ml.m5.large", instance_count=1),
)
experiment = InferenceExperiment.create(
    name=NAME,
    type="ShadowMode",
    role_arn=role,
    endpoint_name=NAME,
    model_variants=[
        ModelVariantConfig(model_name=f"{NAME}-{kind.lower()}", variant_name=kind, infrastructure_config=infrastructure)
        for kind in ("Now", "Next")
    ],
    shadow_mode_config=ShadowModeConfig(
        source_model_variant_name="Now",
        shadow_model_variants=[ShadowModelVariantConfig(shadow_model_variant_name="Next", sampling_percentage=100)],
    ),
    data_storage_config=InferenceExperimentDataStorageConfig(destination=f"s3://{bucket}/{NAME}"),
)
experiment.wait_for_status("Running", poll=1, timeout=120)

body = json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}})
answer = endpoint.invoke(body=body, content_type="application/json")
print("answered by:", answer.invoked_production_variant)

boto3.client("sagemaker").stop_inference_experiment(
    Name=NAME, ModelVariantActions={"Now": "Remove", "Next": "Promote"}, DesiredState="Completed"
)
experiment.wait_for_status("Completed", poll=1, timeout=120)
answer = endpoint.invoke(body=body, content_type="application/json")
print("then by:    ", answer.invoked_production_variant)

s3, captured = boto3.client("s3"), set()
while len(captured) < 2:  # what both variants were asked is written a little later
    time.sleep(1)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{NAME}/{NAME}/").get("Contents", [])
    captured = {item["Key"].split("/")[2] for item in found}
print("captured:   ", sorted(captured))

experiment.delete()
endpoint.refresh()
EndpointConfig.get(endpoint_config_name=endpoint.endpoint_config_name).delete()
endpoint.delete()
endpoint.wait_for_delete(poll=1, timeout=120)
config.delete()
for model in models:
    model.delete()
