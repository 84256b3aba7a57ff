"""
Deploys models of JumpStart by their ids with the SageMaker SDK 2.x, and prints one line of JSON for each part.

`python jumpstart_sdk2.py` with the environment of `headrace env`. It imports no part of Headrace.
"""

import io
import json
import tarfile
import time
from typing import Any

import boto3
from botocore.exceptions import ClientError
from sagemaker import (
    accept_types,
    content_types,
    environment_variables,
    hyperparameters,
    image_uris,
    instance_types,
    model_uris,
    serializers,
)
from sagemaker.inference_recommender.inference_recommender_mixin import ModelLatencyThreshold, Phase
from sagemaker.jumpstart.model import JumpStartModel
from sagemaker.jumpstart.notebook_utils import list_jumpstart_models
from sagemaker.model import Model
from sagemaker.parameter import CategoricalParameter
from sagemaker.predictor import retrieve_default
from sagemaker.serve import ModelBuilder
from sagemaker.serve.builder.schema_builder import SchemaBuilder
from sagemaker.utils import name_from_base

ROLE = "arn:aws:iam::000000000000:role/any"
MODEL, GATED, SOLD, VECTORS = "a-llm-small", "a-llm-gated", "cohere-gpt-medium", "a-embedding-small"
TINY = "a-llm-tiny"
BUCKET = "sagemaker-us-east-1-000000000000"


def main() -> None:
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.5))  # the SDK polls jobs once a minute
    show("listed", list_jumpstart_models("task == llm"))
    show("defaults", defaults())
    show("unknown", caught(lambda: JumpStartModel(model_id="a-llm-smal", role=ROLE)))
    show("training", caught(lambda: hyperparameters.retrieve_default(model_id=MODEL, model_version="*")))
    show("gated", caught(lambda: deploy(GATED)))
    show("sold", caught(lambda: deploy(SOLD)))
    predictors = [deploy(MODEL), deploy(GATED, accept_eula=True), deploy(VECTORS)]
    text = {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}
    bodies = {"predicted": text, "accepted": text, "embedded": {"text_inputs": ["The sea.", "A boat."]}}
    for (name, body), predictor in zip(bodies.items(), predictors, strict=True):
        boto3.client("sagemaker").get_waiter("endpoint_in_service").wait(EndpointName=predictor.endpoint_name)
        show(name, predictor.predict(body))
    attached = retrieve_default(predictors[0].endpoint_name)
    show("attached", [type(attached.serializer).__name__, attached.predict({"inputs": "The sea is"})])
    optimised, predictor = optimised_model()
    show("optimised", [optimised.model_data["S3DataSource"]["S3Uri"], optimised.env, predictor.predict(text)])
    show("sized", sized_model(optimised.image_uri, BUCKET))
    for each in (*predictors, predictor):
        each.delete_model()
        each.delete_endpoint()


def optimised_model() -> tuple[Any, Any]:
    """Quantize a model by `ModelBuilder.optimize`, and deploy it."""
    text = {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}
    builder = ModelBuilder(model=TINY, schema_builder=SchemaBuilder(text, [{"generated_text": "x"}]), role_arn=ROLE)
    model = builder.optimize(
        instance_type="ml.g5.2xlarge",
        output_path=f"s3://{BUCKET}/awq/",
        quantization_config={"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}},
        accept_eula=True,
    )
    name = name_from_base("jumpstart2")
    return model, model.deploy(initial_instance_count=1, instance_type="ml.g5.2xlarge", endpoint_name=name)


def sized_model(image: str, bucket: str) -> list[Any]:
    """Recommend an instance type for the quantized model by `right_size`."""
    payload = io.BytesIO()
    with tarfile.open(fileobj=payload, mode="w:gz") as archive:
        content = json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}).encode()
        entry = tarfile.TarInfo("payload.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    boto3.client("s3").put_object(Bucket=bucket, Key="payload.tar.gz", Body=payload.getvalue())
    source = {"S3Uri": f"s3://{bucket}/awq/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    model = Model(image_uri=image, role=ROLE, model_data={"S3DataSource": source}, name=name_from_base("jumpstart2"))
    model.right_size(
        sample_payload_url=f"s3://{bucket}/payload.tar.gz",
        supported_content_types=["application/json"],
        framework="PYTORCH",
        hyperparameter_ranges=[
            {"instance_types": CategoricalParameter(["ml.m5.large"]), "MAX_BATCH_SIZE": CategoricalParameter(["2"])}
        ],
        phases=[Phase(duration_in_seconds=1, initial_number_of_users=2, spawn_rate=1)],
        max_invocations=1_000_000,
        model_latency_thresholds=[ModelLatencyThreshold("P95", 60_000)],
        max_tests=1,
    )
    model.delete_model()
    return [
        [row["EndpointConfiguration"]["InstanceType"], row["Metrics"]["MaxInvocations"]]
        for row in model.inference_recommendations
    ]


def defaults() -> dict[str, Any]:
    named: dict[str, Any] = {"model_id": MODEL, "model_version": "2.*"}
    instance_type = instance_types.retrieve_default(**named, scope="inference")
    scope = {"region": None, "framework": None, "image_scope": "inference", "instance_type": instance_type}
    return {
        "instance_type": instance_type,
        "image": image_uris.retrieve(**named, **scope),
        "model": model_uris.retrieve(**named, model_scope="inference"),
        "environment": environment_variables.retrieve_default(**named),
        "types": [content_types.retrieve_default(**named), accept_types.retrieve_default(**named)],
        "serializer": type(serializers.retrieve_default(**named)).__name__,
    }


def deploy(model_id: str, **more: Any) -> Any:
    model = JumpStartModel(model_id=model_id, role=ROLE, name=name_from_base("jumpstart2"))
    return model.deploy(instance_type="ml.m5.xlarge", wait=False, endpoint_name=name_from_base("jumpstart2"), **more)


def caught(call: Any) -> str:
    try:
        call()
    except (ClientError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def show(name: str, value: object) -> None:
    print("\n" + json.dumps({name: value}), flush=True)


if __name__ == "__main__":
    main()
