"""Log groups and streams of callers, and queries over them, called with boto3 on real files."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.cluster.log_streams import LogStream
from headrace.platform.cluster.platform_logs import PlatformLogs, open_name
from headrace.platform.insights.jobs import QueryJob, QueryOutcome
from headrace.platform.insights.runner import QueryRunner
from tests.platform.account.test_iam import code_of
from tests.platform.control.support import Platform, running_platform
from tests.waiting import WAIT_S, pauses

GROUP = "/my/app"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> PlatformLogs:
    folder = tmp_path_factory.mktemp("logs")
    return PlatformLogs(folder / "workers", folder / "ended", max_bytes=1 << 20)


@pytest.fixture(scope="module")
def written(logs: PlatformLogs) -> Iterator[Platform]:
    with running_platform(reconciles=False, logs=logs) as platform:
        client = platform.client("logs")
        client.create_log_group(logGroupName=GROUP, tags={"a": "1"})
        for name in ("s1", "s2"):
            client.create_log_stream(logGroupName=GROUP, logStreamName=name)
        now_ms = int(time.time() * 1000)
        events = [{"timestamp": now_ms - 10 + number, "message": f"first {number}\nsecond line"} for number in range(3)]
        assert "rejectedLogEventsInfo" not in put(client, "s1", events)
        put(client, "s2", [{"timestamp": now_ms - 9, "message": '{"level": "error"}'}])
        yield platform


def put(client: Any, stream: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = client.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)
    return answer


def test_a_group_is_made_described_and_tagged_in_terraforms_order(written: Platform) -> None:
    client = written.client("logs")
    assert code_of(client.create_log_group, logGroupName=GROUP) == ("ResourceAlreadyExistsException", 400)
    client.put_retention_policy(logGroupName=GROUP, retentionInDays=30)
    (group,) = client.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"]
    assert (group["retentionInDays"], group["logGroupClass"]) == (30, "STANDARD")
    assert group["arn"] == f"{group['logGroupArn']}:*"
    assert code_of(client.put_retention_policy, logGroupName=GROUP, retentionInDays=2)[0] == "InvalidParameterException"
    arn = group["logGroupArn"]
    client.tag_resource(resourceArn=arn, tags={"b": "2"})
    client.untag_log_group(logGroupName=GROUP, tags=["a"])
    assert client.list_tags_for_resource(resourceArn=arn)["tags"] == {"b": "2"}
    client.delete_retention_policy(logGroupName=GROUP)
    assert "retentionInDays" not in client.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"][0]
    missing = {"logGroupName": "/other"}
    assert code_of(client.list_tags_log_group, **missing) == ("ResourceNotFoundException", 400)
    assert code_of(client.create_log_stream, logStreamName="s", **missing) == ("ResourceNotFoundException", 400)


def test_events_that_callers_put_are_read_as_they_were(written: Platform) -> None:
    client = written.client("logs")
    events = client.get_log_events(logGroupName=GROUP, logStreamName="s1", startFromHead=True)["events"]
    assert [event["message"] for event in events] == [f"first {number}\nsecond line" for number in range(3)]
    found = client.filter_log_events(logGroupName=GROUP, filterPattern="error")["events"]
    assert [event["logStreamName"] for event in found] == ["s2"]
    assert (
        code_of(client.create_log_stream, logGroupName=GROUP, logStreamName="s1")[0] == "ResourceAlreadyExistsException"
    )
    now_ms = int(time.time() * 1000)
    later = [{"timestamp": now_ms + 8 * 3_600_000, "message": "m"}]
    assert put(client, "s1", later)["rejectedLogEventsInfo"] == {"tooNewLogEventStartIndex": 0}
    older = [{"timestamp": now_ms - 15 * 86_400_000, "message": "m"}]
    assert put(client, "s1", older)["rejectedLogEventsInfo"] == {"tooOldLogEventEndIndex": 1}
    unordered = [{"timestamp": now_ms, "message": "m"}, {"timestamp": now_ms - 1, "message": "m"}]
    with pytest.raises(client.exceptions.InvalidParameterException, match="chronological"):
        put(client, "s1", unordered)
    with pytest.raises(client.exceptions.InvalidParameterException, match="too large"):
        put(client, "s1", [{"timestamp": now_ms, "message": "m" * 300_000}])


def test_lines_expire_with_the_retention_of_their_group(written: Platform, logs: PlatformLogs) -> None:
    client, name = written.client("logs"), "/short"
    client.create_log_group(logGroupName=name)
    client.create_log_stream(logGroupName=name, logStreamName="s")
    now_ms = int(time.time() * 1000)
    logs.put(open_name(name, "s"), [(now_ms - 2 * 86_400_000, "old"), (now_ms, "new")])

    def messages() -> list[str]:
        return [event["message"] for event in client.filter_log_events(logGroupName=name)["events"]]

    assert messages() == ["old", "new"]
    client.put_retention_policy(logGroupName=name, retentionInDays=1)
    assert messages() == ["new"]
    client.delete_log_stream(logGroupName=name, logStreamName="s")
    assert messages() == []
    client.delete_log_group(logGroupName=name)
    assert code_of(client.filter_log_events, logGroupName=name) == ("ResourceNotFoundException", 400)


def test_a_query_runs_in_the_background_and_is_described(written: Platform) -> None:
    client, now_s = written.client("logs"), int(time.time())
    window = {"logGroupName": GROUP, "startTime": now_s - 60, "endTime": now_s + 60}
    query = "stats count(*) as n by @logStream | sort @logStream"
    query_id = client.start_query(queryString=query, **window)["queryId"]
    deadline_s, pause_s = time.monotonic() + WAIT_S, pauses()
    while (found := client.get_query_results(queryId=query_id))["status"] == "Running":
        assert time.monotonic() < deadline_s
        time.sleep(next(pause_s))
    assert (found["status"], found["statistics"]["recordsScanned"]) == ("Complete", 4.0)
    assert [[cell["value"] for cell in row] for row in found["results"]] == [["s1", "3"], ["s2", "1"]]
    (described,) = client.describe_queries(logGroupName=GROUP)["queries"]
    assert (described["queryId"], described["status"]) == (query_id, "Complete")
    assert code_of(client.stop_query, queryId=query_id) == ("InvalidParameterException", 400)
    assert code_of(client.get_query_results, queryId="other") == ("ResourceNotFoundException", 400)
    with pytest.raises(client.exceptions.MalformedQueryException, match="pattern is not supported by Headrace"):
        client.start_query(queryString="pattern @message", **window)
    other = {**window, "logGroupName": "/other"}
    assert code_of(client.start_query, queryString=query, **other) == ("ResourceNotFoundException", 400)


def test_a_query_that_takes_too_long_ends_and_only_a_few_run_at_once(logs: PlatformLogs) -> None:
    workers, ended = logs.folders
    logs.open("/slow", "s")
    logs.put(open_name("/slow", "s"), [(1, "a" * 64 + "!")])
    job = QueryJob(
        query="filter @message like /^(a+)+$/",
        start_ms=0,
        end_ms=10,
        limit=1,
        account="1",
        workers=str(workers),
        ended=str(ended),
        streams=[LogStream(worker=open_name("/slow", "s"), group="/slow", name="s", created_ms=0, is_open=True)],
    )
    runner, ends, outcomes = QueryRunner(timeout_s=2.0), threading.Semaphore(0), list[QueryOutcome | None]()

    def done(outcome: QueryOutcome | None) -> None:
        outcomes.append(outcome)
        ends.release()

    started = [runner.start(str(number), job, done) for number in range(3)]
    assert started == [True, True, False]
    assert all(ends.acquire(timeout=WAIT_S) for _ in range(2))
    assert outcomes == [None, None]
