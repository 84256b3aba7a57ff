"""
Messages about what happens on a platform: of alarms and asynchronous invocations to topics, of endpoints to a webhook.

A message that cannot be made or delivered is logged and affects nothing else. Source of its forms: SageMaker developer
guide, "Asynchronous inference: check prediction results" and "Events that Amazon SageMaker AI sends to EventBridge".
"""

import base64
import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.account.alarm_messages import publish_alarm
from headrace.platform.account.context import AccountCall
from headrace.platform.account.deliveries import Deliverer, Delivery
from headrace.platform.account.sns import publish, timestamp
from headrace.platform.cloudwatch.alarms.records import AlarmRecord
from headrace.platform.cloudwatch.alarms.rules import AlarmState
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord
from headrace.platform.control.model.names import arn_of
from headrace.platform.gateway.async_files import AsyncEnd
from headrace.platform.state.records import Json, Record
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """All methods block on the store; none raises an error."""

    store: Store
    aws_scope: AwsScope
    url: str
    """The platform's address, for links in messages."""
    webhook: str | None = None
    """URL for events of endpoints."""
    deliverer: Deliverer = field(default_factory=Deliverer)
    clock: Callable[[], float] = time.time

    def alarm(self, record: AlarmRecord, before: AlarmState) -> None:
        """Publish a changed state of an alarm to the topics among its actions."""
        self._guarded("alarm", record.name, lambda: publish_alarm(self._context(), record, before))

    def invocation(self, end: AsyncEnd) -> None:
        """Publish the end of an asynchronous invocation to a topic of its endpoint's `NotificationConfig`."""
        self._guarded("invocation", end.pending.endpoint, lambda: self._publish_end(end))

    def endpoint(self, record: EndpointRecord, state: str) -> None:
        """Send an event of an endpoint's new state to the webhook."""
        if self.webhook is not None:
            url = self.webhook
            self._guarded("endpoint", record.name, lambda: self._send_event(url, record, state))

    def _context(self) -> AccountCall:
        return AccountCall(
            store=self.store, aws_scope=self.aws_scope, now_s=self.clock(), url=self.url, deliverer=self.deliverer
        )

    def _guarded(self, kind: str, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 -- an edge: a message must not fail what it is about
            get_logger().warning("message.not_made", kind=kind, name=name, reason=str(error))

    def _publish_end(self, end: AsyncEnd) -> None:
        record = self.store.get(ENDPOINT, end.pending.endpoint)
        if not isinstance(record, Record):
            return
        config = record.spec.revision.config.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
        notification: Json = config.get("NotificationConfig") or {}
        is_failed = end.failure is not None
        topic = notification.get("ErrorTopic" if is_failed else "SuccessTopic")
        if topic is not None:
            included = notification.get("IncludeInferenceResponseIn") or ()
            has_body = ("ERROR_NOTIFICATION_TOPIC" if is_failed else "SUCCESS_NOTIFICATION_TOPIC") in included
            message = end_message(end, region=self.aws_scope.region, has_body=has_body)
            publish(self._context(), {"TopicArn": topic, "Message": json.dumps(message)})

    def _send_event(self, url: str, record: EndpointRecord, state: str) -> None:
        body = json.dumps(endpoint_event(self.aws_scope, record, state, now_s=self.clock())).encode()
        self.deliverer.deliver(Delivery(url=url, body=body, headers={"Content-Type": "application/json"}))


def end_message(end: AsyncEnd, *, region: str, has_body: bool) -> Json:
    """Return the message about the end of an asynchronous invocation."""
    pending = end.pending
    request = {
        "contentType": pending.members.get("ContentType", "application/octet-stream"),
        "endpointName": pending.endpoint,
        **({"inputLocation": pending.input_uri} if pending.input_uri is not None else {}),
    }
    outcome: Json = {"failureReason": end.failure}
    if end.failure is None:
        outcome = {"responseParameters": {"contentType": end.content_type, "outputLocation": pending.output_uri}}
    elif pending.failure_uri is not None:
        outcome["responseParameters"] = {"failureLocation": pending.failure_uri}
    return {
        "awsRegion": region,
        "eventTime": timestamp(end.ended_s),
        "receivedTime": timestamp(pending.accepted_s),
        "invocationStatus": "Completed" if end.failure is None else "Failed",
        "requestParameters": request,
        **outcome,
        **({"responseBody": _body_of(end.body)} if has_body and end.body is not None else {}),
        "inferenceId": pending.inference_id,
        "eventVersion": "1.0",
        "eventSource": "aws:sagemaker",
        "eventName": "InferenceResult",
    }


def _body_of(body: bytes) -> Json:
    try:
        return {"content": body.decode(), "encoding": "UTF8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(body).decode(), "encoding": "BASE64"}


def endpoint_event(aws_scope: AwsScope, record: EndpointRecord, state: str, *, now_s: float) -> Json:
    """Return an event in the form of EventBridge's `SageMaker Endpoint State Change`."""
    arn, revision = arn_of(aws_scope, ENDPOINT, record.name), record.spec.revision
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "SageMaker Endpoint State Change",
        "source": "aws.sagemaker",
        "account": aws_scope.account,
        "time": timestamp(now_s)[:19] + "Z",
        "region": aws_scope.region,
        "resources": [arn],
        "detail": {
            "EndpointName": record.name,
            "EndpointArn": arn,
            "EndpointConfigName": revision.config_name,
            "ProductionVariants": revision.config["ProductionVariants"],
            "EndpointStatus": _CAPITAL.sub("_", state).upper(),
            "CreationTime": int(record.created_s * 1000),
            "LastModifiedTime": int(now_s * 1000),
            "Tags": record.tags,
        },
    }
