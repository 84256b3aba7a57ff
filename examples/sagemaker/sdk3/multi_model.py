"""
Use the SageMaker SDK 3.x with Headrace: many models behind one endpoint, loaded when they are asked for.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/multi_model.py

Nothing here is specific to Headrace. Each model is an archive with its weights and its code.
"""

import io
import json
import tarfile

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import Endpoint, EndpointConfig, Model
from sagemaker.core.shapes import ContainerDefinition, MultiModelConfig, ProductionVariant

CODE = """
import json
from pathlib import Path


def model_fn(model_dir):
    return json.loads(Path(model_dir, "weights.json").read_text())


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(numbers, weights):
    return [number * weights["factor"] for number in numbers]


def output_fn(answer, accept):
    return json.dumps(answer)
"""
NAME = name_from_base("multi-model3")
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312-ubuntu22.04-sagemaker"


def archive(factor: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        for name, content in {"weights.json": json.dumps({"factor": factor}), "code/inference.py": CODE}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content.encode()))
    return packed.getvalue()


s3 = boto3.client("s3")
s3.create_bucket(Bucket=NAME)
for name, factor in (("double", 2), ("triple", 3)):
    s3.put_object(Bucket=NAME, Key=f"models/{name}.tar.gz", Body=archive(factor))

model = Model.create(
    model_name=NAME,
    primary_container=ContainerDefinition(
        image=IMAGE,
        mode="MultiModel",
        model_data_url=f"s3://{NAME}/models/",
        multi_model_config=MultiModelConfig(model_cache_setting="Enabled"),
    ),
    execution_role_arn=get_execution_role(),
)
variant = ProductionVariant(
    variant_name="AllTraffic",
    model_name=NAME,
    instance_type="ml.m5.large",
    initial_instance_count=1,
    initial_variant_weight=1.0,
)
config = EndpointConfig.create(endpoint_config_name=NAME, production_variants=[variant])
endpoint = Endpoint.create(endpoint_name=NAME, endpoint_config_name=config)
endpoint.wait_for_status("InService", poll=1, timeout=120)

for name in ("double", "triple"):
    answer = endpoint.invoke(body="[1, 2, 3]", content_type="application/json", target_model=f"{name}.tar.gz")
    print(f"{name}: ", json.loads(answer.body.read()))

endpoint.delete()
endpoint.wait_for_delete(poll=1, timeout=120)
config.delete()
model.delete()
