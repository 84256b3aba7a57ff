"""
Use the SageMaker SDK 3.x with Headrace: `ModelBuilder` with a list of models makes an inference pipeline of them.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/pipeline.py

Only the model's name is specific to Headrace.
"""

import io
import json
import tarfile

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import Session, get_execution_role
from sagemaker.core.resources import EndpointConfig, Model
from sagemaker.core.shapes import ContainerDefinition
from sagemaker.serve import ModelBuilder

NAME = name_from_base("smollm2-pipeline")
CODE_IMAGE = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3"
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
PROMPT = b"""
import json
def model_fn(model_dir):
    return "{} is"
def transform_fn(template, data, content_type, accept):
    inputs = template.format(json.loads(data)["topic"])
    return json.dumps({"inputs": inputs, "parameters": {"max_new_tokens": 12}}), "application/json"
"""

role, bucket = get_execution_role(), Session().default_bucket()
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    entry = tarfile.TarInfo("code/inference.py")
    entry.size = len(PROMPT)
    tar.addfile(entry, io.BytesIO(PROMPT))
boto3.client("s3").put_object(Bucket=bucket, Key=f"{NAME}/prompt.tar.gz", Body=packed.getvalue())

containers = {
    "prompt": ContainerDefinition(image=CODE_IMAGE, model_data_url=f"s3://{bucket}/{NAME}/prompt.tar.gz"),
    "chat": ContainerDefinition(image=IMAGE, environment={"HF_MODEL_ID": "smollm2", "MAX_TOTAL_TOKENS": "2048"}),
}
models = [
    Model.create(model_name=f"{NAME}-{name}", primary_container=container, execution_role_arn=role)
    for name, container in containers.items()
]
builder = ModelBuilder(model=models, role_arn=role, instance_type="ml.g5.2xlarge")
pipeline = builder.build(model_name=NAME)
endpoint = builder.deploy(endpoint_name=NAME, initial_instance_count=1)

answer = endpoint.invoke(body=json.dumps({"topic": "The sea"}), content_type="application/json")
print("answer:  ", json.loads(answer.body.read())[0]["generated_text"])

endpoint.delete()
EndpointConfig.get(endpoint_config_name=NAME).delete()
for model in (pipeline, *models):
    model.delete()
