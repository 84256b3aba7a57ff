"""
Use the SageMaker SDK with Headrace: a component with two copies, a third one under load, and two again without it.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/components.py

Only the model's name is specific to Headrace. Two policies: target tracking adds copies while each has more
in-flight requests than the target; a step policy on a custom alarm removes them half a minute after the load has
ended (target tracking alone would wait for a quarter of an hour, as on AWS).
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import sagemaker
from sagemaker.compute_resource_requirements.resource_requirements import ResourceRequirements
from sagemaker.enums import EndpointType
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri

ENDPOINT = sagemaker.utils.name_from_base("smollm2-components")
NUM_CLIENTS = 6
PATIENCE_S = 240

model = HuggingFaceModel(
    role=sagemaker.get_execution_role(),
    image_uri=get_huggingface_llm_image_uri("huggingface", version="3.3.6"),
    env={"HF_MODEL_ID": "smollm2", "SM_NUM_GPUS": "1", "MAX_INPUT_LENGTH": "1024", "MAX_TOTAL_TOKENS": "2048"},
)
llm = model.deploy(
    endpoint_name=ENDPOINT,
    endpoint_type=EndpointType.INFERENCE_COMPONENT_BASED,
    initial_instance_count=1,
    instance_type="ml.p3.8xlarge",
    container_startup_health_check_timeout=300,
    resources=ResourceRequirements(
        requests={"copies": 2, "num_accelerators": 1, "num_cpus": 6, "memory": 40 * 1024},
    ),
)
client = boto3.client("sagemaker")
autoscaling = boto3.client("application-autoscaling")
cloudwatch = boto3.client("cloudwatch")
component = llm.component_name
scaled = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": f"inference-component/{component}",
    "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
}


def num_copies():
    return client.describe_inference_component(InferenceComponentName=component)["RuntimeConfig"]["CurrentCopyCount"]


def until_copies(wanted):
    deadline_s = time.monotonic() + PATIENCE_S
    while num_copies() != wanted:
        if time.monotonic() > deadline_s:
            activities = autoscaling.describe_scaling_activities(**scaled, IncludeNotScaledActivities=True)
            raise SystemExit(f"{num_copies()} copies and not {wanted}: {activities['ScalingActivities']}")
        time.sleep(2)


autoscaling.register_scalable_target(**scaled, MinCapacity=2, MaxCapacity=3)
autoscaling.put_scaling_policy(
    **scaled,
    PolicyName="more-copies",
    PolicyType="TargetTrackingScaling",
    TargetTrackingScalingPolicyConfiguration={
        "TargetValue": 1,
        "PredefinedMetricSpecification": {
            "PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
        },
        "ScaleOutCooldown": 60,
        "DisableScaleIn": True,
    },
)
policy = autoscaling.put_scaling_policy(
    **scaled,
    PolicyName="fewer-copies",
    PolicyType="StepScaling",
    StepScalingPolicyConfiguration={
        "AdjustmentType": "ChangeInCapacity",
        "StepAdjustments": [{"MetricIntervalUpperBound": 0, "ScalingAdjustment": -1}],
        "Cooldown": 30,
    },
)
cloudwatch.put_metric_alarm(
    AlarmName=f"{component}-idle",
    AlarmActions=[policy["PolicyARN"]],
    Namespace="AWS/SageMaker",
    MetricName="ConcurrentRequestsPerCopy",
    Dimensions=[{"Name": "InferenceComponentName", "Value": component}],
    Statistic="Maximum",
    Period=10,
    EvaluationPeriods=3,
    Threshold=0.5,
    ComparisonOperator="LessThanThreshold",
    TreatMissingData="breaching",
)

print("asked:   ", llm.predict({"inputs": "The sea is", "parameters": {"max_new_tokens": 12}})[0]["generated_text"])
is_over = threading.Event()


def ask():
    while not is_over.is_set():
        llm.predict({"inputs": "Where is a good place to go in summer?", "parameters": {"max_new_tokens": 50}})


with ThreadPoolExecutor(NUM_CLIENTS) as pool:
    asking = [pool.submit(ask) for _ in range(NUM_CLIENTS)]
    try:
        until_copies(3)
    finally:
        is_over.set()
for future in asking:
    future.result()  # no request failed
print("copies under load: 3")
until_copies(2)
print("copies without load: 2")
for activity in autoscaling.describe_scaling_activities(**scaled)["ScalingActivities"]:
    print(f"{activity['StatusCode']}: {activity['Description']} Cause: {activity['Cause']}")

model_name = client.describe_inference_component(InferenceComponentName=component)["Specification"]["ModelName"]
autoscaling.deregister_scalable_target(**scaled)
cloudwatch.delete_alarms(AlarmNames=[f"{component}-idle"])
llm.delete_predictor(wait=True)
llm.delete_endpoint(delete_endpoint_config=True)
client.delete_model(ModelName=model_name)
