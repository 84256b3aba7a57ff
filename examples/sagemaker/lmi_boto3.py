"""
Deploy a DJL (LMI) 0.25 image with boto3 alone: weights and `serving.properties` on S3, an answer as pieces of JSON.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    headrace models pull smollm2
    python examples/sagemaker/lmi_boto3.py "$(headrace models path smollm2)"/*.gguf

The argument is a GGUF file; a folder of Hugging Face's files under the prefix works as well.
"""

import io
import json
import sys
import tarfile
import time

import boto3

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.25.0-deepspeed0.11.0-cu118"
NAME = f"smollm2-lmi-boto3-{int(time.time())}"
PROPERTIES = """\
engine = MPI
option.entryPoint=djl_python.huggingface
option.tensor_parallel_degree=4
option.low_cpu_mem_usage=TRUE
option.rolling_batch=lmi-dist
option.max_rolling_batch_size=64
option.model_loading_timeout=900
option.model_id={model_id}
option.paged_attention=true
"""
HEAD, TAIL = '{"generated_text": "', '"}'

s3 = boto3.client("s3")
s3.create_bucket(Bucket=NAME)
s3.upload_file(sys.argv[1], NAME, "model/model.gguf")
properties = PROPERTIES.format(model_id=f"s3://{NAME}/model/").encode()
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w:gz") as tar:
    member = tarfile.TarInfo("serving.properties")
    member.size = len(properties)
    tar.addfile(member, io.BytesIO(properties))
s3.put_object(Bucket=NAME, Key="code/model.tar.gz", Body=archive.getvalue())

client = boto3.client("sagemaker")
client.create_model(
    ModelName=NAME,
    ExecutionRoleArn="arn:aws:iam::000000000000:role/Any",
    PrimaryContainer={
        "Image": IMAGE,
        "ModelDataUrl": f"s3://{NAME}/code/model.tar.gz",
        "Environment": {"MODEL_LOADING_TIMEOUT": "3600"},
    },
)
client.create_endpoint_config(
    EndpointConfigName=NAME,
    ProductionVariants=[
        {
            "VariantName": "variant1",
            "ModelName": NAME,
            "InstanceType": "ml.g5.12xlarge",
            "InitialInstanceCount": 1,
            "ModelDataDownloadTimeoutInSeconds": 3600,
            "ContainerStartupHealthCheckTimeoutInSeconds": 3600,
        }
    ],
)
client.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
client.get_waiter("endpoint_in_service").wait(EndpointName=NAME, WaiterConfig={"Delay": 1, "MaxAttempts": 600})

prompt = "<|im_start|>user\nWrite one sentence about rivers.<|im_end|>\n<|im_start|>assistant\n"
parameters = {"do_sample": True, "top_p": 0.6, "temperature": 0.9, "top_k": 50, "max_new_tokens": 40, "seed": 1}
response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=NAME,
    Body=json.dumps({"inputs": prompt, "parameters": parameters}),
    ContentType="application/json",
)
print("streamed:", end=" ")
for event in response["Body"]:
    piece = event["PayloadPart"]["Bytes"].decode()
    if piece not in (HEAD, TAIL):
        print(json.loads(f'"{piece}"'), end="", flush=True)
print()

client.delete_endpoint(EndpointName=NAME)
client.delete_endpoint_config(EndpointConfigName=NAME)
client.delete_model(ModelName=NAME)
boto3.resource("s3").Bucket(NAME).objects.all().delete()
s3.delete_bucket(Bucket=NAME)
