"""
Use the SageMaker SDK with Headrace: a DJL (LMI) image configured by environment variables, invoked and streamed.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/lmi_environment.py
"""

import json

import boto3
import sagemaker
from line_iterator import LineIterator

NAME = sagemaker.utils.name_from_base("smollm2-djl")

session = sagemaker.Session()
model = sagemaker.Model(
    image_uri=sagemaker.image_uris.retrieve(framework="djl-lmi", version="0.28.0", region=session.boto_region_name),
    role=sagemaker.get_execution_role(),
    name=NAME,
    env={
        "HF_MODEL_ID": "smollm2",
        "OPTION_ROLLING_BATCH": "vllm",
        "TENSOR_PARALLEL_DEGREE": "max",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "2",
        "OPTION_DTYPE": "bf16",
    },
)
model.deploy(instance_type="ml.g5.12xlarge", initial_instance_count=1, endpoint_name=NAME)

predictor = sagemaker.Predictor(
    endpoint_name=NAME,
    sagemaker_session=session,
    serializer=sagemaker.serializers.JSONSerializer(),
    deserializer=sagemaker.deserializers.JSONDeserializer(),
)
outputs = predictor.predict({"inputs": "The meaning of life is", "parameters": {"max_new_tokens": 24}})
print("at once: ", outputs["generated_text"])

body = {"inputs": "The meaning of life is", "parameters": {"max_new_tokens": 24}, "stream": True}
response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=NAME, Body=json.dumps(body), ContentType="application/json"
)
print("streamed:", end=" ")
for line in LineIterator(response["Body"]):
    print(json.loads(line)["token"]["text"], end="", flush=True)
print()

predictor.delete_model()
predictor.delete_endpoint()
