"""
SNS: topics and their subscriptions by HTTP and HTTPS, which are stored, and the messages that are published.

A subscription gets messages once it is confirmed: its URL receives a token, which it returns (ConfirmSubscription, or a
GET of `SubscribeURL`). Messages have the form of AWS's, without a signature: its certificate would have to be AWS's.
Source: Amazon SNS developer guide, "Parsing message formats".
"""

import base64
import json
import secrets
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from headrace.platform.account.context import AccountCall
from headrace.platform.account.deliveries import Delivery
from headrace.platform.account.resource import Pages, Refusal, Resource, StoredRecord, StoredSpec, stored_kind
from headrace.platform.state.records import Json, Record
from headrace.platform.state.selection import Selection
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator

VERSION: Final = "2010-03-31"
_MAX_MESSAGE_BYTES: Final = 262_144
_MAX_SUBJECT: Final = 100
_PENDING: Final = "PendingConfirmation"
_PROTOCOLS: Final = ("http", "https")
_RAW: Final = "RawMessageDelivery"


def _invalid(why: str) -> AwsError:
    return AwsError("InvalidParameter", f"Invalid parameter: {why}")


_PAGES: Final = Pages(paginator=Paginator(invalid_token=lambda: _invalid("NextToken")))
TOPICS: Final = Resource(
    kind=stored_kind("sns-topic"),
    key="Name",
    list_member="Topics",
    arn="sns:{region}:{account}:{name}",
    names=("TopicArn", "ResourceArn", "Name"),
    pages=_PAGES,
    absent=Refusal("NotFound", "Topic does not exist", 404),
    present=Refusal("InvalidParameter", "Invalid parameter: Attributes Reason: Topic already exists"),
    full=Refusal("TopicLimitExceeded", "There are {most} topics already; delete some first.", 403),
    invalid=Refusal("InvalidParameter", "Invalid parameter: {why}"),
    most=3000,
    arn_member="TopicArn",
    separator=":",
)
SUBSCRIPTIONS: Final = Resource(
    kind=stored_kind("sns-subscription"),
    key="Name",
    list_member="Subscriptions",
    arn="sns:{region}:{account}:{name}",
    names=("SubscriptionArn",),
    pages=_PAGES,
    absent=Refusal("NotFound", "Subscription does not exist", 404),
    present=Refusal("InvalidParameter", "Invalid parameter: Another call creates the subscription"),
    full=Refusal("SubscriptionLimitExceeded", "There are {most} subscriptions already; delete some first.", 403),
    invalid=Refusal("InvalidParameter", "Invalid parameter: {why}"),
    most=3000,
    arn_member="SubscriptionArn",
    separator=":sns:",
)
"""Their names are `topic:uuid`, from which ARNs are formed as on AWS."""


def create_topic(context: AccountCall, params: Json) -> Json:
    """Answer CreateTopic: a topic of the same name is returned, unless its attributes or tags differ."""
    name, attributes = params["Name"], params.get("Attributes", {})
    if name.endswith(".fifo") or attributes.get("FifoTopic") == "true":
        raise _invalid("Name Reason: FIFO topics are not supported by Headrace. Use a standard topic.")
    if not 0 < len(name) <= 256 or not set(name) <= _NAME_CHARACTERS:
        raise _invalid("Topic Name")
    record = context.store.get(TOPICS.kind, name)
    if not isinstance(record, Record):
        return TOPICS.create(context, params)
    known = record.spec.members.get("Attributes", {})
    if any(known.get(attribute) != value for attribute, value in attributes.items()):
        raise _invalid("Attributes Reason: Topic already exists with different attributes")
    if params.get("Tags") and TOPICS.merge_tags(params) != record.tags:
        raise _invalid("Tags Reason: Topic already exists with different tags")
    return {"TopicArn": TOPICS.arn_of(context, name, record.spec)}


_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def delete_topic(context: AccountCall, params: Json) -> Json:
    """Answer DeleteTopic: the topic and its subscriptions; a topic that does not exist is no error."""
    record = context.store.get(TOPICS.kind, TOPICS.name_in(params))
    if record is not None:
        for subscription in _subscriptions(context, record.name):
            context.store.remove(subscription)
        context.store.remove(record)
    return {}


def get_topic_attributes(context: AccountCall, params: Json) -> Json:
    record = TOPICS.find(context, params)
    pending = [_is_pending(subscription) for subscription in _subscriptions(context, record.name)]
    counted = {
        "TopicArn": TOPICS.arn_of(context, record.name, record.spec),
        "Owner": context.aws_scope.account,
        "SubscriptionsConfirmed": str(pending.count(False)),
        "SubscriptionsPending": str(pending.count(True)),
        "SubscriptionsDeleted": "0",
    }
    return {"Attributes": {"DisplayName": "", **record.spec.members.get("Attributes", {}), **counted}}


def set_topic_attributes(context: AccountCall, params: Json) -> Json:
    _set_attribute(context, TOPICS, params)
    return {}


def _set_attribute(context: AccountCall, resource: Resource, params: Json) -> None:
    attribute = {params["AttributeName"]: params.get("AttributeValue", "")}

    def change(spec: StoredSpec) -> StoredSpec:
        attributes = {**spec.members.get("Attributes", {}), **attribute}
        return msgspec.structs.replace(spec, members={**spec.members, "Attributes": attributes})

    resource.change(context, params, change)


def list_topics(context: AccountCall, params: Json) -> Json:
    page = TOPICS.list(context, params)
    return {**page, "Topics": [{"TopicArn": topic["TopicArn"]} for topic in page["Topics"]]}


def subscribe(context: AccountCall, params: Json) -> Json:
    """Answer Subscribe: store a pending subscription, and send its token to the URL; repeat that for a pending one."""
    topic = TOPICS.find(context, params)
    protocol, endpoint = params["Protocol"], params.get("Endpoint", "")
    if protocol not in _PROTOCOLS:
        raise _invalid(f"Protocol Reason: {protocol} is not supported by Headrace. Use http or https.")
    check_endpoint(protocol, endpoint)
    attributes = params.get("Attributes", {})
    _check_attributes(attributes)
    found = next((sub for sub in _subscriptions(context, topic.name) if sub.spec.members["Endpoint"] == endpoint), None)
    if found is None:
        members = {
            "TopicArn": TOPICS.arn_of(context, topic.name, topic.spec),
            "Protocol": protocol,
            "Endpoint": endpoint,
            "Attributes": attributes,
            "token": secrets.token_hex(32),
        }
        name = f"{topic.name}:{uuid.uuid4()}"
        SUBSCRIPTIONS.add(context, name, StoredSpec(members=members), {})
        found = SUBSCRIPTIONS.find(context, {"SubscriptionArn": name})
    arn = SUBSCRIPTIONS.arn_of(context, found.name, found.spec)
    if not _is_pending(found):
        return {"SubscriptionArn": arn}
    _send_token(context, found)
    return {"SubscriptionArn": arn if params.get("ReturnSubscriptionArn") else "pending confirmation"}


def check_endpoint(protocol: str, endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        is_url = url.scheme == protocol and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none, or half of an IPv6 address
        is_url = False
    if not (is_url and endpoint.isascii() and endpoint.isprintable()):
        raise _invalid("Endpoint Reason: it is no URL of the protocol")


def _check_attributes(attributes: Mapping[str, str]) -> None:
    other = next((name for name in attributes if name != _RAW), None)
    if other is not None:
        raise _invalid(f"Attributes Reason: {other} is not supported by Headrace, only {_RAW}. Leave it out.")
    if attributes.get(_RAW, "false") not in ("true", "false"):
        raise _invalid(f"Attributes Reason: {_RAW}: Invalid value. Must be true or false.")


def confirm_subscription(context: AccountCall, params: Json) -> Json:
    """Answer ConfirmSubscription. The token, which only the URL has received, is the only credential it takes."""
    topic = TOPICS.find(context, params)
    for subscription in _subscriptions(context, topic.name):
        if secrets.compare_digest(subscription.spec.members["token"].encode(), params["Token"].encode()):
            members = {**subscription.spec.members, "is_confirmed": True}
            context.store.update(subscription, spec=StoredSpec(members=members))
            return {"SubscriptionArn": SUBSCRIPTIONS.arn_of(context, subscription.name, subscription.spec)}
    raise _invalid("Token")


def unsubscribe(context: AccountCall, params: Json) -> Json:
    """Answer Unsubscribe; a subscription that does not exist is no error."""
    record = context.store.get(SUBSCRIPTIONS.kind, _name_of(params))
    if record is not None:
        context.store.remove(record)
    return {}


def list_subscriptions(context: AccountCall, params: Json) -> Json:
    topic = TOPICS.find(context, params).name if "TopicArn" in params else None
    listed = [(record.name, _summary(context, record)) for record in _subscriptions(context, topic)]
    return _PAGES.answer(sorted(listed, key=lambda item: item[0]), params, member="Subscriptions")


def _summary(context: AccountCall, record: StoredRecord) -> Json:
    arn = _PENDING if _is_pending(record) else SUBSCRIPTIONS.arn_of(context, record.name, record.spec)
    members = {name: record.spec.members[name] for name in ("TopicArn", "Protocol", "Endpoint")}
    return {"SubscriptionArn": arn, "Owner": context.aws_scope.account, **members}


def get_subscription_attributes(context: AccountCall, params: Json) -> Json:
    record = _subscription(context, params)
    return {
        "Attributes": {
            **_summary(context, record),
            "SubscriptionArn": SUBSCRIPTIONS.arn_of(context, record.name, record.spec),
            "ConfirmationWasAuthenticated": "false",
            "PendingConfirmation": str(_is_pending(record)).lower(),
            _RAW: "false",
            **record.spec.members["Attributes"],
        }
    }


def set_subscription_attributes(context: AccountCall, params: Json) -> Json:
    _check_attributes({params["AttributeName"]: params.get("AttributeValue", "")})
    name = _subscription(context, params).name
    _set_attribute(context, SUBSCRIPTIONS, {**params, "SubscriptionArn": name})
    return {}


def _subscription(context: AccountCall, params: Json) -> StoredRecord:
    return SUBSCRIPTIONS.find(context, {"SubscriptionArn": _name_of(params)})


def _name_of(params: Json) -> str:
    """Return the name of the subscription with an ARN: all that follows the account."""
    return ":".join(params["SubscriptionArn"].split(":")[5:])


def _subscriptions(context: AccountCall, topic: str | None) -> Iterator[StoredRecord]:
    """Yield the subscriptions of a topic, or of all."""
    selection = Selection(name_prefix="" if topic is None else f"{topic}:")
    return (record for record in context.store.each(SUBSCRIPTIONS.kind, selection) if isinstance(record, Record))


def _is_pending(record: StoredRecord) -> bool:
    return not record.spec.members.get("is_confirmed")


def publish(context: AccountCall, params: Json) -> Json:
    arn = params.get("TopicArn") or params.get("TargetArn")
    if not arn:
        raise _invalid("TopicArn or TargetArn Reason: no value for required parameter")
    topic = TOPICS.find(context, {"TopicArn": arn})
    texts, subject = message_texts(params), params.get("Subject", "")
    if len(subject) > _MAX_SUBJECT or not (subject.isascii() and subject.isprintable()):
        raise _invalid("Subject")
    message_id = str(uuid.uuid4())
    for record in _subscriptions(context, topic.name):
        if not _is_pending(record):
            text = texts.get(record.spec.members["Protocol"], texts["default"])
            _send_message(context, record, message_id, {**params, "Message": text})
    return {"MessageId": message_id}


def publish_batch(context: AccountCall, params: Json) -> Json:
    entries = params["PublishBatchRequestEntries"]
    if not entries or len(entries) > _MAX_BATCH or len({entry["Id"] for entry in entries}) < len(entries):
        raise _invalid(f"PublishBatchRequestEntries Reason: expected 1 to {_MAX_BATCH} entries with different ids")
    done: list[Json] = []
    failed: list[Json] = []
    for entry in entries:
        try:
            sent = publish(context, {**entry, "TopicArn": params["TopicArn"]})
        except AwsError as error:
            failed.append({"Id": entry["Id"], "Code": error.code, "Message": error.message, "SenderFault": True})
        else:
            done.append({"Id": entry["Id"], **sent})
    return {"Successful": done, "Failed": failed}


_MAX_BATCH: Final = 10


def message_texts(params: Json) -> dict[str, str]:
    """Return the texts of a message by protocol, and that for all others: `default`."""
    message = params["Message"]
    if not message or len(message.encode(errors="replace")) > _MAX_MESSAGE_BYTES:
        raise _invalid("Message too long" if message else "Empty message")
    if params.get("MessageStructure") != "json":
        return {"default": message}
    try:
        texts = json.loads(message)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, dict) or not isinstance(texts.get("default"), str):
        raise _invalid("Message Structure - No default entry in JSON message body")
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _send_token(context: AccountCall, record: StoredRecord) -> None:
    members = record.spec.members
    fields = {"Action": "ConfirmSubscription", "TopicArn": members["TopicArn"], "Token": members["token"]}
    body = {
        "Type": "SubscriptionConfirmation",
        "MessageId": str(uuid.uuid4()),
        "Token": members["token"],
        "TopicArn": members["TopicArn"],
        "Message": f"You have chosen to subscribe to the topic {members['TopicArn']}.\n"
        "To confirm the subscription, visit the SubscribeURL included in this message.",
        "SubscribeURL": f"{context.url}/?{urlencode({**fields, 'Version': VERSION})}",
        "Timestamp": timestamp(context.now_s),
    }
    _send(context, record, body, json.dumps(body, indent=2))


def _send_message(context: AccountCall, record: StoredRecord, message_id: str, params: Json) -> None:
    body: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": message_id,
        "TopicArn": record.spec.members["TopicArn"],
        **({"Subject": params["Subject"]} if params.get("Subject") else {}),
        "Message": params["Message"],
        "Timestamp": timestamp(context.now_s),
    }
    if params.get("MessageAttributes"):
        body["MessageAttributes"] = {
            name: {"Type": value["DataType"], "Value": _attribute_value(value)}
            for name, value in params["MessageAttributes"].items()
        }
    is_raw = record.spec.members["Attributes"].get(_RAW) == "true"
    _send(context, record, body, params["Message"] if is_raw else json.dumps(body, indent=2), is_raw=is_raw)


def _attribute_value(value: Json) -> str:
    binary = value.get("BinaryValue")
    return str(value.get("StringValue", "")) if binary is None else base64.b64encode(binary).decode()


def _send(
    context: AccountCall, record: StoredRecord, body: Mapping[str, Any], text: str, *, is_raw: bool = False
) -> None:
    headers = {
        "Content-Type": "text/plain; charset=UTF-8",
        "User-Agent": "Amazon Simple Notification Service Agent",
        "x-amz-sns-message-type": body["Type"],
        "x-amz-sns-message-id": body["MessageId"],
        "x-amz-sns-topic-arn": body["TopicArn"],
        "x-amz-sns-subscription-arn": SUBSCRIPTIONS.arn_of(context, record.name, record.spec),
        **({"x-amz-sns-rawdelivery": "true"} if is_raw else {}),
    }
    content = text.encode(errors="replace")
    context.deliverer.deliver(Delivery(url=record.spec.members["Endpoint"], body=content, headers=headers))


def timestamp(time_s: float) -> str:
    moment = datetime.fromtimestamp(time_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
