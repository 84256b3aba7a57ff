"""CloudWatch Logs with the lines of workers, called with boto3."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.platform.control.api.log_lines import read_pattern
from headrace.platform.control.model.worker import WORKER, ReplicaSpec
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import Platform

GROUP = "/aws/sagemaker/Endpoints/e"


def add_worker(platform: Platform, number: int, variant: str = "AllTraffic") -> str:
    """A worker's record; returns its stream."""
    stream = f"{variant}/i-{number}"
    spec = ReplicaSpec(endpoint="e", endpoint_uid="u", variant=variant, revision=1, log_group=GROUP, log_stream=stream)
    platform.store.create(WORKER, f"w{number}", spec=spec)
    return stream


@pytest.fixture
def logs(still_platform: Platform) -> Any:
    """Two workers that wrote in turns."""
    add_worker(still_platform, 1)
    add_worker(still_platform, 2, "b")
    still_platform.logs.write("one", "three error", "five", worker="w1", begin_ms=1000)
    still_platform.logs.write("two", "four error", worker="w2", begin_ms=1000)
    return still_platform.client("logs")


def messages(found: dict[str, Any]) -> list[str]:
    return [event["message"] for event in found["events"]]


def test_groups_and_streams_are_named_as_by_sagemaker(logs: Any) -> None:
    (group,) = logs.describe_log_groups(logGroupNamePrefix="/aws/sagemaker")["logGroups"]
    assert group["logGroupName"] == GROUP
    streams = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert [stream["logStreamName"] for stream in streams] == ["AllTraffic/i-1", "b/i-2"]
    assert streams[0]["lastEventTimestamp"] == 1002
    page = logs.describe_log_streams(logGroupName=GROUP, limit=1)
    rest = logs.describe_log_streams(logGroupName=GROUP, nextToken=page["nextToken"])
    assert [stream["logStreamName"] for stream in rest["logStreams"]] == ["b/i-2"]


def test_lines_of_all_streams_are_ordered_by_time(logs: Any) -> None:
    assert messages(logs.filter_log_events(logGroupName=GROUP)) == ["one", "two", "three error", "four error", "five"]
    assert messages(logs.filter_log_events(logGroupName=GROUP, filterPattern="error -four")) == ["three error"]
    assert messages(logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix="b/")) == ["two", "four error"]
    assert messages(logs.filter_log_events(logGroupName=GROUP, startTime=1001, endTime=1002)) == [
        "three error",
        "four error",
    ]


def test_pages_of_events_lose_nothing_and_repeat_nothing(logs: Any) -> None:
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=GROUP, PaginationConfig={"PageSize": 2})
    found = [messages(page) for page in pages]
    assert found == [["one", "two"], ["three error", "four error"], ["five"]]


def test_a_stream_is_read_to_its_end_and_followed(logs: Any, still_platform: Platform) -> None:
    stream = {"logGroupName": GROUP, "logStreamName": "AllTraffic/i-1"}
    first = logs.get_log_events(**stream, startFromHead=True, limit=2)
    assert messages(first) == ["one", "three error"]
    second = logs.get_log_events(**stream, nextToken=first["nextForwardToken"])
    assert messages(second) == ["five"]
    third = logs.get_log_events(**stream, nextToken=second["nextForwardToken"])
    assert (messages(third), third["nextForwardToken"]) == ([], second["nextForwardToken"])
    still_platform.logs.write("six", worker="w1", begin_ms=1000)
    assert messages(logs.get_log_events(**stream, nextToken=third["nextForwardToken"])) == ["six"]
    assert messages(logs.get_log_events(**stream, nextToken=second["nextBackwardToken"])) == ["one", "three error"]
    assert messages(logs.get_log_events(**stream, limit=1)) == ["six"]


def test_unknown_groups_and_streams_are_not_found(logs: Any) -> None:
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log group does not exist"):
        logs.filter_log_events(logGroupName="/aws/sagemaker/Endpoints/other")
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log stream does not exist"):
        logs.get_log_events(logGroupName=GROUP, logStreamName="no")


@pytest.mark.parametrize(
    "params",
    [{"nextToken": "?"}, {"nextToken": "W10="}, {"filterPattern": "[ip, user]"}, {"nextToken": "eyJhIjotMX0="}],
)
def test_malformed_patterns_and_tokens_are_invalid_parameters(logs: Any, params: dict[str, str]) -> None:
    with pytest.raises(ClientError) as caught:
        logs.filter_log_events(logGroupName=GROUP, **params)
    assert caught.value.response["Error"]["Code"] == "InvalidParameterException"


@pytest.mark.parametrize(
    ("pattern", "line", "fits"),
    [
        ("", "anything", True),
        ("a b", "b and a", True),
        ("a b", "only a", False),
        ('"a b"', "b a b", True),
        ('"a b"', "a  b", False),
        ("?a ?b", "has b", True),
        ("?x ?y", "none", False),
        ("a -b", "a b", False),
        ('-"b c"', "a b c", False),
        ('"a \\"b\\""', 'a "b"', True),
        ("{ $.level = error }", '{"level": "error"}', True),
        ('{$.level="error"}', '{"level": "errors"}', False),
        ('{ $.level != "error" }', '{"level": "info"}', True),
        ('{ $.level != "error" }', "{}", False),
        ("{ $.level = error }", "level error", False),
        ('{ $.a.b[1] = "x" }', '{"a": {"b": [0, "x"]}}', True),
        ("{ $['a b'] = 1 }", '{"a b": 1.0}', True),
        ("{ $.status = 404 }", '{"status": "404"}', True),
        ("{ $.status >= 4e2 && $.status < 500 }", '{"status": 404}', True),
        ("{ $.status >= 400 && $.status < 500 }", '{"status": 503}', False),
        ("{ $.ok = 1 }", '{"ok": true}', False),
        ("{ $.path = /v1/*/b* }", '{"path": "/v1/a/bc"}', True),
        ("{ $.path = /v1/*/b }", '{"path": "/v1/b"}', False),
        ("{ ($.a = 1 || $.b = 2) && $.c IS TRUE }", '{"b": 2, "c": true}', True),
        ("{ ($.a = 1 || $.b = 2) && $.c IS TRUE }", '{"b": 2, "c": 1}', False),
        ("{ $.a IS NULL }", '{"a": null}', True),
        ("{ $.a IS NULL }", "{}", False),
        ("{ $.a not exists }", "{}", True),
        ('{ $.a = "é \\"x\\"" }', '{"a": "é \\"x\\""}', True),
    ],
)
def test_a_pattern_matches_lines(pattern: str, line: str, *, fits: bool) -> None:
    assert read_pattern(pattern).fits(line) is fits


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("{ $.a = 1", "a closing } is missing"),
        ("{ }", "expected a property"),
        ("{ $.a }", "expected an operator and a value"),
        ("{ $.a = }", "expected an operator and a value"),
        ("{ a = 1 }", "expected a property such as"),
        ("{ $.a > x }", "expected a number after >"),
        ("{ ($.a = 1 }", r"a closing \) is missing"),
        ("{ $.a = 1 ) }", "unexpected"),
        ("{ $.a = %x% }", "regular expressions are not supported"),
        ("{" + "(" * 60 + "$.a = 1" + ")" * 60 + "}", "parentheses inside each other"),
        ("%a%", "only words"),
    ],
)
def test_a_malformed_pattern_says_what_is_wrong(pattern: str, why: str) -> None:
    with pytest.raises(AwsError, match=why):
        read_pattern(pattern)


def end(platform: Platform, number: int, *, created_s: float = 0.5) -> None:
    """The worker's log is kept, its record goes."""
    record = platform.store.get(WORKER, f"w{number}")
    assert record is not None
    platform.logs.keep(
        record.name, log_group=record.spec.log_group, log_stream=record.spec.log_stream, created_s=created_s
    )
    platform.store.remove(record)


def test_streams_outlive_their_workers(logs: Any, still_platform: Platform) -> None:
    before = logs.filter_log_events(logGroupName=GROUP)["events"]
    stream = {"logGroupName": GROUP, "logStreamName": "AllTraffic/i-1"}
    token = logs.get_log_events(**stream, startFromHead=True, limit=2)["nextForwardToken"]
    end(still_platform, 1)
    assert logs.filter_log_events(logGroupName=GROUP)["events"] == before
    assert messages(logs.get_log_events(**stream, nextToken=token)) == ["five"]
    ended, _ = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert (ended["logStreamName"], ended["creationTime"], ended["lastEventTimestamp"]) == ("AllTraffic/i-1", 500, 1002)
    newest_first = logs.describe_log_streams(logGroupName=GROUP, orderBy="LastEventTime", descending=True)
    assert [stream["logStreamName"] for stream in newest_first["logStreams"]] == ["AllTraffic/i-1", "b/i-2"]
    end(still_platform, 2)  # the endpoint is gone
    (group,) = logs.describe_log_groups()["logGroups"]
    assert (group["logGroupName"], group["creationTime"]) == (GROUP, 500)
    assert messages(logs.filter_log_events(logGroupName=GROUP, startTime=1002)) == ["five"]


def test_pages_continue_after_the_end_of_a_worker(logs: Any, still_platform: Platform) -> None:
    found: list[str] = []
    page: dict[str, Any] = {}
    while not found or "nextToken" in page:
        token = {"nextToken": page["nextToken"]} if page else {}
        page = logs.filter_log_events(logGroupName=GROUP, limit=1, **token)
        found += messages(page)
        if len(found) == 2:
            end(still_platform, 1, created_s=still_platform.store.list(WORKER)[0].created_s)
    assert found == ["one", "two", "three error", "four error", "five"]


def test_tokens_over_many_ended_streams_name_only_unfinished_ones(still_platform: Platform) -> None:
    for number in range(60):
        add_worker(still_platform, number)
        still_platform.logs.write(f"{number} a", f"{number} b", worker=f"w{number}", begin_ms=1000 + number * 10)
        end(still_platform, number, created_s=1 + number / 100)
    client = still_platform.client("logs")
    pages = list(
        client.get_paginator("filter_log_events").paginate(logGroupName=GROUP, PaginationConfig={"PageSize": 7})
    )
    assert [text for page in pages for text in messages(page)] == [
        f"{number} {part}" for number in range(60) for part in "ab"
    ]
    assert max(len(page.get("nextToken", "")) for page in pages) < 200


def test_logs_of_ended_workers_can_be_removed(logs: Any, still_platform: Platform) -> None:
    stream = {"logGroupName": GROUP, "logStreamName": "AllTraffic/i-1"}
    with pytest.raises(logs.exceptions.OperationAbortedException, match="worker"):
        logs.delete_log_stream(**stream)
    end(still_platform, 1)
    with pytest.raises(logs.exceptions.OperationAbortedException, match="workers"):
        logs.delete_log_group(logGroupName=GROUP)
    logs.delete_log_stream(**stream)
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log stream does not exist"):
        logs.get_log_events(**stream)
    end(still_platform, 2)
    logs.delete_log_group(logGroupName=GROUP)
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log group does not exist"):
        logs.delete_log_group(logGroupName=GROUP)
    assert logs.describe_log_groups()["logGroups"] == []
