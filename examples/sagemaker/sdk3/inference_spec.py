"""
Use the SageMaker SDK 3.x with Headrace: `ModelBuilder` with an inference spec, your own class, as an endpoint.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/inference_spec.py

The SDK writes the `inference.py` of the endpoint, which imports the SDK: `PYTHON_EXECUTABLE` lets it run in the
environment of this script.
"""

import json
import sys
import tempfile
from pathlib import Path

from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import EndpointConfig
from sagemaker.serve import InferenceSpec, ModelBuilder, ModelServer
from sagemaker.serve.builder.schema_builder import SchemaBuilder

NAME = name_from_base("greeter-spec")
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312-ubuntu22.04-sagemaker"


class Greeter(InferenceSpec):
    """A model that is a file with a word."""

    def load(self, model_dir):
        """Return the model."""
        return Path(model_dir, "greeting.txt").read_text()

    def invoke(self, input_object, model):
        """Return the prediction for the decoded body of a request."""
        return {"text": f"{model}, {input_object['name']}"}


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "greeting.txt").write_text("Hello")
    builder = ModelBuilder(
        inference_spec=Greeter(),
        schema_builder=SchemaBuilder({"name": "you"}, {"text": "Hello, you"}),
        model_server=ModelServer.TORCHSERVE,
        model_path=folder,
        image_uri=IMAGE,
        dependencies={"auto": False},
        env_vars={"PYTHON_EXECUTABLE": sys.executable},
        role_arn=get_execution_role(),
        instance_type="ml.c5.xlarge",
    )
    model = builder.build(model_name=NAME)
    endpoint = builder.deploy(endpoint_name=NAME, initial_instance_count=1)

for name in ("sea", "river"):
    answer = endpoint.invoke(body=json.dumps({"name": name}), content_type="application/json")
    print("answer:", json.loads(answer.body.read())["text"])

endpoint.delete()
EndpointConfig.get(endpoint_config_name=NAME).delete()
model.delete()
