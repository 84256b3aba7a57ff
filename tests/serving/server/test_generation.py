"""Every generating route answers, streamed and whole, and refuses bad input in its own words."""

import json
import socket
import threading

import pytest

from headrace.core.errors import Busy, EngineFailed, Internal, InvalidRequest
from headrace.serving.server.generate import GenerationRoute
from headrace.serving.server.service import Service
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.json_size import INLINE_BYTES
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.testing.echo import EchoBackend, EchoScript

from .conftest import SLOW, serving

WORDS = "one two three four"
CHAT = {"model": "echo", "messages": [{"role": "user", "content": WORDS}]}
NATIVE_ROUTES = ["/", "/generate", "/invocations"]
ROUTES = [*NATIVE_ROUTES, "/generate_stream", "/v1/completions", "/v1/chat/completions"]


def body_of(path, prompt=WORDS, **more):
    if path == "/v1/chat/completions":
        return {"model": "echo", "messages": [{"role": "user", "content": prompt}], **more}
    if path == "/v1/completions":
        return {"model": "echo", "prompt": prompt, **more}
    parameters = {"return_full_text": False, **more.pop("parameters", {})}
    return {"inputs": prompt, "parameters": parameters, **more}


def whole_text(path, response):
    answer = response.json()
    if path == "/v1/chat/completions":
        return answer["choices"][0]["message"]["content"]
    if path == "/v1/completions":
        return answer["choices"][0]["text"]
    return (answer if path == "/generate" else answer[0])["generated_text"]


def streamed_text(path, text):
    pieces = []
    for line in text.splitlines():
        if not line.startswith("data:") or "[DONE]" in line:
            continue
        event = json.loads(line[5:])
        if path == "/v1/chat/completions":
            pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
        elif path == "/v1/completions":
            pieces += [choice["text"] for choice in event["choices"]]
        elif not event["token"]["special"]:
            pieces.append(event["token"]["text"])
    return "".join(pieces)


@pytest.mark.parametrize("path", [route for route in ROUTES if route != "/generate_stream"])
def test_every_route_answers_whole(echo, path):
    response = echo.post(path, body_of(path))
    assert response.status_code == 200, response.text
    assert whole_text(path, response) == WORDS
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.content)


@pytest.mark.parametrize("path", [route for route in ROUTES if route != "/generate"])
def test_every_route_streams_the_same_text(echo, path):
    with echo.client.stream("POST", path, json=body_of(path, stream=True)) as response:
        text = response.read().decode()
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert streamed_text(path, text) == WORDS


def test_pieces_arrive_one_by_one_and_not_at_the_end():
    with (
        serving(EchoBackend(script=SLOW)) as echo,
        echo.client.stream("POST", "/generate_stream", json={"inputs": WORDS * 100}) as response,
    ):
        read_some(response)
        assert echo.backend.stats().num_running == 1


def test_the_answer_carries_the_clients_request_id_and_one_of_ours_otherwise(echo):
    mine = echo.post("/generate", body_of("/generate"), headers={"x-request-id": "mine-1"})
    ours = echo.post("/generate", body_of("/generate"))
    bad = echo.client.post("/generate", json=body_of("/generate"), headers={"x-request-id": b"\xff" * 3})
    assert mine.headers["x-request-id"] == "mine-1"
    assert len(ours.headers["x-request-id"]) == 32
    assert len(bad.headers["x-request-id"]) == 32
    assert len({request.request_id for request in echo.backend.requests}) == 3


def test_several_prompts_come_back_in_their_order(echo):
    answer = echo.post("/v1/completions", {"model": "echo", "prompt": ["a b", "c d e", "f"]}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a b", "c d e", "f"]
    assert answer["usage"]["completion_tokens"] == 6 + 3


def test_several_prompts_stream_side_by_side(echo):
    text = echo.post("/v1/completions", {"model": "echo", "prompt": ["a b", "c d e"], "stream": True}).text
    texts = ["", ""]
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["text"]
    assert texts == ["a b", "c d e"]


BAD_BODIES = {
    "malformed": b'{"inputs": ',
    "not an object": b"[1, 2]",
    "wrong type": b'{"inputs": 5, "prompt": {}, "messages": 7}',
    "negative": b'{"inputs": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}], '
    b'"max_tokens": -1, "parameters": {"max_new_tokens": -1}}',
    "not a number": b'{"inputs": "a", "prompt": "a", "temperature": NaN, "parameters": {"temperature": NaN}}',
    "invalid UTF-8": b'{"inputs": "\xff\xfe", "prompt": "\xff"}',
    "empty": b"",
    "deep": b'{"inputs": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "10 MB prompt": json.dumps(
        {
            "inputs": "word " * 2_000_000,
            "prompt": "word " * 2_000_000,
            "messages": [{"role": "user", "content": "x " * 3000}],
        }
    ).encode(),
}


def read_some(response):
    """Wait for the first bytes; the iterator is kept, because httpx closes the connection with it."""
    response.extensions["test_iterator"] = pieces = response.iter_raw()
    return next(pieces)


def error_text(path, response):
    error = response.json()["error"]
    if path.startswith("/v1"):
        assert set(error) >= {"message", "type", "param", "code"}
        return error["message"]
    assert set(response.json()) == {"error", "error_type"}
    return error


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("kind", BAD_BODIES)
def test_bad_input_gets_a_clear_error_of_the_dialect_and_the_server_lives_on(echo, path, kind):
    body = BAD_BODIES[kind]
    if path == "/invocations" and kind in ("not a number", "negative", "wrong type", "10 MB prompt"):
        body = json.dumps({"inputs": 5}).encode() if kind == "wrong type" else body
    response = echo.client.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500, response.text
    assert error_text(path, response)
    assert echo.client.get("/ping").status_code == 200
    assert echo.service.limiter.in_flight == 0
    assert echo.backend.stats().num_running == 0


@pytest.mark.parametrize("path", ROUTES)
def test_a_prompt_one_token_too_long_is_refused_with_the_exact_counts(path):
    with serving(EchoBackend(max_model_len=64, max_prompt_tokens=20)) as echo:
        overhead = 2 if path == "/v1/chat/completions" else 0
        fits = body_of(path, " ".join(["w"] * (20 - overhead)))
        longer = body_of(path, " ".join(["w"] * (21 - overhead)))
        assert echo.post(path, fits).status_code == 200
        refused = echo.post(path, longer)
    assert refused.status_code == (400 if path.startswith("/v1") else 422)
    assert "20" in error_text(path, refused)
    assert "21" in error_text(path, refused)


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_size(path):
    with serving(max_body_bytes=10_000) as echo:
        large = json.dumps(body_of(path, "w " * 10_000)).encode()
        said = echo.client.post(path, content=large)
        unsaid = echo.client.post(path, content=(large[i : i + 1000] for i in range(0, len(large), 1000)))
        fits = echo.post(path, body_of(path))
    assert (said.status_code, unsaid.status_code, fits.status_code) == (413, 413, 200)
    assert "9.8 KiB" in error_text(path, said)


@pytest.mark.parametrize("path", ROUTES)
def test_a_full_queue_is_429_with_retry_after(path):
    with serving(EchoBackend(script=SLOW, max_model_len=4096), max_concurrent_requests=1) as echo:
        endless = {"model": "echo", "prompt": WORDS, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with echo.client.stream("POST", "/v1/completions", json=endless) as first:
            read_some(first)
            refused = echo.post(path, body_of(path))
        echo.until(lambda: echo.service.limiter.in_flight == 0, "the first request left")
        later = echo.post(path, body_of(path))
    assert refused.status_code == 429
    if path.startswith("/v1/"):  # the others have a fixed text
        assert "at most 1 at once (max_concurrent_requests)" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert later.status_code == 200


@pytest.mark.parametrize(
    ("num_bytes", "num_more_bytes", "is_here"),
    [(10, 0, True), (INLINE_BYTES + 1, 0, False), (10, INLINE_BYTES, False)],
)
async def test_large_bodies_are_read_away_from_the_event_loop(num_bytes, num_more_bytes, is_here):
    threads, sent = [], []

    class Recording(OpenAIChat):
        def parse(self, body, context):
            threads.append(threading.get_ident())
            raise InvalidRequest("enough")

    async def receive():
        return {"type": "http.request", "body": b"x" * num_bytes}

    async def send(message):
        sent.append(message)

    service = Service(ServerSettings(model="echo"), EchoBackend())
    route = GenerationRoute(service, route="/x", dialect=Recording(), extra_bytes=lambda _: num_more_bytes)
    await route({"type": "http", "method": "POST", "headers": []}, receive, send)

    assert [thread == threading.get_ident() for thread in threads] == [is_here]
    assert sent[0]["status"] == 400


def test_the_engines_own_refusal_reaches_the_client(echo):
    echo.backend.script = EchoScript(refusal=Busy("Too many sequences wait.", retry_after_s=3.2))
    response = echo.post("/v1/completions", body_of("/v1/completions"))
    assert (response.status_code, response.headers["retry-after"]) == (429, "4")
    assert echo.post("/generate", body_of("/generate")).json()["error_type"] == "overloaded"


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_an_engine_that_fails_before_the_end_is_a_status_for_a_whole_answer(echo, path):
    echo.backend.script = EchoScript(fail_after_tokens=2)
    response = echo.post(path, body_of(path))
    assert response.status_code == (500 if path.startswith("/v1") else 424)
    assert "The echo broke." in error_text(path, response)


@pytest.mark.parametrize("path", ["/generate_stream", "/v1/completions", "/v1/chat/completions"])
def test_an_engine_that_fails_before_the_first_byte_of_a_stream_is_a_status(echo, path):
    echo.backend.script = EchoScript(fail_after_tokens=0)
    response = echo.post(path, body_of(path, stream=True))
    assert response.status_code == (500 if path.startswith("/v1") else 424)
    assert "The echo broke." in error_text(path, response)


@pytest.mark.parametrize("path", ["/generate_stream", "/v1/completions", "/v1/chat/completions"])
def test_an_engine_that_fails_later_is_an_event_that_closes_the_stream(echo, path):
    echo.backend.script = EchoScript(fail_after_tokens=2)
    response = echo.post(path, body_of(path, stream=True))
    last = [line for line in response.text.splitlines() if line.startswith("data: {")][-1]
    assert response.status_code == 200
    assert "The echo broke." in json.dumps(json.loads(last[6:])["error"])
    assert streamed_text(path, response.text.rsplit("data: {", 1)[0]) == "one two"


def test_a_bug_is_500_without_its_text_and_logged_with_its_traceback(echo):
    echo.backend.script = EchoScript(refusal=Internal("x"))
    assert echo.post("/v1/completions", body_of("/v1/completions")).status_code == 500
    echo.backend.script = EchoScript(delay_s="not a number")
    response = echo.post("/v1/completions", body_of("/v1/completions"))
    assert response.status_code == 500
    assert "number" not in response.text
    assert "Traceback" in echo.log.getvalue()
    echo.backend.script = EchoScript()
    assert echo.post("/v1/completions", body_of("/v1/completions")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(stream):
    with serving(EchoBackend(script=SLOW, max_model_len=100_000)) as echo:
        body = {"model": "echo", "prompt": WORDS, "max_tokens": 50_000, "ignore_eos": True, "stream": stream}
        content = json.dumps(body).encode()
        with connected(echo) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
            if stream:
                assert connection.recv(1).startswith(b"H")
            echo.until(lambda: echo.backend.stats().num_running == 1, "the engine began")
        echo.until(lambda: echo.backend.aborted, "the abort")
        (record,) = echo.records(1)
        assert echo.backend.stats().num_running == 0
        echo.until(lambda: echo.service.limiter.in_flight == 0, "the request has left")
    assert (record["status"], record["finish"]) == (499, "disconnected")


def connected(echo):
    host, port = echo.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def test_leaving_during_a_batch_of_prompts_ends_all_of_them():
    with serving(EchoBackend(script=SLOW, max_model_len=100_000)) as echo:
        body = {"model": "echo", "prompt": ["a", "b", "c"], "max_tokens": 50_000, "ignore_eos": True, "stream": True}
        with echo.client.stream("POST", "/v1/completions", json=body) as response:
            read_some(response)
            assert echo.backend.stats().num_running == 3
        echo.until(lambda: echo.backend.stats().num_running == 0, "the end of all three")
        assert len(echo.backend.aborted) == 3


def test_a_connection_serves_request_after_request(echo):
    for number in range(5):
        assert (
            whole_text("/generate", echo.post("/generate", body_of("/generate", f"number {number}")))
            == f"number {number}"
        )
    assert echo.post("/generate", {"inputs": 5}).status_code == 422
    assert echo.post("/generate", body_of("/generate")).status_code == 200


def test_a_silent_stream_is_kept_alive():
    with serving(EchoBackend(script=EchoScript(delay_s=0.3))) as echo:
        echo.service.keep_alive_s = 0.05
        text = echo.post("/v1/completions", {"model": "echo", "prompt": "a b", "stream": True}).text
    assert text.startswith(":")
    assert streamed_text("/v1/completions", text) == "a b"


def test_the_older_tgi_is_spoken_when_the_settings_say_so():
    with serving(dialect="tgi-1.0") as echo:
        text = echo.post("/generate_stream", {"inputs": "a b"}).text
        info = echo.client.get("/info").json()
    assert text.startswith('data:{"token"')
    assert info["max_input_length"] == 511


def test_engine_errors_have_no_retry_header(echo):
    echo.backend.script = EchoScript(refusal=EngineFailed("A step failed."))
    response = echo.post("/v1/completions", body_of("/v1/completions"))
    assert response.status_code == 500
    assert "retry-after" not in response.headers


def test_a_client_that_leaves_before_its_body_is_complete_is_forgotten(echo):
    with connected(echo) as connection:
        connection.sendall(b'POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"inputs": ')
        echo.until(lambda: echo.open_calls, "the request began")
        assert echo.service.limiter.in_flight == 0
    (record,) = echo.records(1)
    assert (record["status"], record["finish"]) == (499, "disconnected")
    assert echo.backend.requests == []


def test_many_logprobs_are_rendered_beside_other_requests(echo):
    prompt = "word " * 200
    body = {"model": "echo", "prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 20}
    (choice,) = echo.post("/v1/completions", body).json()["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert len(logprobs["top_logprobs"]) == len(logprobs["tokens"]) > 200
