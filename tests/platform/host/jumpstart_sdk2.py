"""
Deploys models of JumpStart by their ids with the SageMaker SDK 2.x, and prints one line of JSON for each part.

`python jumpstart_sdk2.py` with the environment of `headrace env`. It imports no part of Headrace.
"""

import json
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
from sagemaker.jumpstart.model import JumpStartModel
from sagemaker.jumpstart.notebook_utils import list_jumpstart_models
from sagemaker.predictor import retrieve_default
from sagemaker.utils import name_from_base

ROLE = "arn:aws:iam::000000000000:role/any"
MODEL, GATED, SOLD, VECTORS = "a-llm-small", "a-llm-gated", "cohere-gpt-medium", "a-embedding-small"


def main() -> None:
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
    for predictor in predictors:
        predictor.delete_model()
        predictor.delete_endpoint()


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
