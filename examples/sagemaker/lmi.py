"""
Use the SageMaker SDK with Headrace: a DJL (LMI) image with its configuration in a tar.gz on S3.

The answer is continued, request by request, while its finish reason is `length`.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/lmi.py
"""

import io
import json
import math
import tarfile
import tempfile
from pathlib import Path

import boto3
import sagemaker
from line_iterator import LineIterator
from sagemaker import Model, image_uris
from sagemaker.s3 import S3Uploader

PROPERTIES = """\
engine=MPI
option.model_id=smollm2
option.tensor_parallel_degree=max
option.max_rolling_batch_size=32
option.rolling_batch=auto
option.model_loading_timeout=7200
"""
NAME = sagemaker.utils.name_from_base("smollm2-lmi")


def upload_configuration(bucket: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "code.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            member = tarfile.TarInfo("code/serving.properties")
            member.size = len(PROPERTIES)
            tar.addfile(member, io.BytesIO(PROPERTIES.encode()))
        return S3Uploader.upload(str(archive), f"s3://{bucket}/{NAME}")


def ask(runtime, payload):
    """Stream one answer; return prompt and answer, the finish reason and the log probabilities."""
    response = runtime.invoke_endpoint_with_response_stream(
        EndpointName=NAME, Body=json.dumps(payload), ContentType="application/json"
    )
    texts, log_probs, reason = [], [], None
    for line in LineIterator(response["Body"]):
        event = json.loads(line)
        if event["token"].get("text") is not None:
            texts.append(event["token"]["text"])
            log_probs.append(event["token"]["log_prob"])
            print(texts[-1], end="", flush=True)
        if event.get("details") is not None:
            reason = event["details"]["finish_reason"]
    return payload["inputs"] + "".join(texts), reason, log_probs


session = sagemaker.Session()
bucket = session.default_bucket()
image = image_uris.retrieve(framework="djl-tensorrtllm", region=session.boto_region_name, version="0.26.0")
model = Model(image_uri=image, model_data=upload_configuration(bucket), role=sagemaker.get_execution_role(), name=NAME)
model.deploy(
    initial_instance_count=1,
    instance_type="ml.p4d.24xlarge",
    endpoint_name=NAME,
    container_startup_health_check_timeout=1800,
)

runtime = boto3.client("sagemaker-runtime")
prompt = "<|im_start|>user\nWrite a short paragraph about regular exercise.<|im_end|>\n<|im_start|>assistant\n"
payload = {"inputs": prompt, "parameters": {"max_new_tokens": 32, "details": True}}
finish_reason, num_requests, all_log_probs = "length", 0, []
while finish_reason == "length" and num_requests < 8:
    payload["inputs"], finish_reason, log_probs = ask(runtime, payload)
    all_log_probs += log_probs
    num_requests += 1
print(f"\n{num_requests} requests, the last ended by {finish_reason}")
print(f"mean probability of a token: {math.exp(sum(all_log_probs) / len(all_log_probs)):.2f}")

client = boto3.client("sagemaker")
client.delete_endpoint(EndpointName=NAME)
client.delete_endpoint_config(EndpointConfigName=NAME)
client.delete_model(ModelName=NAME)
boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=NAME).delete()
