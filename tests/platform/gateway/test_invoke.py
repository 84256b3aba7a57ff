"""InvokeEndpoint, as boto3 sees it."""

import asyncio
import socket
from contextlib import closing
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from headrace.serving.http.body import FREE_BYTES

from .conftest import client_of, running
from .routes import component, route, variant
from .workers import Exchange

LOG = (
    "https://us-east-1.console.aws.amazon.com/cloudwatch/home?region=us-east-1#logEventViewer:"
    "group=/aws/sagemaker/Endpoints/ep in account 123456789012 for more information."
)


def failing(status: str, body: bytes):
    async def script(exchange: Exchange) -> None:
        exchange.whole(body, status=status)

    return script


def answering(body: bytes):
    async def script(exchange: Exchange) -> None:
        exchange.whole(body)

    return script


def error_of(call, **parameters) -> dict:
    with pytest.raises(ClientError) as caught:
        call(**{"EndpointName": "ep", "Body": b"{}", **parameters})
    return caught.value.response


def test_body_and_headers_go_to_the_worker_and_back(gateway):
    async def script(exchange: Exchange) -> None:
        exchange.whole(
            b'{"generated_text": "hi"}',
            content_type="application/json",
            x_amzn_sagemaker_custom_attributes="trace=1",
            server="secret/1.0",
            x_internal="private",
        )

    worker = gateway.serve(script)
    answer = gateway.boto.invoke_endpoint(
        EndpointName="ep",
        Body=b'{"inputs": "x"}',
        ContentType="application/json",
        Accept="application/json",
        CustomAttributes="accept_eula=true",
        InferenceId="my id",
        TargetVariant="AllTraffic",
        PrefixAwareId="app",
    )
    assert answer["Body"].read() == b'{"generated_text": "hi"}'
    assert answer["ContentType"] == "application/json"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert answer["CustomAttributes"] == "trace=1"
    assert answer["ResponseMetadata"]["RequestId"]
    assert "x-internal" not in answer["ResponseMetadata"]["HTTPHeaders"]
    assert answer["ResponseMetadata"]["HTTPHeaders"]["server"] != "secret/1.0"
    (asked,) = worker.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/invocations", b'{"inputs": "x"}')
    assert asked.headers == {
        "host": worker.url.removeprefix("http://"),
        "accept": "application/json",
        "content-type": "application/json",
        "content-length": "15",
        "x-amzn-sagemaker-forwarded-api": "InvokeEndpoint",
        "x-amzn-sagemaker-custom-attributes": "accept_eula=true",
        "x-request-id": answer["ResponseMetadata"]["RequestId"],
        "x-amzn-sagemaker-inference-id": "my id",
        "x-amzn-sagemaker-target-variant": "AllTraffic",
        "x-amzn-sagemaker-prefix-aware-id": "app",
    }


def test_connections_to_a_worker_are_reused(gateway):
    worker = gateway.serve()
    for number in range(5):
        answer = gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"%d" % number)
        assert answer["Body"].read() == b"%d" % number
    assert len(worker.asked) == 5
    assert worker.num_connections == 1


def test_a_connection_that_the_worker_closed_in_the_meantime_is_replaced(gateway):
    async def script(exchange: Exchange) -> None:
        if len(exchange.worker.asked) == 2:
            exchange.die()  # like a worker that closes an idle connection just before the request
        else:
            exchange.whole(b"ok")

    worker = gateway.serve(script)
    for _ in range(2):
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")["Body"].read() == b"ok"
    assert worker.num_connections == 2


def test_large_bodies_pass_both_ways(gateway):
    gateway.serve()
    body = bytes(range(256)) * (8 * 4096)
    assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=body)["Body"].read() == body


def test_an_unknown_endpoint_has_the_error_text_of_aws(gateway):
    error = error_of(gateway.boto.invoke_endpoint, EndpointName="nowhere")
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert error["Error"] == {
        "Code": "ValidationError",
        "Message": "Endpoint nowhere of account 123456789012 not found.",
    }


def test_an_endpoint_that_is_being_created_is_not_found_yet(gateway):
    gateway.put(route(variant("AllTraffic", []), status="Creating"))
    assert "not found" in error_of(gateway.boto.invoke_endpoint)["Error"]["Message"]


def test_an_endpoint_serves_as_soon_as_its_route_is_written(gateway):
    worker = gateway.worker()
    for number in range(20):
        gateway.store.put(route(variant("AllTraffic", [worker.url]), endpoint=f"ep{number}"))
        assert gateway.boto.invoke_endpoint(EndpointName=f"ep{number}", Body=b"x")["Body"].read() == b"x"


def test_an_endpoint_without_replicas_is_unavailable_which_sdks_retry(gateway):
    gateway.put(route(variant("AllTraffic", [])))
    error = error_of(gateway.boto.invoke_endpoint)
    assert error["Error"]["Code"] == "ServiceUnavailable"
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert error["ResponseMetadata"]["RetryAttempts"] == 2


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"TargetVariant": "other"}, "Variant other not found for Request"),
        ({"InferenceComponentName": "ic"}, "Inference Component ic of account 123456789012 not found."),
        ({"InferenceId": "x" * 65}, "'inferenceId' failed to satisfy constraint: Member must have length less than or"),
        ({"CustomAttributes": "x" * 1025}, "'customAttributes' failed to satisfy constraint"),
        ({"SessionId": "no_such form"}, "'sessionId' failed to satisfy constraint: Member must satisfy regular"),
        ({"EndpointName": "a_b"}, "'endpointName' failed to satisfy constraint"),
    ],
)
def test_requests_are_validated_by_botocores_model(gateway, parameters, text):
    worker = gateway.serve()
    error = error_of(gateway.boto.invoke_endpoint, **parameters)
    assert error["Error"]["Code"] == "ValidationError"
    assert text in error["Error"]["Message"]
    assert not worker.asked


@pytest.mark.parametrize(
    ("status", "side"), [("400 Bad Request", "client"), ("413 Too Large", "client"), ("500 Oops", "server")]
)
def test_a_failing_worker_is_a_model_error_that_sdks_do_not_retry(gateway, status, side):
    worker = gateway.serve(failing(status, b'{"error": "bad"}'))
    for call in (gateway.boto.invoke_endpoint, gateway.boto.invoke_endpoint_with_response_stream):
        worker.asked.clear()
        error = error_of(call)
        code = int(status[:3])
        said = f'Received {side} error ({code}) from primary with message "{{"error": "bad"}}". See {LOG}'
        assert error["Error"] == {"Code": "ModelError", "Message": said}
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert error["OriginalStatusCode"] == code
        assert error["OriginalMessage"] == '{"error": "bad"}'
        assert error["LogStreamArn"] == "arn:aws:logs:us-east-1:123456789012:log-group:/aws/sagemaker/Endpoints/ep"
        assert len(worker.asked) == 1


def test_an_error_names_the_container_that_failed_and_a_request_can_name_its_own(gateway):
    async def answer(exchange):
        exchange.whole(b"bad", status="400 Bad Request", x_headrace_containers="pre=0.5,model")

    worker = gateway.worker(answer)
    (fleet,) = variant("v", [worker.url]).fleets
    for containers, text in (
        ((), "from primary with"),  # the header of a user's own container says nothing
        (("pre", "model", "post"), "from model with"),
    ):
        gateway.put(route(replace(variant("v"), fleets=(replace(fleet, containers=containers),))))
        assert text in error_of(gateway.boto.invoke_endpoint)["Error"]["Message"]
    gateway.put(route(replace(variant("v"), fleets=(replace(fleet, containers=("pre", "model"), is_direct=True),))))
    error_of(gateway.boto.invoke_endpoint_with_response_stream, TargetContainerHostname="model")
    assert worker.asked[-1].headers["x-amzn-sagemaker-target-container-hostname"] == "model"
    for target, text in (({}, "requires the target container"), ({"TargetContainerHostname": "x"}, "x not found")):
        error = error_of(gateway.boto.invoke_endpoint, **target)["Error"]
        assert (error["Code"], text in error["Message"]) == ("ValidationError", True)


def test_a_full_worker_is_a_429_that_sdks_do_not_retry(gateway):
    worker = gateway.serve(failing("429 Too Many Requests", b"queue full"))
    with closing(client_of(gateway.url, retries={"total_max_attempts": 1})) as once:
        for call in (gateway.boto.invoke_endpoint, once.invoke_endpoint_with_response_stream):
            worker.asked.clear()
            error = error_of(call)
            assert error["Error"]["Code"] == "ModelNotReadyException"
            assert "queue full" in error["Error"]["Message"]
            assert error["ResponseMetadata"]["HTTPStatusCode"] == 429
            assert len(worker.asked) == 1


def test_the_error_text_of_a_worker_is_truncated_and_may_be_binary(gateway):
    gateway.serve(failing("500 Oops", b"\xff\x00" * 20_000))
    error = error_of(gateway.boto.invoke_endpoint)
    assert len(error["Error"]["Message"]) <= 2048
    assert error["Error"]["Message"].endswith(LOG)
    assert len(error["OriginalMessage"]) == 2048


def test_too_large_payloads_have_the_error_text_of_aws():
    with running(max_body_bytes=1000, max_response_bytes=2000) as gateway:
        worker = gateway.serve()
        assert len(gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x" * 1000)["Body"].read()) == 1000
        for body in (b"x" * 1001, b"x" * 500_000):
            error = error_of(gateway.boto.invoke_endpoint, Body=body)
            assert error["Error"] == {"Code": "413", "Message": "HTTP content length exceeded 1000 bytes."}
        # Without a length, in chunks.
        assert gateway.client.post("/endpoints/ep/invocations", content=iter([b"x" * 600] * 2)).status_code == 413
        assert len(worker.asked) == 1

        worker.script = failing("200 OK", b"x" * 2001)
        error = error_of(gateway.boto.invoke_endpoint)
        assert error["Error"]["Code"] == "ModelError"
        assert "could not load the entire response body" in error["Error"]["Message"]
        gateway.until(gateway.is_idle, "all requests ended")


def test_the_coding_of_a_body_reaches_the_worker_which_refuses_it_or_decodes_it(gateway):
    worker = gateway.serve(answering(b"{}"))
    for api in ("invocations", "openai/v1/chat/completions"):
        gateway.client.post(f"/endpoints/ep/{api}", content=b"packed", headers={"content-encoding": "gzip"})
        assert worker.asked[-1].headers["content-encoding"] == "gzip"


def test_the_total_size_of_waiting_bodies_is_limited():
    with running(max_buffered_bytes=1000) as gateway:
        gateway.serve(answering(b"short"))
        with closing(client_of(gateway.url, retries={"total_max_attempts": 1})) as once:
            error = error_of(once.invoke_endpoint, Body=b"x" * (FREE_BYTES + 1001))
        assert error["Error"]["Code"] == "ThrottlingException"
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x" * (FREE_BYTES + 1000))["Body"].read()


def test_responses_that_clients_do_not_read_count_with_the_bodies():
    with running(max_buffered_bytes=12_000_000) as gateway, closing(socket.socket()) as lazy:
        worker = gateway.serve(answering(b"x" * 10_000_000))
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        lazy.sendall(b"POST /endpoints/ep/invocations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}")
        gateway.until(lambda: gateway.gateway.budget.held_bytes > 9_000_000, "the response is held")
        with closing(client_of(gateway.url, retries={"total_max_attempts": 1})) as once:
            assert error_of(once.invoke_endpoint)["Error"]["Code"] == "ThrottlingException"
        worker.script = answering(b"short")
        assert gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"{}")["Body"].read() == b"short"
        lazy.close()
        gateway.until(lambda: gateway.gateway.budget.held_bytes == 0, "nothing is held any more")


def test_requests_in_flight_are_limited():
    with running(max_in_flight=0) as gateway:
        gateway.serve()
        with closing(client_of(gateway.url, retries={"total_max_attempts": 1})) as once:
            error = error_of(once.invoke_endpoint)
        assert error["Error"]["Code"] == "ThrottlingException"
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 429


def test_a_model_that_is_too_slow_has_the_error_text_of_aws():
    async def never(exchange: Exchange) -> None:
        await exchange.until_gone()

    with running(invocation_timeout_s=1.0) as gateway:  # the worker has got the request before it
        worker = gateway.serve(never)
        error = error_of(gateway.boto.invoke_endpoint)
        assert error["Error"]["Code"] == "ModelError"
        assert error["OriginalStatusCode"] == 0
        assert error["OriginalMessage"].startswith(
            "Your invocation timed out while waiting for a response from container primary."
        )
        assert error["Error"]["Message"].startswith('Received server error (0) from primary with message "Your invoc')
        gateway.until(lambda: worker.num_gone == 1, "the worker saw that its client has gone")
        gateway.until(gateway.is_idle, "the request ended")


def test_sessions_are_opened_followed_and_closed(gateway):
    def stateful(name: str):
        async def script(exchange: Exchange) -> None:
            session = exchange.asked.headers.get("x-amzn-sagemaker-session-id")
            if session == "NEW_SESSION":
                exchange.whole(name.encode(), x_amzn_sagemaker_session_id=f"s-{name}; Expires=2099-01-01T00:00:00Z")
            elif exchange.asked.body == b"close":
                exchange.whole(name.encode(), x_amzn_sagemaker_closed_session_id=session)
            else:
                exchange.whole(name.encode())

        return script

    workers = [gateway.worker(stateful(name)) for name in "ab"]
    gateway.put(route(variant("AllTraffic", [worker.url for worker in workers])))

    def ask(body: bytes, session: str) -> dict:
        return gateway.boto.invoke_endpoint(EndpointName="ep", Body=body, SessionId=session)

    opened = ask(b"open", "NEW_SESSION")
    name = opened["Body"].read()
    session, _, expires = opened["NewSessionId"].partition("; ")
    assert (session, expires) == (f"s-{name.decode()}", "Expires=2099-01-01T00:00:00Z")
    assert {ask(b"go on", session)["Body"].read() for _ in range(10)} == {name}
    stream = gateway.boto.invoke_endpoint_with_response_stream(EndpointName="ep", Body=b"x", SessionId=session)
    assert b"".join(event["PayloadPart"]["Bytes"] for event in stream["Body"]) == name
    assert ask(b"close", session)["ClosedSessionId"] == session

    session = ask(b"open", "NEW_SESSION")["NewSessionId"].partition(";")[0]
    gateway.put(route(variant("AllTraffic", [gateway.worker().url])))
    error = error_of(gateway.boto.invoke_endpoint, SessionId=session)
    assert error["Error"]["Code"] == "ValidationError"
    assert "Open a new one" in error["Error"]["Message"]


def test_other_methods_and_paths_are_refused(gateway):
    gateway.serve()
    answer = gateway.client.get("/endpoints/ep/invocations")
    assert answer.status_code == 405
    assert answer.headers["x-amzn-errortype"] == "UnknownOperationException"


def test_each_request_is_logged_once_without_its_content(gateway):
    gateway.serve()
    gateway.boto.invoke_endpoint(
        EndpointName="ep", Body=b"a secret prompt", CustomAttributes="token=1", InferenceId="i"
    )
    gateway.until(lambda: "invocation.finished" in gateway.log.getvalue(), "the line")
    text = gateway.log.getvalue()
    assert '"api": "InvokeEndpoint"' in text
    assert '"inference_id": "i"' in text
    assert "attempt=1" in text
    assert "secret" not in text
    assert "token=1" not in text


def test_requests_count_for_the_variant_that_answered_them(gateway):
    worker = gateway.serve()
    gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
    worker.script = failing("500 Oops", b"")
    error_of(gateway.boto.invoke_endpoint)
    error_of(gateway.boto.invoke_endpoint, EndpointName="nowhere")
    gateway.until(gateway.is_idle, "the requests ended")
    ((place, counters),) = gateway.gateway.metrics.counters()
    assert place == ("ep", "AllTraffic", "")
    assert (counters.invocations, counters.model_errors, counters.errors_4xx) == (2, 1, 1)
    assert counters.model_s.count == counters.overhead_s.count == 2
    assert counters.model_s.sum > 0
    assert gateway.gateway.metrics.refused == {"ValidationError": 1}


def test_the_model_latency_is_the_models_own():
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        exchange.whole(b"")

    with running() as gateway:
        gateway.serve(slow)
        gateway.boto.invoke_endpoint(EndpointName="ep", Body=b"x")
        gateway.until(gateway.is_idle, "the request ended")
        ((_, counters),) = gateway.gateway.metrics.counters()
        assert counters.model_s.sum >= 0.05


@pytest.mark.parametrize(
    ("stale", "headers"),
    [
        (route(variant(), status="Creating"), {}),
        (route(variant("AllTraffic", [])), {}),
        (route(variant("Old", [])), {"X-Amzn-SageMaker-Target-Variant": "AllTraffic"}),
        (route(variant(), components=[component("old", [])]), {}),
    ],
    ids=["creating", "without replicas", "without the variant", "with components"],
)
def test_a_route_that_another_process_has_changed_is_read_before_a_request_is_refused(gateway, stale, headers):
    gateway.put(stale)
    gateway.store.put_elsewhere(route(variant("AllTraffic", [gateway.worker().url])))
    answer = gateway.client.post("/endpoints/ep/invocations", json={"prompt": "x"}, headers=headers)
    assert answer.status_code == 200, answer.text


def test_refused_requests_do_not_read_the_routes_each_time(gateway):
    gateway.put(route(variant(), status="Creating"))
    before = gateway.store.num_reads
    for _ in range(5):
        assert gateway.client.post("/endpoints/ep/invocations", json={"prompt": "x"}).status_code == 400
    assert gateway.store.num_reads == before
