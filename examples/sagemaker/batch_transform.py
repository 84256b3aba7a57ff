"""
Use the SageMaker SDK with Headrace: a batch transform job, which answers all lines of a file on S3.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/batch_transform.py

Only the model's name is specific to Headrace. The job starts a worker, and ends it with its last line.
"""

import json

import boto3
import sagemaker
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri

PROMPTS = ["The sea is", "The capital of France is", "Two and two are", "Once upon a time"]

session = sagemaker.Session()
name, bucket = sagemaker.utils.name_from_base("smollm2-batch"), session.default_bucket()
body = "".join(json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 8}}) + "\n" for prompt in PROMPTS)
boto3.client("s3").put_object(Bucket=bucket, Key=f"{name}/prompts.jsonl", Body=body)

model = HuggingFaceModel(
    name=name,
    role=sagemaker.get_execution_role(),
    image_uri=get_huggingface_llm_image_uri("huggingface", version="1.0.3"),
    env={"HF_MODEL_ID": "smollm2"},
)
transformer = model.transformer(
    instance_count=1,
    instance_type="ml.g5.2xlarge",
    strategy="SingleRecord",
    assemble_with="Line",
    output_path=f"s3://{bucket}/{name}/out",
)
transformer.transform(
    f"s3://{bucket}/{name}/prompts.jsonl", content_type="application/json", split_type="Line", wait=True, logs=True
)

output = boto3.client("s3").get_object(Bucket=bucket, Key=f"{name}/out/prompts.jsonl.out")
answers = [json.loads(line) for line in output["Body"].read().splitlines()]
print(f"{len(answers)} answers to {len(PROMPTS)} prompts, the first: {answers[0][0]['generated_text']!r}")
transformer.delete_model()
