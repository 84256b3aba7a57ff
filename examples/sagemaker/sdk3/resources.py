"""
Use the SageMaker SDK 3.x with Headrace: its resource classes.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/resources.py

Only the model's name is specific to Headrace.
"""

import json

from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import Endpoint, EndpointConfig, Model
from sagemaker.core.shapes import ContainerDefinition, ProductionVariant

NAME = name_from_base("smollm2-resources")
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
    production_variants=[
        ProductionVariant(
            variant_name="AllTraffic",
            model_name=NAME,
            instance_type="ml.g5.2xlarge",
            initial_instance_count=1,
            initial_variant_weight=1.0,
        )
    ],
)
endpoint = Endpoint.create(endpoint_name=NAME, endpoint_config_name=config)
endpoint.wait_for_status("InService", poll=1, timeout=120)

answer = endpoint.invoke(
    body=json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}}),
    content_type="application/json",
)
print("at once: ", json.loads(answer.body.read())[0]["generated_text"])

print("found:   ", [endpoint.endpoint_name for endpoint in Endpoint.get_all(name_contains=NAME)])

endpoint.delete()
endpoint.wait_for_delete(poll=1, timeout=120)
config.delete()
model.delete()
