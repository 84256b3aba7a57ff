"""
Use the SageMaker SDK 3.x with Headrace: an inference component, with its resource classes.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/components.py

Only the model's name is specific to Headrace.
"""

import json

from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import Endpoint, EndpointConfig, InferenceComponent, Model
from sagemaker.core.shapes import (
    ContainerDefinition,
    InferenceComponentComputeResourceRequirements,
    InferenceComponentRuntimeConfig,
    InferenceComponentSpecification,
    ProductionVariant,
)

NAME = name_from_base("smollm2-sdk3-component")
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
role = get_execution_role()

model = Model.create(
    model_name=NAME,
    primary_container=ContainerDefinition(
        image=IMAGE, environment={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"}
    ),
    execution_role_arn=role,
)
config = EndpointConfig.create(
    endpoint_config_name=NAME,
    execution_role_arn=role,
    production_variants=[
        ProductionVariant(variant_name="AllTraffic", instance_type="ml.p3.8xlarge", initial_instance_count=1)
    ],
)
endpoint = Endpoint.create(endpoint_name=NAME, endpoint_config_name=config)
endpoint.wait_for_status("InService", poll=1, timeout=120)

component = InferenceComponent.create(
    inference_component_name=NAME,
    endpoint_name=endpoint,
    variant_name="AllTraffic",
    specification=InferenceComponentSpecification(
        model_name=NAME,
        compute_resource_requirements=InferenceComponentComputeResourceRequirements(
            number_of_accelerator_devices_required=1, number_of_cpu_cores_required=6, min_memory_required_in_mb=1024
        ),
    ),
    runtime_config=InferenceComponentRuntimeConfig(copy_count=1),
)
component.wait_for_status("InService", poll=1, timeout=120)

answer = endpoint.invoke(
    body=json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}}),
    content_type="application/json",
    inference_component_name=NAME,
)
print("at once: ", json.loads(answer.body.read())[0]["generated_text"])

component.update_runtime_configs(InferenceComponentRuntimeConfig(copy_count=2))
component.wait_for_status("InService", poll=1, timeout=120)
component.refresh()
print("copies:  ", component.runtime_config.current_copy_count)
print(
    "found:   ",
    [component.inference_component_name for component in InferenceComponent.get_all(endpoint_name_equals=NAME)],
)

component.delete()
component.wait_for_delete(poll=1, timeout=120)
endpoint.delete()
endpoint.wait_for_delete(poll=1, timeout=120)
config.delete()
model.delete()
