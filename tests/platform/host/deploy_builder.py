"""
Deploys model objects by `ModelBuilder` of the SageMaker SDK 3.x, invokes them, and prints one line of JSON each.

`python deploy_builder.py FOLDER` with the environment of `headrace env`. It imports no part of Headrace.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import torch
from sagemaker.core.common_utils import name_from_base
from sagemaker.serve import ModelBuilder, ModelServer
from sagemaker.serve.builder.schema_builder import SchemaBuilder
from sklearn.linear_model import LinearRegression
from transformers import BertConfig, BertForTokenClassification, BertTokenizer
from xgboost import XGBRegressor

ROLE = "arn:aws:iam::000000000000:role/any"
REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
IMAGES = {
    "sklearn": "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3",
    "xgboost": "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1",
    "pytorch": f"{REGISTRY}/pytorch-inference:2.6.0-cpu-py312-ubuntu22.04-sagemaker",
    "huggingface": f"{REGISTRY}/huggingface-pytorch-inference:2.6.0-transformers4.49.0-cpu-py312-ubuntu22.04",
}
ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


def main(folder: Path) -> None:
    made = {
        "sklearn": of_object("sklearn", LinearRegression().fit(ROWS, [3, 7]), folder),
        "xgboost": of_object("xgboost", XGBRegressor(n_estimators=50, max_depth=2).fit(ROWS, [3, 7]), folder),
        "pytorch": of_object("pytorch", torch_model(), folder),
        "huggingface": of_name("huggingface", token_classifier(folder / "classifier")),
    }
    deployed = {name: deploy(name, builder) for name, builder in made.items()}
    client = boto3.client("sagemaker")
    for name, endpoint in deployed.items():
        client.get_waiter("endpoint_in_service").wait(EndpointName=endpoint)
        print("\n" + json.dumps({name: invoke(endpoint, made[name].schema_builder)}), flush=True)
    for endpoint in deployed.values():
        client.delete_endpoint(EndpointName=endpoint)
        client.delete_endpoint_config(EndpointConfigName=endpoint)
        client.delete_model(ModelName=endpoint)


def torch_model() -> torch.nn.Module:
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.fill_(2)
        module.bias.fill_(1)
    return module


def token_classifier(folder: Path) -> Path:
    """Write a model of transformers with random weights."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForTokenClassification(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def of_object(name: str, model: Any, folder: Path) -> ModelBuilder:
    is_torch = name == "pytorch"
    rows = torch.from_numpy(ROWS) if is_torch else ROWS
    return ModelBuilder(
        model=model,
        schema_builder=SchemaBuilder(rows, model(rows).detach() if is_torch else model.predict(rows)),
        model_server=ModelServer.TORCHSERVE,
        model_path=str(folder / name),
        image_uri=IMAGES[name],
        dependencies={"auto": False},
        env_vars={"PYTHON_EXECUTABLE": sys.executable},
        role_arn=ROLE,
        instance_type="ml.c5.xlarge",
    )


def of_name(name: str, model: Path) -> ModelBuilder:
    """Return a builder of nothing but an image and a name, for which the SDK makes up an S3 prefix without objects."""
    variables = {"HF_MODEL_ID": str(model), "HF_TASK": "token-classification"}
    return ModelBuilder(image_uri=IMAGES[name], env_vars=variables, role_arn=ROLE, instance_type="ml.c5.xlarge")


def deploy(name: str, builder: ModelBuilder) -> str:
    endpoint = name_from_base(f"builder-{name}", short=True)
    builder.build(model_name=endpoint)
    builder.deploy(endpoint_name=endpoint, initial_instance_count=1, wait=False)
    return endpoint


def invoke(endpoint: str, schema: SchemaBuilder | None) -> Any:
    """Send the rows as the SDK serializes them; without a schema, a text."""
    runtime = boto3.client("sagemaker-runtime")
    if schema is None:
        body = json.dumps({"inputs": "good bad"})
        answer = runtime.invoke_endpoint(EndpointName=endpoint, Body=body, ContentType="application/json")
        return [entity["word"] for entity in json.loads(answer["Body"].read())]
    serializer, accept = schema.input_serializer, schema.output_serializer.CONTENT_TYPE
    answer = runtime.invoke_endpoint(
        EndpointName=endpoint,
        Body=serializer.serialize(schema.sample_input),
        ContentType=serializer.CONTENT_TYPE,
        Accept=accept,
    )
    values = schema.output_deserializer.deserialize(io.BytesIO(answer["Body"].read()), accept)
    numbers = np.ravel(values.detach() if isinstance(values, torch.Tensor) else values)
    return [round(float(number), 1) for number in numbers]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
