import io
import json

import boto3
from common import MODEL, expect, step

runtime = boto3.client("sagemaker-runtime")
body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16}}

with step("describe_endpoint"):
    expect(boto3.client("sagemaker").describe_endpoint(EndpointName=MODEL)["EndpointStatus"] == "InService", "service")
with step("list_endpoints, paginated"):
    pages = boto3.client("sagemaker").get_paginator("list_endpoints").paginate()
    expect(MODEL in [endpoint["EndpointName"] for page in pages for endpoint in page["Endpoints"]], "the endpoint")
with step("invoke_endpoint"):
    answer = runtime.invoke_endpoint(EndpointName=MODEL, ContentType="application/json", Body=json.dumps(body))
    expect(json.load(answer["Body"])[0]["generated_text"], "text")
with step("invoke_endpoint_with_response_stream"):
    answer = runtime.invoke_endpoint_with_response_stream(
        EndpointName=MODEL, ContentType="application/json", Body=json.dumps({**body, "stream": True})
    )
    expect(len([event for event in answer["Body"] if "PayloadPart" in event]) > 1, "several parts")
with step("s3"):
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="client-examples")
    s3.upload_fileobj(io.BytesIO(b"hello"), "client-examples", "a.txt")
    expect(s3.get_object(Bucket="client-examples", Key="a.txt")["Body"].read() == b"hello", "the object")
