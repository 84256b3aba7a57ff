"""Requests at the edge of HTTP, or beyond it: a strict parser, errors in JSON, and limits of size, time and number."""

import asyncio
import json
import socket

import pytest

from headrace.serving.http.connection_memory import ConnectionMemory
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.protocol import MAX_PIPELINED, MAX_SMALL_CHUNKS, HttpLimits, StreamingProtocol
from headrace.serving.http.server import http_server
from headrace.testing.echo import EchoBackend, EchoScript
from tests.http_cases import GET, HOST, MALFORMED, answers_in, exchange
from tests.serving.server.conftest import serving
from tests.waiting import WAIT_S

BODY = b'{"inputs":"a b","parameters":{"max_new_tokens":2}}'
CLOSE = b"Connection: close\r\n"
GENERATE = b"POST /generate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
TWO_CHUNKS = b"5\r\n" + BODY[:5] + b"\r\n" + b"%x;note=x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n"


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_json_and_a_closed_connection(echo, name):
    request, status = MALFORMED[name]

    (answer,) = answers_in(exchange(echo.url, request))

    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/json"
    assert set(json.loads(answer.body)) == {"error", "error_type"}
    assert echo.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations", "/generate", "/nowhere"])
def test_the_answer_to_a_malformed_head_is_the_same_on_every_route(echo, path):
    (answer,) = answers_in(exchange(echo.url, b"POST %b HTTP/1.1\r\n" % path.encode() + HOST + HOST + b"\r\n"))
    assert json.loads(answer.body) == {
        "error": "The request has 2 Host headers; expected one.",
        "error_type": "malformed_http",
    }


def test_trailers_are_dropped_and_the_connection_goes_on(echo):
    trailers = b"0\r\nX-Sum: 1\r\nAuthorization: Bearer x\r\nX-Empty:\r\n\r\n"
    request = GENERATE + b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" + TWO_CHUNKS + trailers

    whole = exchange(echo.url, request + GET + HOST + CLOSE + b"\r\n")
    in_bytes = exchange(
        echo.url, *(request[index : index + 1] for index in range(len(request))), GET, HOST, CLOSE, b"\r\n"
    )

    for received in (whole, in_bytes):
        first, second = answers_in(received)
        assert (first.status, json.loads(first.body)["generated_text"]) == (200, "a b")
        assert second.status == 200


def test_a_trailer_does_not_become_a_header():
    scopes = []
    with serving(watch_scope=scopes.append) as echo:
        request = (
            GENERATE + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n" + TWO_CHUNKS + b"0\r\nAuthorization: x\r\n\r\n"
        )
        (answer,) = answers_in(exchange(echo.url, request))
    assert answer.status == 200
    assert not [name for name, _ in scopes[0]["headers"] if name == b"authorization"]


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
def test_an_offer_to_upgrade_is_ignored_and_the_body_is_read(echo, upgrade):
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" % upgrade
    sized = GENERATE + offer + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    chunked = GENERATE + offer + b"Transfer-Encoding: chunked\r\n\r\n" + TWO_CHUNKS + b"0\r\n\r\n"

    answers = answers_in(
        exchange(echo.url, sized + chunked + GET + offer + HOST + b"\r\n" + GET + HOST + CLOSE + b"\r\n")
    )

    assert [answer.status for answer in answers] == [200, 200, 200, 200]
    assert [json.loads(answer.body)["generated_text"] for answer in answers[:2]] == ["a b", "a b"]


def test_an_absolute_target_is_a_path_of_this_server_under_the_host_that_it_names():
    scopes = []
    with serving(allowed_hosts=("a.example",), watch_scope=scopes.append) as echo:
        with_path = exchange(echo.url, b"GET http://a.example:1/health?x=1 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
        without = exchange(echo.url, b"GET http://127.0.0.1 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
    assert [answer.status for answer in answers_in(with_path) + answers_in(without)] == [200, 200]
    assert [(scope["path"], scope["query_string"]) for scope in scopes] == [("/health", b"x=1"), ("/", b"")]
    assert (b"host", b"a.example:1") in scopes[0]["headers"]


@pytest.mark.parametrize("path", ["/v9/a%0d%0ab%00%1b", "/v1/models/a%0d%0ab%00%1b", "/a" * 4000])
def test_a_path_is_quoted_as_it_was_sent_and_shortened(echo, path):
    message = echo.client.get(path).text
    assert message.isprintable()
    assert "\\r" not in message
    assert len(message) < 600


def test_options_of_the_server_itself_names_the_methods(echo):
    (answer,) = answers_in(exchange(echo.url, b"OPTIONS * HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"))
    assert answer.status == 204
    assert "POST" in answer.headers["allow"]


def test_pipelined_answers_come_before_the_refusal_of_what_follows_them(echo):
    generate = GENERATE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    answers = answers_in(exchange(echo.url, generate + generate + b"no HTTP at all\r\n\r\n"))
    assert [answer.status for answer in answers] == [200, 200, 400]
    assert json.loads(answers[1].body)["generated_text"] == "a b"


def test_a_malformed_body_is_refused_after_the_response_to_the_request_before_it(echo):
    generate = GENERATE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    malformed = GENERATE + b"Transfer-Encoding: chunked\r\n\r\nno size\r\n"
    for received in (exchange(echo.url, generate + malformed), exchange(echo.url, generate * 2 + malformed)):
        assert [answer.status for answer in answers_in(received)][-2:] == [200, 400]


def test_requests_pipelined_without_end_are_refused_after_the_responses_before_them(echo):
    get = GET + HOST + b"\r\n"
    *answers, refusal = answers_in(exchange(echo.url, get * 5_000))
    assert {answer.status for answer in answers} == {200}
    assert len(answers) <= MAX_PIPELINED + 1
    assert refusal.status == 503
    assert f"More than {MAX_PIPELINED} requests wait" in json.loads(refusal.body)["error"]


LARGE_HEAD = GET + HOST + CLOSE + b"".join(b"X-%d: %b\r\n" % (number, b"a" * 1000) for number in range(50)) + b"\r\n"
CHUNK = b"x" * 70_000 + b"\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
LONG_BODY = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 70000\r\n\r\n" + b"x" * 70_000


@pytest.mark.parametrize(
    ("reads", "num_responses"),
    [
        ([LARGE_HEAD[start : start + 1000] for start in range(0, len(LARGE_HEAD), 1000)], 1),
        ([CHUNKED + b"11170\r\n", CHUNK + b"11170\r\n", CHUNK + b"0\r\n", b"\r\n"], 1),
        ([GET, HOST + b"\r\n" + LONG_BODY + GET, HOST + CLOSE + b"\r\n"], 3),
    ],
    ids=["a head in many reads", "reads that end in the size of a chunk", "reads that end in the head of a request"],
)
async def test_only_the_bytes_of_a_head_count_as_its_bytes(reads, num_responses):
    protocol, wire = connected(answer_empty)
    for data in reads:
        protocol.data_received(data)
    await closed(protocol, wire)
    assert wire.sent.count(b"HTTP/1.1 200 OK") == num_responses
    assert b"HTTP/1.1 4" not in wire.sent


class Wire(asyncio.Transport):
    """The server's side of a connection: the test decides what each read returns."""

    def __init__(self):
        super().__init__()
        self.sent = b""
        self.num_unread = 0
        self.is_closed = asyncio.Event()

    def write(self, data):
        self.sent += data

    def write_eof(self):
        self.close()

    def can_write_eof(self):
        return True

    def get_write_buffer_size(self):
        return self.num_unread

    def close(self):
        self.is_closed.set()

    abort = close

    def is_closing(self):
        return self.is_closed.is_set()

    def set_write_buffer_limits(self, high=None, low=None):
        """Keep no buffer."""

    def pause_reading(self):
        """Read on: the test's requests are few."""

    resume_reading = pause_reading


async def answer_empty(_scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def connected(app, *, receive_timeout_s=WAIT_S):
    """Return a connection of a server, and its side of the wire."""
    limits = HttpLimits(max_connections=1, receive_timeout_s=receive_timeout_s, send_timeout_s=WAIT_S)
    server = http_server(app, limits=limits)
    protocol = StreamingProtocol(server.config, server.server_state, {}, limits=limits, memory=ConnectionMemory())
    wire = Wire()
    protocol.connection_made(wire)
    return protocol, wire


async def test_a_head_that_the_server_does_not_read_is_not_late():
    """The server reads on after the responses to the requests before it."""
    released = asyncio.Event()

    async def answer_when_released(scope, receive, send):
        await released.wait()
        await answer_empty(scope, receive, send)

    protocol, wire = connected(answer_when_released, receive_timeout_s=0.02)
    protocol.data_received((GET + HOST + b"\r\n") * 2 + GET)
    await asyncio.sleep(0.1)
    released.set()
    protocol.data_received(HOST + CLOSE + b"\r\n")
    await closed(protocol, wire)
    assert wire.sent.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    ("method", "version", "status", "body"),
    [
        ("GET", "1.1", 200, b"1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n"),
        ("GET", "1.0", 200, b"xyz"),
        ("GET", "1.0", 500, b"xyz"),
        *((method, version, 200, b"") for method in ("HEAD",) for version in ("1.1", "1.0")),
        *(("GET", version, status, b"") for status in (204, 304) for version in ("1.1", "1.0")),
    ],
)
async def test_a_stream_has_chunks_or_ends_with_its_connection_and_has_no_parts_without_a_body(
    method, version, status, body
):
    async def stream(scope, receive, send):
        exchange = Exchange(scope, receive, send)
        await exchange.start(status, ())
        exchange.put(b"x")  # written past ASGI
        await send({"type": "http.response.body", "body": b"yz", "more_body": True})
        await exchange.finish()

    protocol, wire = connected(stream)
    protocol.data_received(f"{method} / HTTP/{version}\r\n".encode() + HOST + CLOSE + b"\r\n")
    await closed(protocol, wire)
    head, _, sent = wire.sent.partition(b"\r\n\r\n")
    assert sent == body
    assert (b"transfer-encoding: chunked" in head.lower()) is body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_a_whole_response_of_a_status_without_a_body_has_no_length(status):
    async def answer(scope, receive, send):
        await Exchange(scope, receive, send).respond(status, (), b"x")

    protocol, wire = connected(answer)
    protocol.data_received(GET + HOST + CLOSE + b"\r\n")
    await closed(protocol, wire)
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert body == b""
    assert b"content-length" not in head.lower()


@pytest.mark.parametrize(("version", "is_told"), [(b"1.1", True), (b"1.0", False)])
async def test_only_clients_of_http_1_1_are_told_to_continue(version, is_told):
    protocol, wire = connected(answer_empty)
    head = b"POST / HTTP/%b\r\n" % version + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    protocol.data_received(head)
    await asyncio.sleep(0)
    protocol.data_received(b"x")
    await closed(protocol, wire)
    assert (b"100 Continue" in wire.sent) == is_told
    assert b"200 OK" in wire.sent


async def test_a_client_that_reads_slowly_is_not_idle():
    protocol, wire = connected(answer_empty)
    for wire.num_unread in (3000, 2000, 1000):
        protocol.timeout_keep_alive_handler()
        assert not wire.is_closing()
    protocol.timeout_keep_alive_handler()
    await closed(protocol, wire)


async def closed(protocol, wire):
    """Wait until the server closes the connection."""
    async with asyncio.timeout(WAIT_S):
        await wire.is_closed.wait()
    protocol.connection_lost(None)


def test_a_body_in_very_many_small_chunks_is_refused(echo):
    head = GENERATE + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
    (answer,) = answers_in(exchange(echo.url, head, b"1\r\n \r\n" * (MAX_SMALL_CHUNKS + 2)))
    assert (answer.status, "Send larger chunks." in json.loads(answer.body)["error"]) == (400, True)
    (answer,) = answers_in(
        exchange(echo.url, head, (b"41\r\n" + b" " * 65 + b"\r\n") * 20_000, TWO_CHUNKS, b"0\r\n\r\n")
    )
    assert answer.status == 200


def test_a_refusal_before_the_end_of_a_body_reaches_the_client_that_sends_it():
    with serving(max_body_bytes=1000) as echo:
        request = GENERATE + b"Content-Length: 3000000\r\n\r\n" + b" " * 1_000_000
        (answer,) = answers_in(exchange(echo.url, request))
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_client_that_waits_for_100_continue_is_told_that_its_body_is_too_large(echo):
    request = GENERATE + b"Expect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n"
    (answer,) = answers_in(exchange(echo.url, request))
    assert (answer.status, answer.headers["connection"]) == (413, "close")


@pytest.mark.parametrize(
    "request_part",
    [GET, GENERATE + b"Content-Length: 50\r\n\r\n{", b"", GENERATE, b"\r\n"],
    ids=["head", "body", "none", "head 2", "line break"],
)
def test_a_request_that_does_not_arrive_in_time_is_answered_408_and_closed(request_part):
    with serving(receive_timeout_s=0.2, timeout_keep_alive=1) as echo:
        answers = answers_in(exchange(echo.url, request_part))
        assert echo.service.limiter.in_flight == 0
    assert [answer.status for answer in answers] == ([408] if request_part.strip() else [])


def test_slow_senders_take_no_place_from_others():
    with serving(max_concurrent_requests=1) as echo, _connected(echo) as slow:
        slow.sendall(GENERATE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY[:-1])
        assert echo.post("/generate", json.loads(BODY)).status_code == 200
        slow.sendall(BODY[-1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


def test_a_reader_that_stops_is_dropped_and_its_request_aborted():
    backend = EchoBackend(max_model_len=200_000, script=EchoScript())
    body = {"model": "echo", "prompt": "w " * 100, "max_tokens": 150_000, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    with serving(backend, send_timeout_s=0.5) as echo, _connected(echo) as lazy:
        lazy.sendall(
            b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(content) + content
        )
        echo.until(lambda: backend.aborted, "the abort")
        echo.until(lambda: echo.service.limiter.in_flight == 0, "its place is free")
        assert echo.records(1)[0]["finish"] == "disconnected"


def test_a_client_that_leaves_ends_its_running_request_also_with_another_pipelined_behind_it():
    backend = EchoBackend(max_model_len=200_000, script=EchoScript(delay_s=0.01))
    body = {"model": "echo", "prompt": "w " * 100, "max_tokens": 150_000, "ignore_eos": True}
    content = json.dumps(body).encode()
    request = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(content) + content
    with serving(backend) as echo:
        with _connected(echo) as client:
            client.sendall(request + request)
            echo.until(lambda: echo.service.limiter.in_flight == 1, "it runs")
        echo.until(lambda: backend.aborted, "the abort")
        echo.until(lambda: echo.service.limiter.in_flight == 0, "its place is free")


def test_one_connection_too_many_is_told_to_come_again():
    with serving(max_connections=2) as echo, _connected(echo), _connected(echo) as second:
        second.sendall(GET + HOST + b"\r\n")
        assert second.recv(100).startswith(b"HTTP/1.1 200")
        (answer,) = answers_in(exchange(echo.url))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_bodies_share_a_budget_that_small_ones_do_not_need():
    with serving(max_buffered_bytes=100_000) as echo, _connected(echo) as slow:
        slow.sendall(GENERATE + b"Content-Length: 10000000\r\n\r\n" + b" " * 160_000)
        echo.until(lambda: echo.service.budget.held_bytes > 90_000, "the large body is held")
        large = echo.post("/generate", {"inputs": "a " * 50_000})
        small = echo.post("/generate", json.loads(BODY))
        slow.close()
        echo.until(lambda: echo.service.budget.held_bytes == 0, "the budget is whole again")
    assert (large.status_code, large.headers["retry-after"]) == (429, "1")
    assert small.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses/input_tokens",
        "/generate",
        "/invocations",
        "/tokenize",
        "/adapters",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_decoded(echo, path):
    lists = b'{"prompt":[' + b"[]," * 100_000 + b"[]]}"
    answer = echo.client.post(path, content=lists)
    assert (answer.status_code, "100003 objects and lists" in answer.text) == (413, True)
    ids = b'{"prompt":[' + b"1," * 600_000 + b"1]}"
    answer = echo.client.post(path, content=ids)
    assert (answer.status_code, "values" in answer.text) == (413, True)


def _connected(echo) -> socket.socket:
    host, port = echo.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect((host, int(port)))
    return connection


def test_head_and_body_of_a_response_are_sent_by_one_call(echo):
    """A server that is killed has sent a whole response or nothing, so that a gateway may try another server."""
    with _connected(echo) as connection:
        for _ in range(20):
            connection.sendall(GENERATE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
            (answer,) = answers_in(connection.recv(1 << 16))
            assert json.loads(answer.body)["generated_text"] == "a b"
