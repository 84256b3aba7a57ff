"""
Run the autoscaling of the article "Serving Llama 3 at Scale in SageMaker" with Headrace and a small model.

    headrace up &                      # in one terminal
    eval "$(headrace env)"             # in this one
    pip install 'sagemaker<3'
    python examples/sagemaker/llama3_autoscaling.py                # until it has grown: about 5 minutes
    python examples/sagemaker/llama3_autoscaling.py --until-idle   # until it has shrunk, too: 20 minutes more

All values are the article's, and its scaling code is between the two lines "as printed". Only the model
is different, and its prompt is written out. The policy is on the variant, not on the component: when it adds an
instance, Headrace adds the component's copies in proportion. Target tracking waits for three minutes above the target,
so after the article's 100 requests one more is sent each second until then; and it waits for fifteen minutes below 90 %
of the target before it removes the instance.
"""

import sys
import time
import uuid

import boto3
import sagemaker
from sagemaker.compute_resource_requirements.resource_requirements import ResourceRequirements
from sagemaker.enums import EndpointType
from sagemaker.huggingface import HuggingFaceModel, get_huggingface_llm_image_uri

PATIENCE_S = 420
IDLE_PATIENCE_S = 1500
PROMPT = """<|im_start|>system
You are an helpful Travel Assistant.<|im_end|>
<|im_start|>user
Where is a good vacation destination in north america for summer?<|im_end|>
<|im_start|>assistant
"""

role = sagemaker.get_execution_role()
llm_model = HuggingFaceModel(
    role=role,
    image_uri=get_huggingface_llm_image_uri("huggingface", version="3.3.6"),
    env={
        "HF_MODEL_ID": "smollm2",
        "SM_NUM_GPUS": "1",
        "MAX_INPUT_LENGTH": "2048",
        "MAX_TOTAL_TOKENS": "4096",
        "MAX_BATCH_TOTAL_TOKENS": "8192",
    },
)
llm = llm_model.deploy(
    initial_instance_count=1,
    instance_type="ml.p3.8xlarge",
    resources=ResourceRequirements(
        requests={"copies": 4, "num_accelerators": 1, "num_cpus": 6, "memory": 40 * 1024},
    ),
    container_startup_health_check_timeout=300,
    endpoint_name=f"llama3-chat-{uuid.uuid4()}",
    endpoint_type=EndpointType.INFERENCE_COMPONENT_BASED,
    tags=[{"Key": "aKey", "Value": "aValue"}],
    model_name="llama3-chat",
)
endpoint_name = llm.endpoint_name
# fmt: off
# ---- as printed
autoscale = boto3.Session().client(service_name="application-autoscaling")

autoscale.register_scalable_target(
    ServiceNamespace="sagemaker", #1
    ResourceId="endpoint/" + endpoint_name + "/variant/AllTraffic", #2
    ScalableDimension="sagemaker:variant:DesiredInstanceCount", #3
    MinCapacity=1, #4
    MaxCapacity=2, #5
    RoleARN=role,
)

autoscale.put_scaling_policy(
    PolicyName="autoscale-policy-llama3-8b",
    ServiceNamespace="sagemaker",
    ResourceId="endpoint/" + endpoint_name + "/variant/AllTraffic",
    ScalableDimension="sagemaker:variant:DesiredInstanceCount",
    PolicyType="TargetTrackingScaling",
    TargetTrackingScalingPolicyConfiguration={
        'TargetValue': 20,
        'PredefinedMetricSpecification': {
            'PredefinedMetricType': 'SageMakerVariantInvocationsPerInstance'
        },
        'ScaleOutCooldown': 60,
        'ScaleInCooldown': 300,
    }
)
# ---- as printed
# fmt: on

parameters = {
    "do_sample": True,
    "top_p": 0.6,
    "temperature": 0.9,
    "top_k": 50,
    "max_new_tokens": 50,
    "repetition_penalty": 1.03,
    "return_full_text": False,
}
client = boto3.client("sagemaker")


def counts():
    """Return the numbers of instances and copies, if nothing is being changed."""
    endpoint = client.describe_endpoint(EndpointName=endpoint_name)
    component = client.describe_inference_component(InferenceComponentName=llm.component_name)
    is_settled = endpoint["EndpointStatus"] == component["InferenceComponentStatus"] == "InService"
    instances = endpoint["ProductionVariants"][0]["CurrentInstanceCount"]
    return (instances, component["RuntimeConfig"]["CurrentCopyCount"]) if is_settled else None


def newest_activities():
    """Return the response to the last call of the article."""
    return autoscale.describe_scaling_activities(
        ServiceNamespace="sagemaker",
        ResourceId="endpoint/" + endpoint_name + "/variant/AllTraffic",
        ScalableDimension="sagemaker:variant:DesiredInstanceCount",
        MaxResults=100,
    )["ScalingActivities"]


def activities():
    """Print what was scaled. An activity ends shortly after the endpoint has its instances."""
    deadline_s = time.monotonic() + 60
    while any(activity["StatusCode"] == "InProgress" for activity in newest_activities()):
        if time.monotonic() > deadline_s:
            break
        time.sleep(1)
    for activity in newest_activities():
        details = activity.get("Details", "")
        print(f"{activity['StatusCode']}: {activity['Description']} Cause: {activity['Cause']} {details}")


def until(wanted, patience_s, work):
    deadline_s = time.monotonic() + patience_s
    while counts() != wanted:
        if time.monotonic() > deadline_s:
            activities()
            raise SystemExit(f"It has {counts()} instances and copies and not {wanted}.")
        work()


def request():
    res = llm.predict({"inputs": PROMPT, "parameters": parameters})
    assert res[0]["generated_text"], res
    return res


def one_a_second():
    request()
    time.sleep(1)


print("at first (instances, copies):", counts())
begun_s = time.monotonic()
for _ in range(100):
    res = request()
print(res)
until((2, 8), PATIENCE_S, one_a_second)
print(f"under load: (2, 8) after {time.monotonic() - begun_s:.0f} s")
if "--until-idle" in sys.argv:
    begun_s = time.monotonic()
    until((1, 4), IDLE_PATIENCE_S, lambda: time.sleep(5))
    print(f"without load: (1, 4) after {time.monotonic() - begun_s:.0f} s")
activities()

component = client.describe_inference_component(InferenceComponentName=llm.component_name)
autoscale.deregister_scalable_target(
    ServiceNamespace="sagemaker",
    ResourceId="endpoint/" + endpoint_name + "/variant/AllTraffic",
    ScalableDimension="sagemaker:variant:DesiredInstanceCount",
)
llm.delete_predictor(wait=True)
llm.delete_endpoint(delete_endpoint_config=True)
client.delete_model(ModelName=component["Specification"]["ModelName"])
