"""Temporary credentials, and links that confirm subscriptions, on a platform that requires keys."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from headrace.platform.account.image_store import NO_IMAGES, ImageStore
from headrace.platform.account.sns import SUBSCRIPTIONS
from headrace.platform.control.app import ControlApp
from headrace.platform.host.access_keys import ACCESS_KEY, AccessKeySpec
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.host.registry import RegistryApp
from headrace.platform.state.records import Record
from headrace.platform.state.store import Store, open_store
from headrace.serving.wire.key_limits import NO_LIMITS, KeyLimits
from tests.platform.control.support import AWS_SCOPE, ROLE, ListedLogs
from tests.waiting import WAIT_S

from .named_apps import KEY, SECRET, platform


class Clock:
    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@contextmanager
def closed_platform(
    clock: Clock, images: ImageStore = NO_IMAGES, limits: KeyLimits = NO_LIMITS
) -> Iterator[tuple[str, Store]]:
    store = open_store("sqlite://")
    store.create(ACCESS_KEY, KEY, spec=AccessKeySpec(secret=SECRET))
    logs: Any = ListedLogs()
    control = ControlApp(
        store, OPERATIONS, aws_scope=AWS_SCOPE, logs=logs, own_images={}, is_strict=False, clock=clock, images=images
    )

    def registry(check_password: Any) -> RegistryApp:
        return RegistryApp(
            images, store, check_password, lambda _key, action: limits.allows_action(action), shortage=lambda: ""
        )

    with platform(is_open=False, control=control, registry=registry, limits=limits) as url:
        yield url, store
    store.close()


def client(service: str, url: str, credentials: dict[str, Any] | None = None) -> Any:
    made = credentials or {"AccessKeyId": KEY, "SecretAccessKey": SECRET}
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=made["AccessKeyId"],
        aws_secret_access_key=made["SecretAccessKey"],
        aws_session_token=made.get("SessionToken"),
    )


def test_an_assumed_role_works_is_named_and_never_outlives_who_assumed_it() -> None:
    clock = Clock()
    with closed_platform(clock) as (url, _):
        answer = client("sts", url).assume_role(RoleArn=ROLE, RoleSessionName="nightly", DurationSeconds=900)
        first = answer["Credentials"]
        assert 880 < first["Expiration"].timestamp() - time.time() <= 901
        sts = client("sts", url, first)
        arn = "arn:aws:sts::123456789012:assumed-role/HeadraceRole/nightly"
        assert sts.get_caller_identity()["Arn"] == answer["AssumedRoleUser"]["Arn"] == arn
        assert client("sagemaker", url, first).list_models()["Models"] == []
        chained = sts.assume_role(RoleArn=f"{ROLE}2", RoleSessionName="s2", DurationSeconds=3600)
        assert chained["Credentials"]["Expiration"] == first["Expiration"]
        assert client("sts", url, chained["Credentials"]).get_caller_identity()["Arn"].endswith("/HeadraceRole2/s2")
        with pytest.raises(ClientError, match="1 hour session limit"):
            sts.assume_role(RoleArn=ROLE, RoleSessionName="s2", DurationSeconds=7200)
        with pytest.raises(ClientError, match="Cannot call GetSessionToken with session credentials"):
            sts.get_session_token()
        clock.ahead_s = -10_000  # of the issuing process: these have expired before they are used
        expired = client("sts", url).get_session_token(DurationSeconds=900)["Credentials"]
        with pytest.raises(ClientError, match="ExpiredToken"):
            client("sts", url, expired).get_caller_identity()


def test_a_link_confirms_its_subscription_without_a_key_and_does_nothing_else() -> None:
    with closed_platform(Clock()) as (url, store):
        sns = client("sns", url)
        topic = sns.create_topic(Name="t")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint="http://127.0.0.1:9/")
        (record,) = store.list(SUBSCRIPTIONS.kind)
        assert isinstance(record, Record)
        link = {"Action": "ConfirmSubscription", "TopicArn": topic, "Token": record.spec.members["token"]}

        def status(method: str = "GET", *, path: str = "/", **sent: Any) -> int:
            return int(httpx.request(method, url + path, timeout=WAIT_S, **sent).status_code)

        def num_pending() -> str:
            pending: str = sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsPending"]
            return pending

        refused = {
            "another token": status(params={**link, "Token": "0" * 64}),
            "a short token": status(params={**link, "Token": "0"}),
            "another operation": status(params={**link, "Action": "DeleteTopic"}),
            "another method": status("POST", params=link),
            "another path": status(path="/bucket", params=link),
        }
        assert all(400 <= found < 500 for found in refused.values()), refused
        assert num_pending() == "1"
        form = {"content-type": "application/x-www-form-urlencoded", "x-amz-target": "SageMaker.DeleteModel"}
        assert status(params=link, content=b"Action=DeleteTopic&Version=2010-03-31", headers=form) == 200
        assert (num_pending(), len(sns.list_topics()["Topics"])) == ("0", 1)
