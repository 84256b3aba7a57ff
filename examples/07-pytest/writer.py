"""Code that uses an endpoint of SageMaker; it knows nothing of Headrace."""

import json

import boto3


def continue_text(endpoint: str, text: str, max_new_tokens: int = 8) -> str:
    body = {"inputs": text, "parameters": {"max_new_tokens": max_new_tokens}}
    response = boto3.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=endpoint, ContentType="application/json", Body=json.dumps(body)
    )
    return json.load(response["Body"])[0]["generated_text"]
