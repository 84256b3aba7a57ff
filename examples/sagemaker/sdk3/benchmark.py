"""
Use the SageMaker SDK 3.x with Headrace: measure an endpoint by an AI benchmark job, as on AWS.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker>=3'
    python examples/sagemaker/sdk3/benchmark.py

Only the model's name is specific to Headrace. The job sends the load by `headrace bench`; `show_result` reads AIPerf's
file from S3. The SDK itself sleeps for 30 seconds between two polls of an endpoint.
"""

from sagemaker.core.common_utils import name_from_base
from sagemaker.core.helper.session_helper import get_execution_role
from sagemaker.core.resources import AIWorkloadConfig, EndpointConfig
from sagemaker.serve import ModelBuilder
from sagemaker.serve.ai_inference_recommender import start_benchmark

NAME = name_from_base("smollm2-benchmark")
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)

builder = ModelBuilder(
    image_uri=IMAGE,
    env_vars={"HF_MODEL_ID": "smollm2"},
    role_arn=get_execution_role(),
    instance_type="ml.g5.2xlarge",
)
model = builder.build(model_name=NAME)
endpoint = builder.deploy(endpoint_name=NAME, initial_instance_count=1)

job = start_benchmark(
    endpoint,
    tokenizer="HuggingFaceTB/SmolLM2-135M",
    concurrency=2,
    request_count=8,
    prompt_input_tokens_mean=64,
    prompt_input_tokens_stddev=8,
    output_tokens_mean=16,
    workload_config_name=NAME,
    role=get_execution_role(),
)
result = job.show_result()
print(result)
print(f"answers: {result.metrics.get('request_count').avg:.0f}")

job.delete()
AIWorkloadConfig.get(ai_workload_config_name=NAME).delete()
endpoint.delete()
EndpointConfig.get(endpoint_config_name=NAME).delete()
model.delete()
