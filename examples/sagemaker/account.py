"""
Use what surrounds an endpoint in an account: a role, temporary credentials, an image, notifications, logs, a dashboard.

    headrace up --detach
    eval "$(headrace env)"
    python examples/sagemaker/account.py

An asynchronous invocation reports its end to a topic, whose subscriber is a small HTTP server in this script.
"""

import hashlib
import http.server
import json
import queue
import threading
import time
import urllib.request

import boto3

IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
NAME = f"smollm2-account-{int(time.time())}"
messages: "queue.Queue[dict]" = queue.Queue()


class Subscriber(http.server.BaseHTTPRequestHandler):
    """Receives what is published to the topic."""

    def do_POST(self) -> None:
        messages.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the output of the script to its results."""


# A role, and credentials that act as it for a quarter of an hour.
trust = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
iam = boto3.client("iam")
role = iam.create_role(RoleName=NAME, AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
iam.attach_role_policy(RoleName=NAME, PolicyArn="arn:aws:iam::aws:policy/AmazonSageMakerFullAccess")
assumed = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="example", DurationSeconds=900)
given = assumed["Credentials"]
session = boto3.Session(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
print("acts as:", session.client("sts").get_caller_identity()["Arn"])

# An image of one empty layer, pushed as `docker push` does it.
ecr = session.client("ecr")
ecr.create_repository(repositoryName=NAME)
token = ecr.get_authorization_token()["authorizationData"][0]
registry = f"{token['proxyEndpoint']}/v2/{NAME}"


def send(method: str, url: str, body: bytes = b"", content_type: str = "application/octet-stream") -> str:
    headers = {"Authorization": f"Basic {token['authorizationToken']}", "Content-Type": content_type}
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request) as response:
        return response.headers.get("Location", "")


def push(content: bytes, media_type: str) -> dict:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    location = send("POST", f"{registry}/blobs/uploads/")
    url = location if location.startswith("http") else token["proxyEndpoint"] + location
    send("PUT", f"{url}?digest={digest}", content)
    return {"mediaType": media_type, "size": len(content), "digest": digest}


MANIFEST = "application/vnd.oci.image.manifest.v1+json"
manifest = {
    "schemaVersion": 2,
    "mediaType": MANIFEST,
    "config": push(b"{}", "application/vnd.oci.image.config.v1+json"),
    "layers": [push(bytes(1024), "application/vnd.oci.image.layer.v1.tar")],
}
send("PUT", f"{registry}/manifests/1.0", json.dumps(manifest).encode(), MANIFEST)
print("images: ", ecr.list_images(repositoryName=NAME)["imageIds"][0]["imageTag"])

# A topic with a subscriber.
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Subscriber)
threading.Thread(target=server.serve_forever, daemon=True).start()
sns = session.client("sns")
topic = sns.create_topic(Name=NAME)["TopicArn"]
sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"http://127.0.0.1:{server.server_port}/")
sns.confirm_subscription(TopicArn=topic, Token=messages.get(timeout=30)["Token"])

# An endpoint whose asynchronous invocations report to the topic.
s3, sagemaker = session.client("s3"), session.client("sagemaker")
s3.create_bucket(Bucket=NAME)
s3.put_object(
    Bucket=NAME, Key="in.json", Body=json.dumps({"inputs": "The sea is", "parameters": {"max_new_tokens": 8}})
)
sagemaker.create_model(
    ModelName=NAME,
    ExecutionRoleArn=role,
    PrimaryContainer={"Image": IMAGE, "Environment": {"HF_MODEL_ID": "smollm2"}},
)
sagemaker.create_endpoint_config(
    EndpointConfigName=NAME,
    ProductionVariants=[
        {"VariantName": "all", "ModelName": NAME, "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 1}
    ],
    AsyncInferenceConfig={
        "OutputConfig": {
            "S3OutputPath": f"s3://{NAME}/out",
            "NotificationConfig": {"SuccessTopic": topic, "ErrorTopic": topic},
        }
    },
)
sagemaker.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
sagemaker.get_waiter("endpoint_in_service").wait(EndpointName=NAME, WaiterConfig={"Delay": 1, "MaxAttempts": 600})
session.client("sagemaker-runtime").invoke_endpoint_async(
    EndpointName=NAME, InputLocation=f"s3://{NAME}/in.json", ContentType="application/json"
)
notice = json.loads(messages.get(timeout=300)["Message"])
print("notified:", notice["invocationStatus"], notice["responseParameters"]["outputLocation"])

# What its log has, by a query; and a dashboard of its requests.
logs, cloudwatch = session.client("logs"), session.client("cloudwatch")
now_s = int(time.time())
query = logs.start_query(
    logGroupName=f"/aws/sagemaker/Endpoints/{NAME}",
    startTime=now_s - 3600,
    endTime=now_s + 60,
    queryString="stats count(*) as lines by @logStream",
)
while (found := logs.get_query_results(queryId=query["queryId"]))["status"] in ("Scheduled", "Running"):
    time.sleep(0.2)
print("log:     ", {field["field"]: field["value"] for field in found["results"][0]})
widget = {
    "type": "metric",
    "properties": {"region": "us-east-1", "metrics": [["AWS/SageMaker", "ModelLatency", "EndpointName", NAME]]},
}
cloudwatch.put_dashboard(DashboardName=NAME, DashboardBody=json.dumps({"widgets": [widget]}))
print("boards:  ", len(cloudwatch.list_dashboards(DashboardNamePrefix=NAME)["DashboardEntries"]))

cloudwatch.delete_dashboards(DashboardNames=[NAME])
sagemaker.delete_endpoint(EndpointName=NAME)
sagemaker.delete_endpoint_config(EndpointConfigName=NAME)
sagemaker.delete_model(ModelName=NAME)
sns.delete_topic(TopicArn=topic)
ecr.delete_repository(repositoryName=NAME, force=True)
boto3.resource("s3").Bucket(NAME).objects.all().delete()
s3.delete_bucket(Bucket=NAME)
iam.detach_role_policy(RoleName=NAME, PolicyArn="arn:aws:iam::aws:policy/AmazonSageMakerFullAccess")
iam.delete_role(RoleName=NAME)
