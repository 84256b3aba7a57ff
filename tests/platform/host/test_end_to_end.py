"""A user's day on a real platform with the real small model: boto3 and the command line, and nothing is mocked."""

import base64
import io
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError, WaiterError
from jsonschema import Draft202012Validator

from tests import plain_http
from tests.otlp_receiver import Receiver
from tests.waiting import WAIT_S

from .endpoints import PROMPT, WAIT, answered, archive, delete_endpoint, invoke, is_alive, make_endpoint, workers
from .running import IMAGE, Running, until, up

pytestmark = pytest.mark.model


def stream_text(running: Running, name: str) -> str:
    response = running.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps({**PROMPT, "stream": True}), ContentType="application/json"
    )
    parts = [event["PayloadPart"]["Bytes"] for event in response["Body"]]
    response["Body"].close()
    events = [json.loads(part.decode().removeprefix("data:")) for part in parts if part.strip()]
    assert len(events) == 12, "one part for each event"
    return "".join(event["token"]["text"] for event in events)


def test_a_model_is_uploaded_deployed_streamed_from_and_deleted(platform: Running, smollm2_path: Path) -> None:
    s3 = platform.client("s3")
    s3.create_bucket(Bucket="models")
    properties = b"option.model_id=./model.gguf\n"
    body = archive({"folder/serving.properties": properties, "folder/model.gguf": smollm2_path})
    s3.upload_fileobj(io.BytesIO(body), "models", "smollm2/model.tar.gz")
    capture = {
        "InitialSamplingPercentage": 100,
        "DestinationS3Uri": "s3://models/captured",
        "CaptureOptions": [{"CaptureMode": "Output"}],
    }
    container = {"Image": IMAGE, "ModelDataUrl": "s3://models/smollm2/model.tar.gz"}
    make_endpoint(platform, "from-s3", container, config={"DataCaptureConfig": capture})
    platform.until_in_service("from-s3")

    (answer,) = invoke(platform, "from-s3")
    assert answer["details"]["generated_tokens"] == 12
    assert PROMPT["inputs"] + stream_text(platform, "from-s3") == answer["generated_text"]

    streams = platform.client("logs").describe_log_streams(logGroupName="/aws/sagemaker/Endpoints/from-s3")
    assert streams["logStreams"][0]["logStreamName"].startswith("AllTraffic/")
    events = platform.client("logs").filter_log_events(logGroupName="/aws/sagemaker/Endpoints/from-s3")["events"]
    assert any("server.ready" in event["message"] for event in events)

    delete_endpoint(platform, "from-s3")
    with pytest.raises(ClientError, match=r"not found|Could not find"):
        invoke(platform, "from-s3")
    captured: list[Any] = []

    def are_captured() -> bool:
        found = s3.list_objects_v2(Bucket="models", Prefix="captured/from-s3/AllTraffic/").get("Contents", [])
        bodies = [s3.get_object(Bucket="models", Key=entry["Key"])["Body"].read() for entry in found]
        captured[:] = [json.loads(line) for body in bodies for line in body.splitlines()]
        return len(captured) == 2

    until(are_captured, "the answer and the stream are captured")
    outputs = [base64.b64decode(line["captureData"]["endpointOutput"]["data"]) for line in captured]
    assert answer in [json.loads(output)[0] for output in outputs if output.startswith(b"[")]
    for entry in s3.list_objects_v2(Bucket="models")["Contents"]:
        s3.delete_object(Bucket="models", Key=entry["Key"])
    s3.delete_bucket(Bucket="models")


def test_a_model_that_fails_to_load_says_why(platform: Running) -> None:
    make_endpoint(platform, "broken", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "/no/such/model.gguf"}})
    waiter = platform.client("sagemaker").get_waiter("endpoint_in_service")
    with pytest.raises(WaiterError):
        waiter.wait(EndpointName="broken", WaiterConfig=WAIT)
    described = platform.client("sagemaker").describe_endpoint(EndpointName="broken")
    assert described["EndpointStatus"] == "Failed"
    assert "/no/such/model.gguf" in described["FailureReason"]
    delete_endpoint(platform, "broken")


def test_an_archive_with_paths_outside_its_folder_is_refused(platform: Running) -> None:
    s3 = platform.client("s3")
    s3.create_bucket(Bucket="evil")
    s3.put_object(Bucket="evil", Key="model.tar.gz", Body=archive({"../../outside": b"x"}))
    make_endpoint(platform, "evil", {"Image": IMAGE, "ModelDataUrl": "s3://evil/model.tar.gz"})
    describe = platform.client("sagemaker").describe_endpoint
    until(lambda: describe(EndpointName="evil")["EndpointStatus"] == "Failed", "the endpoint failed")
    assert "../../outside" in describe(EndpointName="evil")["FailureReason"]
    delete_endpoint(platform, "evil")


def test_an_endpoint_can_be_deleted_while_it_is_created(platform: Running, smollm2_path: Path) -> None:
    make_endpoint(platform, "hasty", {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}})
    delete_endpoint(platform, "hasty")


def test_the_command_line_describes_invokes_and_follows_logs(platform: Running, endpoint: str) -> None:
    listed = platform.headrace("ls")
    assert "shared" in listed.stdout
    assert "InService" in listed.stdout
    assert "1/1" in listed.stdout
    assert json.loads(platform.headrace("describe", endpoint, "--json").stdout)["EndpointStatus"] == "InService"
    assert "AllTraffic" in platform.headrace("describe", endpoint).stdout
    whole = platform.headrace("invoke", endpoint, "The sea is", "-n", "12")
    streamed = platform.headrace("invoke", endpoint, "--stream", "-", "-n", "12", stdin="The sea is")
    assert whole.returncode == streamed.returncode == 0, whole.stderr + streamed.stderr
    assert whole.stdout == streamed.stdout
    assert len(whole.stdout.split()) > 3
    assert "server.ready" in platform.headrace("logs", endpoint).stdout
    assert "status" in platform.headrace("status").stdout


def test_openai_clients_name_the_endpoint(platform: Running, endpoint: str) -> None:
    from openai import OpenAI

    with OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key.secret) as client:
        [model] = [model for model in client.models.list() if model.id == endpoint]
        facts = model.model_extra or {}
        assert facts["has_chat_template"] is True
        assert facts["max_model_len"] >= 1024
        chunks = client.chat.completions.create(
            model=endpoint, messages=[{"role": "user", "content": "Say hi."}], max_tokens=8, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.usefixtures("endpoint")
def test_pages_of_the_platform_are_as_its_description_says(platform: Running) -> None:
    document = plain_http.get(f"{platform.url}/openapi.json", timeout=WAIT_S).json()
    for path in ("/health", "/v1/models", "/metrics/targets", "/openapi.json"):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        Draft202012Validator(schema).validate(
            plain_http.get(platform.url + path, headers=platform.bearer, timeout=WAIT_S).json()
        )


def test_the_home_page_of_the_console_has_the_load_of_real_workers(platform: Running, endpoint: str) -> None:
    def worker() -> dict[str, Any] | None:
        home = plain_http.get(f"{platform.url}/console/api/home", headers=platform.bearer, timeout=WAIT_S).json()
        assert home["platform"]["service"] == "headrace"
        assert 0 < home["machine"]["free_memory_bytes"] <= home["machine"]["memory_bytes"]
        found: list[dict[str, Any]] = [worker for worker in home["workers"] if worker["endpoint"] == endpoint]
        return found[0] if found and found[0]["memory_bytes"] else None

    found = until(worker, "the numbers of the worker")
    assert (found["state"], found["num_waiting"]) == ("serving", 0)
    models = plain_http.get(f"{platform.url}/console/api/models", headers=platform.bearer, timeout=WAIT_S).json()
    assert {"models", "packed_bytes"} <= models.keys()


def test_the_ids_of_a_request_are_in_the_logs_of_platform_and_worker(platform: Running, endpoint: str) -> None:
    runtime, logs = platform.client("sagemaker-runtime"), platform.client("logs")
    named = {"EndpointName": endpoint, "ContentType": "application/json"}
    whole = runtime.invoke_endpoint(**named, Body=json.dumps(PROMPT), InferenceId="whole one")
    whole["Body"].close()
    streamed = runtime.invoke_endpoint_with_response_stream(
        **named, Body=json.dumps({**PROMPT, "stream": True}), InferenceId="streamed"
    )
    assert list(streamed["Body"])

    def ids(messages: Iterable[str], event: str) -> set[tuple[str, str]]:
        lines = [json.loads(message) for message in messages if message.startswith("{") and event in message]
        return {(line["request_id"], line["inference_id"]) for line in lines if line.get("inference_id") in sent}

    def of_worker() -> set[tuple[str, str]]:
        events = logs.filter_log_events(logGroupName=f"/aws/sagemaker/Endpoints/{endpoint}")["events"]
        return ids((event["message"] for event in events), "request.finished")

    sent = {"whole one": whole, "streamed": streamed}
    expected = {(answer["ResponseMetadata"]["RequestId"], name) for name, answer in sent.items()}
    until(lambda: of_worker() == expected, f"{expected} in the worker's log")
    until(lambda: ids(platform.log().splitlines(), "invocation.finished") == expected, "the same in the platform's log")


def test_a_request_is_one_trace_through_the_processes(platform: Running, endpoint: str, receiver: Receiver) -> None:
    trace_id, parent_id = uuid4().hex, uuid4().hex[:16]
    address = f"{platform.url}/endpoints/{endpoint}/invocations"
    context = {"traceparent": f"00-{trace_id}-{parent_id}-01", "content-type": "application/json", **platform.bearer}
    plain_http.post(address, json=PROMPT, headers=context, timeout=WAIT_S).raise_for_status()
    gateway, worker = receiver.trace(trace_id, 2)
    assert (gateway.service, worker.service) == ("headrace-platform", "headrace-server")
    assert (gateway.parent_id, worker.parent_id) == (parent_id, gateway.span_id)


def test_a_missing_endpoint_is_reported_in_one_sentence(platform: Running) -> None:
    for arguments in (("describe", "missing"), ("rm", "missing"), ("logs", "missing")):
        done = platform.headrace(*arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    nowhere = platform.headrace("ls", "--url", "http://127.0.0.1:9")
    assert nowhere.returncode == 1
    assert "headrace up" in nowhere.stderr


def test_a_second_platform_on_the_folder_is_refused(platform: Running) -> None:
    done = platform.headrace("up", "--port", "0")
    assert done.returncode == 2
    assert platform.url in done.stderr


def test_clients_of_other_machines_need_a_key(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    running = Running("", folder, None, tmp_path)  # type: ignore[arg-type] -- only for its commands
    refused = running.headrace("up", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "headrace keys create" in refused.stderr
    made = dict(line.split("=", 1) for line in running.headrace("keys", "create", "--note", "test").stdout.split())
    assert made["AWS_ACCESS_KEY_ID"] in running.headrace("keys", "ls").stdout
    assert made["AWS_SECRET_ACCESS_KEY"] not in running.headrace("keys", "ls").stdout
    locked = up(folder, "--host", "0.0.0.0")
    elsewhere = replace(locked, folder=tmp_path / "elsewhere")
    try:
        unsigned = plain_http.post(locked.url, headers={"X-Amz-Target": "SageMaker.ListModels"}, timeout=WAIT_S)
        assert unsigned.status_code in (400, 403)
        with pytest.raises(ClientError):
            elsewhere.client("s3").list_buckets()
        anonymous = elsewhere.headrace("ls", "--url", locked.url)
        assert anonymous.returncode == 2
        assert "headrace keys ls" in anonymous.stderr
        lines = locked.headrace("env", "--url", locked.url).stdout
        assert made["AWS_SECRET_ACCESS_KEY"] in lines
        for shell in (locked, elsewhere):
            listed = shell.headrace("ls", "--url", locked.url, env=made)
            assert listed.returncode == 0, listed.stderr
        kept = locked.headrace("keys", "rm", made["AWS_ACCESS_KEY_ID"])
        assert (kept.returncode, "is the last key" in kept.stderr) == (2, True), kept.stderr
        assert locked.headrace("keys", "rm", made["AWS_ACCESS_KEY_ID"], "--last").returncode == 0
        until(lambda: locked.headrace("ls", "--url", locked.url, env=made).returncode != 0, "the key was refused")
    finally:
        locked.stop()


def test_a_port_in_use_is_reported_in_one_sentence(platform: Running, tmp_path: Path) -> None:
    port = platform.url.rpartition(":")[2]
    done = platform.headrace("up", "--port", port, "--data-dir", str(tmp_path / "other"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert port in done.stderr


def test_objects_can_be_stored_on_another_server(platform: Running, tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": platform.key.key_id, "AWS_SECRET_ACCESS_KEY": platform.key.secret}
    other = up(tmp_path / "data", "--s3-endpoint", platform.url, env=keys)
    try:
        other.client("s3").create_bucket(Bucket="elsewhere")
        body = os.urandom(1_000_000)
        other.client("s3").put_object(Bucket="elsewhere", Key="a key+", Body=body)
        with platform.client("s3").get_object(Bucket="elsewhere", Key="a key+")["Body"] as stored:
            assert stored.read() == body
        assert not (tmp_path / "data" / "s3").exists()
    finally:
        assert other.stop() == 0


def test_a_running_stream_finishes_when_the_platform_stops(tmp_path: Path, smollm2_path: Path) -> None:
    running = up(tmp_path / "data", "--keep-workers")
    try:
        assert running.headrace("deploy", str(smollm2_path), "--name", "streaming").returncode == 0, running.log()
        before = workers(running)
        parameters = {"max_new_tokens": 200, "ignore_eos_token": True}
        response = running.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
            EndpointName="streaming",
            Body=json.dumps({"inputs": "The sea is", "parameters": parameters, "stream": True}),
        )
        events = iter(response["Body"])
        parts = [next(events)["PayloadPart"]["Bytes"]]
        running.process.terminate()
        parts += [event["PayloadPart"]["Bytes"] for event in events]
        response["Body"].close()
        assert json.loads(parts[-1].decode().removeprefix("data:"))["generated_text"]
        assert running.process.wait(timeout=WAIT_S) == 0, running.log()
    finally:
        running.close()
        running.process.kill()
        running.process.wait()
    assert all(is_alive(pid) for pid in before.values()), "kept for the next platform"

    following = up(tmp_path / "data")
    try:
        until(lambda: answered(following, "streaming"), "the endpoint answers")
        assert workers(following) == before
    finally:
        assert following.stop() == 0
    assert not any(is_alive(pid) for pid in before.values())


def test_a_killed_platform_loses_nothing_and_its_workers_keep_serving(tmp_path: Path, smollm2_path: Path) -> None:
    folder = tmp_path / "data"
    first = up(folder)
    try:
        assert first.headrace("deploy", str(smollm2_path), "--name", "kept").returncode == 0, first.log()
        first.client("s3").create_bucket(Bucket="bucket")
        first.client("s3").put_object(Bucket="bucket", Key="key", Body=b"content")
        before, answer = workers(first), invoke(first, "kept")
    finally:
        first.close()
        first.kill()
    assert all(is_alive(pid) for pid in before.values())

    second = up(folder)
    try:
        described = second.client("sagemaker").describe_endpoint(EndpointName="kept")
        assert described["EndpointStatus"] == "InService"
        assert until(lambda: answered(second, "kept"), "the endpoint answers") == answer
        assert workers(second) == before, "adopted, not restarted"
        with second.client("s3").get_object(Bucket="bucket", Key="key")["Body"] as body:
            assert body.read() == b"content"
        os.kill(next(iter(before.values())), signal.SIGKILL)
        until(lambda: set(workers(second)) - set(before), "a replacement was started")
        assert until(lambda: answered(second, "kept"), "the replacement answers") == answer
    finally:
        left = workers(second)
        assert second.stop() == 0, second.log()
    assert not any(is_alive(pid) for pid in left.values()), "an ordinary stop ends the workers"

    third = up(folder)
    try:
        assert until(lambda: answered(third, "kept"), "the next start brings the endpoint back") == answer
        assert third.headrace("rm", "kept").returncode == 0
        assert third.client("sagemaker").list_models()["Models"] == []
    finally:
        assert third.stop() == 0
