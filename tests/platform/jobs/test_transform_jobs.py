"""Batch transform jobs by boto3: outputs, failures, stops and kills, and the workers that come and go with them."""

import asyncio
import gzip
import json
import re
from collections import Counter
from datetime import UTC
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.core.errors import Unavailable
from headrace.platform.control.loops.scraper import series_of
from headrace.platform.control.model.endpoint import JOB_ENDPOINT
from headrace.platform.control.model.worker import WORKER
from headrace.platform.jobs import loop
from headrace.platform.jobs.spool import Spool
from headrace.platform.state.routes import ROUTE
from headrace.testing.fake_launcher import fails_after
from tests.platform.control.calls import refusal
from tests.platform.gateway.workers import Exchange

from .conftest import Scene


def lines(first: int, last: int) -> bytes:
    return b"".join(b'{"id": %d}\n' % number for number in range(first, last))


async def upper(exchange: Exchange) -> None:
    exchange.whole(exchange.asked.body.upper())


def test_a_job_starts_workers_writes_an_output_for_each_object_and_leaves_nothing(scene: Scene) -> None:
    scene.put(a=b"one\ntwo\n", b__c=b"three", empty=b"")
    tags = [{"Key": "team", "Value": "x"}]
    arn = scene.start(
        "My-Job", Environment={"A": "2"}, MaxPayloadInMB=1, ContentType="text/plain", Accept="x/y", Tags=tags
    )["TransformJobArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:123456789012:transform-job/my-job"
    found = scene.ended("My-Job")
    assert scene.outputs("My-Job") == {"a.out": b"one\ntwo\n", "b/c.out": b"three\n", "empty.out": b""}
    assert sorted(scene.bodies) == [b"one", b"three", b"two"]
    asked = next(asked for asked in scene.worker.asked if asked.path == "/invocations")
    assert (asked.headers["content-type"], asked.headers["accept"]) == ("text/plain", "x/y")
    assert found["CreationTime"] <= found["TransformStartTime"] <= found["TransformEndTime"]
    assert (found["TransformJobArn"], found["Environment"], found["MaxPayloadInMB"]) == (arn, {"A": "2"}, 1)
    assert scene.client.list_tags(ResourceArn=arn)["Tags"] == tags
    kinds = (JOB_ENDPOINT, WORKER, ROUTE)
    scene.until(lambda: not any(scene.platform.store.list(kind) for kind in kinds), "its workers are gone")
    assert not list((scene.folder / "transforms").iterdir())
    (started,) = scene.platform.machine.started
    assert started.startswith("transform-job.My-Job-AllTraffic-i-")


def test_its_workers_are_no_endpoint_and_have_its_environment_and_its_log(scene: Scene) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        is_asked.set()
        await may_answer.wait()
        exchange.whole(exchange.asked.body)

    scene.script = wait
    scene.put(a=b"one\n")
    scene.start("job", Environment={"A": "2"}, MaxConcurrentTransforms=3)
    scene.until(is_asked.is_set, "the model is asked")
    (worker,) = scene.platform.machine.living()
    expected = {"A": "2", "SAGEMAKER_BATCH": "true", "SAGEMAKER_BATCH_STRATEGY": "SINGLE_RECORD"}
    expected |= {"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3"}
    assert {name: worker.spec.environment.get(name) for name in expected} == expected
    assert scene.client.list_endpoints()["Endpoints"] == []
    scene.platform.logs.write("hello", worker=worker.spec.name)
    logs = scene.platform.client("logs")
    streams = logs.describe_log_streams(logGroupName="/aws/sagemaker/TransformJobs", logStreamNamePrefix="job/")
    (stream,) = streams["logStreams"]
    assert stream["logStreamName"].startswith("job/i-")
    (record,) = scene.platform.store.list(WORKER)
    instance = stream["logStreamName"].rpartition("-")[0]
    assert series_of(record.spec) == ("/aws/sagemaker/TransformJobs", (("Host", instance),))
    assert scene.gateway.routes == {}, "lists of models and metrics of endpoints do not have it"
    assert scene.client.describe_transform_job(TransformJobName="job")["TransformJobStatus"] == "InProgress"
    scene.loop.call_soon_threadsafe(may_answer.set)
    scene.ended("job")


JOINED = {"InputFilter": "$.id", "OutputFilter": "$.SageMakerOutput", "JoinSource": "Input"}


def test_formats_are_split_sent_and_assembled_as_asked(scene: Scene) -> None:
    scene.script = upper
    scene.put(a=b"a,1\nb,2\n", zip=gzip.compress(b"x\ny\n"), j=b'{"id": "k"}\n{"id": "l"}\n')
    scene.objects.objects["s3://manifest/m"] = (b'[{"prefix": "s3://in/"}, "a"]', "")
    plain: dict[str, Any] = {"BatchStrategy": "MultiRecord", "AssembleWith": "None"}
    csv = {"ContentType": "text/csv", "DataProcessing": {"InputFilter": "$[0]", "JoinSource": "Input"}}
    for job, prefix, more in (
        ("whole", "s3://in/a", {"SplitType": "None", **plain}),
        ("multi", "s3://manifest/m", {"S3DataType": "ManifestFile", **plain}),
        ("single", "s3://in/a", {"AssembleWith": "None"}),
        ("zip", "s3://in/zip", {"CompressionType": "Gzip"}),
        ("csv", "s3://in/a", csv),
        ("json", "s3://in/j", {"ContentType": "application/json", "DataProcessing": JOINED}),
    ):
        scene.start(job, prefix, **more)
    for job, output in (
        ("whole", {"a.out": b"A,1\nB,2\n"}),
        ("multi", {"a.out": b"A,1\nB,2\n"}),
        ("single", {"a.out": b"A,1B,2"}),
        ("zip", {"zip.out": b"X\nY\n"}),
        ("csv", {"a.out": b"a,1,A\nb,2,B\n"}),
        ("json", {"j.out": b'"K"\n"L"\n'}),
    ):
        scene.ended(job)
        assert scene.outputs(job) == output, job


def test_captured_inputs_and_outputs_are_manifests_and_records_have_inference_ids(scene: Scene) -> None:
    async def answer(exchange: Exchange) -> None:
        body = exchange.asked.body
        exchange.whole(body, status="400 Bad Request" if b"bad" in body else "200 OK")

    scene.script = answer
    scene.put(in__a=b"a,1\nb,2\n", in__b=b"bad\n", j=b'{"x": 1}\n[2]\n')
    config = {"DestinationS3Uri": "s3://out/kept/", "GenerateInferenceId": True}
    scene.start("csv", "s3://in/in/", DataCaptureConfig=config, ContentType="text/csv", BatchStrategy="MultiRecord")
    assert scene.ended("csv", "Failed")["DataCaptureConfig"] == config
    scene.start("json", "s3://in/j", DataCaptureConfig=config, ContentType="text/plain", Accept="application/json")
    found = scene.ended("json")
    folder = f"{found['TransformStartTime'].astimezone(UTC):%Y/%m/%d/%H}"
    started = f"{found['TransformStartTime'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    kept = scene.outputs("kept")
    assert json.loads(kept[f"input/{folder}/csv.jsonl"]) == [{"prefix": "s3://in/in/"}, "a"]
    assert json.loads(kept[f"output/{folder}/csv.jsonl"]) == [{"prefix": "s3://out/csv/"}, "a.out"]
    assert json.loads(kept[f"input/{folder}/json.jsonl"]) == [{"prefix": "s3://in/"}, "j"]
    rows = [line.split(",") for line in scene.outputs("csv")["a.out"].decode().splitlines()]
    assert [row[:2] for row in rows] == [["a", "1"], ["b", "2"]]
    assert all(re.fullmatch("[0-9a-f-]{36}", row[2]) and row[3].endswith("Z") for row in rows)
    objects = [json.loads(line) for line in scene.outputs("json")["j.out"].splitlines()]
    assert len({item.pop("SageMakerInferenceId") for item in objects}) == 2
    time = {"SageMakerInferenceTime": started}
    assert objects == [{"x": 1, **time}, {"SageMakerOutput": [2], **time}]


def test_an_object_that_fails_has_no_output_and_the_others_have_one(scene: Scene) -> None:
    asked = Counter[bytes]()

    async def fussy(exchange: Exchange) -> None:
        body = exchange.asked.body
        asked[body] += 1
        if body == b"bad":
            exchange.whole(b"no such word", status="400 Bad Request")
        elif body == b"flaky" and asked[body] == 1:
            exchange.whole(b"", status="500 Internal Server Error")
        elif body == b"busy" and asked[body] == 1:
            exchange.whole(b"", status="429 Too Many Requests")
        elif body == b"broken":
            exchange.whole(b"oh", status="503 Service Unavailable")
        else:
            exchange.whole(body)

    scene.script = fussy
    scene.put(a=b"flaky\nbusy\n", b=b"good\nbad\n", c=b"fine\n")
    scene.start("partly", ModelClientConfig={"InvocationsMaxRetries": 1})
    found = scene.ended("partly", "Failed")
    assert found["FailureReason"] == (
        "ClientError: in/b: Bad HTTP status received from algorithm: 400. It said: no such word "
        "(1 of 3 objects failed.)"
    )
    assert scene.outputs("partly") == {"a.out": b"flaky\nbusy\n", "c.out": b"fine\n"}
    scene.put(d=b"broken\n")
    scene.start("broken", "s3://in/d", ModelClientConfig={"InvocationsMaxRetries": 0})
    assert scene.ended("broken", "Failed")["FailureReason"] == (
        "AlgorithmError: in/d: Bad HTTP status received from algorithm: 503. It said: oh"
    )
    assert asked[b"broken"] == 1
    scene.start("none", "s3://in/none")
    assert scene.ended("none", "Failed")["FailureReason"] == "ClientError: No objects found under s3://in/none."


def test_a_model_that_does_not_start_fails_the_job(scene: Scene) -> None:
    scene.platform.machine.script = lambda _spec: fails_after(message="The model is broken.")
    scene.put(a=b"one\n")
    scene.start("job")
    reason = scene.ended("job", "Failed")["FailureReason"]
    assert reason.startswith("AlgorithmError: ")
    assert "The model is broken." in reason


def test_a_stop_ends_the_requests_and_the_workers(scene: Scene) -> None:
    async def hang(exchange: Exchange) -> None:
        await exchange.until_gone()

    scene.script = hang
    scene.put(a=b"one\n")
    scene.start("job")
    scene.until(lambda: scene.bodies, "the model is asked")
    scene.client.stop_transform_job(TransformJobName="job")
    assert scene.client.describe_transform_job(TransformJobName="job")["TransformJobStatus"] in {"Stopping", "Stopped"}
    assert "TransformEndTime" in scene.ended("job", "Stopped")
    scene.until(lambda: scene.worker.num_gone == 1, "the request was given up")
    scene.until(lambda: not list(scene.platform.machine.living()), "its workers are gone")
    assert scene.outputs("job") == {}
    assert refusal(scene.client.stop_transform_job, TransformJobName="job") == (
        "The request was rejected because the transform job is in status Stopped."
    )


def test_a_killed_platform_goes_on_without_a_lost_or_doubled_record(scene: Scene) -> None:
    num_kills, hung = 5, set[int]()

    async def hang_once_in_each_life(exchange: Exchange) -> None:
        number = json.loads(exchange.asked.body)["id"]
        if number % 300 == 299 and number not in hung and len(hung) < min(num_kills, scene.num_starts):
            hung.add(number)
        if len(hung) == scene.num_starts:
            await exchange.until_gone()
        else:
            exchange.whole(exchange.asked.body)

    scene.script = hang_once_in_each_life
    scene.put(a=lines(0, 1500), b=lines(1500, 1600), c=lines(1600, 2000))
    scene.start("job", MaxConcurrentTransforms=4)
    for number in range(num_kills):
        scene.until(lambda number=number: len(hung) > number, "a request hangs")
        scene.kill()
    scene.ended("job")
    assert scene.outputs("job") == {
        "a.out": lines(0, 1500),
        "b.out": lines(1500, 1600),
        "c.out": lines(1600, 2000),
    }
    assert len(scene.bodies) <= 2000 + 4 * num_kills, "only requests in flight are sent again"
    assert len(scene.platform.machine.started) == 1, "its workers stay"


def test_a_job_goes_on_when_the_database_does(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is no failure of the job; no record is asked for again."""
    end, outages = Spool.end, [Unavailable("The database is away.")]

    def end_later(spool: Spool, failure: str) -> None:
        if outages:
            raise outages.pop()
        end(spool, failure)

    monkeypatch.setattr(Spool, "end", end_later)
    monkeypatch.setattr(loop, "RETRY_S", 0.0)
    scene.put(a=b"one\ntwo\n")
    scene.start("job")
    assert scene.ended("job")["TransformJobStatus"] == "Completed"
    assert (outages, scene.outputs("job")) == ([], {"a.out": b"one\ntwo\n"})
    assert sorted(scene.bodies) == [b"one", b"two"]


def test_as_many_requests_are_in_flight_as_the_container_asks_for(scene: Scene) -> None:
    num_running = num_most = 0
    may_answer = asyncio.Event()

    async def count(exchange: Exchange) -> None:
        nonlocal num_running, num_most
        num_running += 1
        num_most = max(num_most, num_running)
        if num_running == 6:
            may_answer.set()
        await may_answer.wait()
        num_running -= 1
        exchange.whole(exchange.asked.body)

    scene.script = count
    scene.parameters = b'{"MaxConcurrentTransforms": 3, "BatchStrategy": "SINGLE_RECORD"}'
    scene.put(**{f"f{number}": b"%d\n" % number for number in range(20)})
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 2}
    scene.client.create_transform_job(
        TransformJobName="job",
        ModelName="m",
        TransformInput={
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://in/"}},
            "SplitType": "Line",
        },
        TransformOutput={"S3OutputPath": "s3://out/job"},
        TransformResources=resources,
    )
    scene.ended("job")
    assert num_most == 6, "three at each instance, of several small objects"
    assert scene.outputs("job") == {f"f{number}.out": b"%d" % number for number in range(20)}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ModelName": "none"}, 'Could not find model "arn:aws:sagemaker:us-east-1:123456789012:model/none".'),
        ({"S3DataType": "AugmentedManifestFile"}, "S3DataType is AugmentedManifestFile; expected S3Prefix or Manif"),
        ({"MaxPayloadInMB": 30, "MaxConcurrentTransforms": 4}, "MaxPayloadInMB is 120 MB; expected at most 100 MB"),
        ({"DataProcessing": {"InputFilter": "$..x"}, "ContentType": "text/csv"}, "DataProcessing.InputFilter: '$..x'"),
        ({"DataProcessing": {"JoinSource": "Input"}}, "needs a TransformInput.ContentType of text/csv"),
        (
            {"DataProcessing": {"OutputFilter": "$[0]"}, "ContentType": "text/csv", "SplitType": "TFRecord"},
            "SplitType None or Line",
        ),
        (
            {"DataProcessing": {"JoinSource": "Input"}, "ContentType": "text/csv", "Accept": "application/json"},
            "Accept is application/json",
        ),
        (
            {"DataCaptureConfig": {"DestinationS3Uri": "s3://b/c", "GenerateInferenceId": True}, "Accept": "image/png"},
            "GenerateInferenceId needs outputs in CSV, JSON or JSON lines",
        ),
        ({"Environment": {"A": "x" * 10240, "B": "y" * 10240, "C": "z" * 10240, "D": "w" * 10240}}, "32768"),
    ],
)
def test_what_cannot_be_done_is_refused(shared_scene: Scene, more: dict[str, Any], why: str) -> None:
    assert why in refusal(shared_scene.start, job="job", **more)


def test_names_are_unique_and_instances_limited(shared_scene: Scene) -> None:
    shared_scene.put(a=b"one\n")
    shared_scene.start("twice")
    many = {"InstanceType": "ml.m5.large", "InstanceCount": 101}
    describe = shared_scene.client.describe_transform_job
    for code, text, call in (
        ("ResourceInUse", r"a job with this name already exists \(arn:", partial(shared_scene.start, "Twice")),
        (
            "ResourceLimitExceeded",
            "ml.m5.large for transform job usage",
            partial(shared_scene.start, "many", TransformResources=many),
        ),
        ("ValidationException", 'Could not find transform job "arn:', partial(describe, TransformJobName="none")),
    ):
        with pytest.raises(ClientError, match=text) as caught:
            call()
        assert caught.value.response["Error"]["Code"] == code
    shared_scene.ended("twice")


def test_jobs_are_listed_and_the_oldest_ended_ones_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.put(a=b"one\n")
    for number in range(3):
        scene.start(f"job-{number}", "s3://in/a" if number else "s3://in/none")
        scene.ended(f"job-{number}", "Completed" if number else "Failed")

    def listed(**filters: Any) -> list[str]:
        pages = scene.client.get_paginator("list_transform_jobs").paginate(PaginationConfig={"PageSize": 2}, **filters)
        return [item["TransformJobName"] for page in pages for item in page["TransformJobSummaries"]]

    assert listed() == ["job-2", "job-1", "job-0"]
    assert listed(SortBy="Name", SortOrder="Ascending", NameContains="JOB-") == ["job-0", "job-1", "job-2"]
    assert listed(StatusEquals="Failed") == ["job-0"]
    assert listed(SortBy="Status", SortOrder="Ascending") == ["job-1", "job-2", "job-0"]
    (failed,) = scene.client.list_transform_jobs(StatusEquals="Failed")["TransformJobSummaries"]
    assert failed["FailureReason"].startswith("ClientError")
    monkeypatch.setattr(loop, "MAX_ENDED_JOBS", 1)
    scene.kill()
    scene.until(lambda: listed() == ["job-2"], "only the newest ended job is kept")
