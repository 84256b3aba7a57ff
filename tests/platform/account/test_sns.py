"""Topics, subscriptions and messages over HTTP, called with boto3 against a receiver on a real port."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

from headrace.platform.account.deliveries import Deliverer, Delivery, ForbiddenAddress, check_address
from tests.platform.account.test_iam import code_of
from tests.platform.control.conftest import still_platform
from tests.platform.control.support import Platform
from tests.waiting import WAIT_S

__all__ = ["still_platform"]

TOPIC = "arn:aws:sns:us-east-1:123456789012:t"
Received = Queue[tuple[dict[str, str], bytes]]


@pytest.fixture
def receiver() -> Iterator[tuple[str, Received]]:
    received: Received = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook?key=1", received
    server.shutdown()
    server.server_close()
    thread.join()


def confirmed(sns: Any, url: str, received: Received, **more: Any) -> str:
    sns.create_topic(Name="t")
    assert (
        sns.subscribe(TopicArn=TOPIC, Protocol="http", Endpoint=url, **more)["SubscriptionArn"]
        == "pending confirmation"
    )
    headers, body = received.get(timeout=WAIT_S)
    token = json.loads(body)
    assert headers["x-amz-sns-message-type"] == token["Type"] == "SubscriptionConfirmation"
    assert f"Token={token['Token']}" in token["SubscribeURL"]
    arn: str = sns.confirm_subscription(TopicArn=TOPIC, Token=token["Token"])["SubscriptionArn"]
    return arn


def test_a_confirmed_subscription_gets_messages_and_a_pending_one_none(
    still_platform: Platform, receiver: tuple[str, Received]
) -> None:
    sns, (url, received) = still_platform.client("sns"), receiver
    tags = [{"Key": "a", "Value": "1"}]
    assert (
        sns.create_topic(Name="t", Tags=tags)["TopicArn"] == sns.create_topic(Name="t", Tags=tags)["TopicArn"] == TOPIC
    )
    assert code_of(sns.create_topic, Name="t", Tags=[{"Key": "a", "Value": "2"}]) == ("InvalidParameter", 400)
    sns.subscribe(TopicArn=TOPIC, Protocol="http", Endpoint=url + "&other=1")
    received.get(timeout=WAIT_S)
    with pytest.raises(sns.exceptions.InvalidParameterException, match="Token"):
        sns.confirm_subscription(TopicArn=TOPIC, Token="0" * 64)
    arn = confirmed(sns, url, received)
    assert sns.subscribe(TopicArn=TOPIC, Protocol="http", Endpoint=url)["SubscriptionArn"] == arn
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}, "b": {"DataType": "Binary", "BinaryValue": b"x"}}
    sent = sns.publish(TopicArn=TOPIC, Message="hello", Subject="s", MessageAttributes=attributes)
    headers, body = received.get(timeout=WAIT_S)
    message = json.loads(body)
    assert (headers["x-amz-sns-message-id"], headers["x-amz-sns-subscription-arn"]) == (sent["MessageId"], arn)
    assert (message["Type"], message["TopicArn"], message["Subject"]) == ("Notification", TOPIC, "s")
    assert (message["Message"], message["MessageAttributes"]["b"]) == ("hello", {"Type": "Binary", "Value": "eA=="})
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="RawMessageDelivery", AttributeValue="true")
    structured = {"Message": json.dumps({"default": "d", "http": "for http"}), "MessageStructure": "json"}
    sns.publish(TopicArn=TOPIC, **structured)
    headers, body = received.get(timeout=WAIT_S)
    assert (headers["x-amz-sns-rawdelivery"], body) == ("true", b"for http")
    batch = sns.publish_batch(
        TopicArn=TOPIC, PublishBatchRequestEntries=[{"Id": "1", "Message": "one"}, {"Id": "2", "Message": ""}]
    )
    assert ([done["Id"] for done in batch["Successful"]], [entry["Id"] for entry in batch["Failed"]]) == (["1"], ["2"])
    assert received.get(timeout=WAIT_S)[1] == b"one"
    found = sns.get_topic_attributes(TopicArn=TOPIC)["Attributes"]
    assert (found["SubscriptionsConfirmed"], found["SubscriptionsPending"]) == ("1", "1")
    listed = {each["SubscriptionArn"] for each in sns.list_subscriptions_by_topic(TopicArn=TOPIC)["Subscriptions"]}
    assert listed == {arn, "PendingConfirmation"}
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["PendingConfirmation"] == "false"
    sns.unsubscribe(SubscriptionArn=arn)
    assert code_of(sns.get_subscription_attributes, SubscriptionArn=arn) == ("NotFound", 404)
    assert sns.list_tags_for_resource(ResourceArn=TOPIC)["Tags"] == [{"Key": "a", "Value": "1"}]
    sns.delete_topic(TopicArn=TOPIC)
    assert (sns.list_topics()["Topics"], sns.list_subscriptions()["Subscriptions"]) == ([], [])
    assert code_of(sns.publish, TopicArn=TOPIC, Message="m") == ("NotFound", 404)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"Protocol": "sqs", "Endpoint": "arn:aws:sqs:us-east-1:1:q"}, "sqs is not supported by Headrace"),
        ({"Protocol": "https", "Endpoint": "http://127.0.0.1/"}, "no URL of the protocol"),
        ({"Protocol": "http", "Endpoint": "http:///a"}, "no URL of the protocol"),
        ({"Protocol": "http", "Endpoint": "http://h/", "Attributes": {"FilterPolicy": "{}"}}, "FilterPolicy is not"),
    ],
)
def test_other_subscriptions_are_refused_by_name(
    still_platform: Platform, params: dict[str, Any], message: str
) -> None:
    sns = still_platform.client("sns")
    sns.create_topic(Name="t")
    with pytest.raises(sns.exceptions.InvalidParameterException, match=message):
        sns.subscribe(TopicArn=TOPIC, **params)


def test_an_alarm_tells_its_topic_of_a_new_state(still_platform: Platform, receiver: tuple[str, Received]) -> None:
    sns, cloudwatch, (url, received) = still_platform.client("sns"), still_platform.client("cloudwatch"), receiver
    confirmed(sns, url, received)
    cloudwatch.put_metric_alarm(
        AlarmName="a",
        AlarmActions=[TOPIC],
        Namespace="N",
        MetricName="m",
        Dimensions=[{"Name": "d", "Value": "v"}],
        Statistic="Average",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1.0,
        ComparisonOperator="GreaterThanThreshold",
    )
    for _ in range(2):  # the second one changes nothing
        cloudwatch.set_alarm_state(AlarmName="a", StateValue="ALARM", StateReason="because")
    cloudwatch.set_alarm_state(AlarmName="a", StateValue="OK", StateReason="no action")
    sns.publish(TopicArn=TOPIC, Message="end")
    message = json.loads(received.get(timeout=WAIT_S)[1])
    assert message["Subject"] == 'ALARM: "a" in us-east-1'
    told = json.loads(message["Message"])
    assert (told["NewStateValue"], told["OldStateValue"], told["NewStateReason"]) == (
        "ALARM",
        "INSUFFICIENT_DATA",
        "because",
    )
    assert told["Trigger"]["Dimensions"] == [{"value": "v", "name": "d"}]
    assert (told["Trigger"]["Statistic"], told["AlarmActions"]) == ("AVERAGE", [TOPIC])
    assert json.loads(received.get(timeout=WAIT_S)[1])["Message"] == "end"


def test_a_message_is_retried_a_few_times_unless_the_answer_is_final() -> None:
    attempts: Queue[str] = Queue()
    answers = {"http://busy/": [503, OSError("refused"), 200], "http://gone/": [404], "http://down/": [500, 500, 500]}

    def send(delivery: Delivery) -> int:
        attempts.put(delivery.url)
        answer = answers[delivery.url].pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    deliverer = Deliverer(delays_s=(0.001, 0.001), send=send)
    for url in answers:
        assert deliverer.deliver(Delivery(url=url, body=b"", headers={}))
    made = sorted(attempts.get(timeout=WAIT_S) for _ in range(7))
    assert made == ["http://busy/"] * 3 + ["http://down/"] * 3 + ["http://gone/"]
    deadline_s = time.monotonic() + WAIT_S
    while any(thread.name == "deliveries" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "threads without messages end"
        time.sleep(0.05)
    assert attempts.empty()


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "fe80::1%2", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1"),
        *("::169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "100.100.100.200", "::ffff:168.63.129.16"),
    ],
)
def test_no_message_goes_to_an_address_where_clouds_answer_with_credentials(address: str) -> None:
    with pytest.raises(ForbiddenAddress):
        check_address(address)
    check_address("127.0.0.1")
    check_address("10.0.0.1")
    check_address("::1")
    check_address("2002:a00:1::1")
