"""
Use the SageMaker SDK with Headrace: a TGI image, deployed, invoked, streamed, deleted.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/tgi.py

Only the model's name is specific to Headrace. The SDK itself sleeps for 30 seconds before it first checks whether
an endpoint is in service.
"""

import json

import boto3
import sagemaker
from line_iterator import LineIterator
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri

ENDPOINT = sagemaker.utils.name_from_base("smollm2-tgi")

model = HuggingFaceModel(
    role=sagemaker.get_execution_role(),
    image_uri=get_huggingface_llm_image_uri("huggingface", version="1.0.3"),
    env={"HF_MODEL_ID": "smollm2", "SM_NUM_GPUS": "1", "MAX_INPUT_LENGTH": "1024", "MAX_TOTAL_TOKENS": "2048"},
)
predictor = model.deploy(
    endpoint_name=ENDPOINT,
    initial_instance_count=1,
    instance_type="ml.g5.2xlarge",
    container_startup_health_check_timeout=300,
)

prompt = "<|im_start|>user\nWrite one sentence about rivers.<|im_end|>\n<|im_start|>assistant\n"
parameters = {"max_new_tokens": 40, "return_full_text": False, "stop": ["<|im_end|>"]}
answer = predictor.predict({"inputs": prompt, "parameters": parameters})
print("at once: ", answer[0]["generated_text"])

response = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=ENDPOINT,
    Body=json.dumps({"inputs": prompt, "parameters": parameters, "stream": True}),
    ContentType="application/json",
    CustomAttributes="accept_eula=false",
)
print("streamed:", end=" ")
for line in LineIterator(response["Body"]):
    if line.startswith(b"data:"):
        print(json.loads(line.removeprefix(b"data:"))["token"]["text"], end="", flush=True)
print()

predictor.delete_model()
predictor.delete_endpoint()
