"""
Use the SageMaker SDK 3.x with Headrace: `ModelBuilder.transformer`, a batch transform job on the lines of a file.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/batch_transform.py

The job starts a worker, and ends it with its last line. Its output has each prompt beside its answer.
"""

import json

import boto3
from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import Session, get_execution_role
from sagemaker.serve import ModelBuilder

PROMPTS = ["The sea is", "The capital of France is", "Two and two are", "Once upon a time"]
NAME, BUCKET = name_from_base("smollm2-batch3"), Session().default_bucket()
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)

body = "".join(json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 8}}) + "\n" for prompt in PROMPTS)
boto3.client("s3").put_object(Bucket=BUCKET, Key=f"{NAME}/prompts.jsonl", Body=body)

builder = ModelBuilder(
    image_uri=IMAGE,
    env_vars={"HF_MODEL_ID": "smollm2"},
    role_arn=get_execution_role(),
    instance_type="ml.g5.2xlarge",
)
model = builder.build(model_name=NAME)
transformer = builder.transformer(
    instance_count=1,
    instance_type="ml.g5.2xlarge",
    strategy="SingleRecord",
    assemble_with="Line",
    output_path=f"s3://{BUCKET}/{NAME}/out",
)
transformer.transform(
    f"s3://{BUCKET}/{NAME}/prompts.jsonl",
    content_type="application/json",
    split_type="Line",
    join_source="Input",
    wait=True,
    logs=True,
)

output = boto3.client("s3").get_object(Bucket=BUCKET, Key=f"{NAME}/out/prompts.jsonl.out")
answers = [json.loads(line) for line in output["Body"].read().splitlines()]
print(f"{len(answers)} answers to {len(PROMPTS)} prompts, joined:", sorted(answers[0]))
model.delete()
