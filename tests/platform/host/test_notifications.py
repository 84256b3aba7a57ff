"""Messages about asynchronous invocations and states of endpoints, as topics and the webhook get them."""

import json
from queue import Queue
from typing import Any

from headrace.platform.account.deliveries import Deliverer, Delivery
from headrace.platform.account.resource import StoredSpec
from headrace.platform.account.sns import SUBSCRIPTIONS, TOPICS
from headrace.platform.gateway.async_files import AsyncEnd, PendingInvocation
from headrace.platform.host.notifications import Notifications
from tests.platform.control.calls import make_config
from tests.platform.control.support import AWS_SCOPE, running_platform
from tests.waiting import WAIT_S

NOW_S = 1_700_000_000.0
TOPIC = "arn:aws:sns:us-east-1:123456789012:"


class Sent(Deliverer):
    """A deliverer that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: list[Delivery] = []

    def deliver(self, delivery: Delivery) -> bool:
        self.deliveries.append(delivery)
        return True

    def bodies(self) -> list[Any]:
        return [json.loads(delivery.body) for delivery in self.deliveries]


def pending(**more: Any) -> PendingInvocation:
    times = {"accepted_s": NOW_S, "expires_s": NOW_S + 9, "timeout_s": 9.0}
    return PendingInvocation(
        id="1", endpoint="e", endpoint_uid="u", inference_id="i", output_uri="s3://b/o/i.out", **times, **more
    )


def test_endpoints_tell_of_their_states_and_of_the_ends_of_invocations() -> None:
    sent = Sent()
    told: Queue[Any] = Queue()
    seen: list[Any] = []
    with running_platform(on_state=lambda record, state: told.put((record, state))) as platform:
        client, store = platform.client("sagemaker"), platform.store
        notifications = Notifications(
            store=store,
            aws_scope=AWS_SCOPE,
            url="http://p",
            webhook="http://hook/",
            deliverer=sent,
            clock=lambda: NOW_S,
        )
        topics = {"SuccessTopic": f"{TOPIC}good", "ErrorTopic": f"{TOPIC}bad"}
        included = {"IncludeInferenceResponseIn": ["SUCCESS_NOTIFICATION_TOPIC"]}
        output = {"S3OutputPath": "s3://b/o", "NotificationConfig": {**topics, **included}}
        make_config(client, "other")
        client.create_endpoint_config(
            EndpointConfigName="c",
            ProductionVariants=[{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.large"}],
            AsyncInferenceConfig={"OutputConfig": output},
        )
        client.create_endpoint(EndpointName="e", EndpointConfigName="c")
        while not seen or seen[-1][1] != "InService":
            seen.append(told.get(timeout=WAIT_S))
        for name in ("good", "bad"):
            members = {"TopicArn": TOPIC + name, "Protocol": "http", "Endpoint": f"http://{name}/", "Attributes": {}}
            store.create(TOPICS.kind, name, spec=StoredSpec(members={}))
            spec = StoredSpec(members={**members, "token": "", "is_confirmed": True})
            store.create(SUBSCRIPTIONS.kind, f"{name}:1", spec=spec)
        notifications.invocation(
            AsyncEnd(pending=pending(input_uri="s3://b/in"), content_type="text/csv", body=b"1,2", ended_s=NOW_S)
        )
        notifications.invocation(AsyncEnd(pending=pending(), failure="It broke.", ended_s=NOW_S))
        assert [delivery.url for delivery in sent.deliveries] == ["http://good/", "http://bad/"]
        good, bad = (json.loads(body["Message"]) for body in sent.bodies())
        assert good == {
            "awsRegion": "us-east-1",
            "eventTime": "2023-11-14T22:13:20.000Z",
            "receivedTime": "2023-11-14T22:13:20.000Z",
            "invocationStatus": "Completed",
            "requestParameters": {
                "contentType": "application/octet-stream",
                "endpointName": "e",
                "inputLocation": "s3://b/in",
            },
            "responseParameters": {"contentType": "text/csv", "outputLocation": "s3://b/o/i.out"},
            "responseBody": {"content": "1,2", "encoding": "UTF8"},
            "inferenceId": "i",
            "eventVersion": "1.0",
            "eventSource": "aws:sagemaker",
            "eventName": "InferenceResult",
        }
        assert (bad["invocationStatus"], bad["failureReason"]) == ("Failed", "It broke.")
        sent.deliveries.clear()
        store.remove(store.list(TOPICS.kind)[0])
        notifications.invocation(AsyncEnd(pending=pending()))  # a topic that is gone affects nothing
        client.delete_endpoint(EndpointName="e")
        while seen[-1][1] != "Deleted":
            seen.append(told.get(timeout=WAIT_S))
        for record, state in seen:
            notifications.endpoint(record, state)
        events = sent.bodies()
        assert [event["detail"]["EndpointStatus"] for event in events][-2:] == ["IN_SERVICE", "DELETED"]
        assert {event["detail-type"] for event in events} == {"SageMaker Endpoint State Change"}
        assert events[0]["resources"] == ["arn:aws:sagemaker:us-east-1:123456789012:endpoint/e"]
