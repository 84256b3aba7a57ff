"""Bytes that arrive on connections: requests from clients, responses from workers, forms, and frames from children."""

import asyncio
import math
from functools import cache, partial

import msgspec
import uvicorn
from starlette.datastructures import Headers
from uvicorn.server import ServerState

from headrace.core.errors import HeadraceError
from headrace.platform.cluster.container_header import read_answered
from headrace.serving.http.client_connection import ClientConnection, NoResponse, ResponseBroken
from headrace.serving.http.connection_memory import ConnectionMemory
from headrace.serving.http.protocol import HttpLimits, StreamingProtocol
from headrace.serving.server.handlers.relay import body_parts
from headrace.serving.wire.openai.proxied_responses import ProxiedRequest, ResponseRecorder, read_request
from headrace.serving.wire.openai.stored_responses import NO_ITEMS, StoredResponse
from headrace.serving.wire.usage import MAX_TOKENS, has_usage, read_usage, usage_in
from headrace_handler.frames import BadFrame, FrameParser
from tests.fuzz.target import Target
from tests.http_cases import MALFORMED

_LIMITS = HttpLimits(max_connections=10, receive_timeout_s=3600, send_timeout_s=3600)
_MAX_WRITTEN_BYTES = 1 << 20


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data):
        self.written += data

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else default

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def can_write_eof(self):
        return True

    def write_eof(self):
        pass

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    abort = close

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


async def _echo_length(scope, receive, send):
    """Answer with the length of the body."""
    assert isinstance(scope["path"], str)
    Headers(scope=scope).items()
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"%d" % length
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@cache
def _loop():
    return asyncio.new_event_loop()


def _config(app):
    config = uvicorn.Config(app, ws="none", lifespan="off", access_log=False, log_config=None, proxy_headers=False)
    config.load()
    return config


_http_config = cache(partial(_config, _echo_length))


def _http_request(data):
    """Bytes of a client end in well-formed responses or none, and leave no task and no timer."""
    _loop().run_until_complete(_serve(data))


async def _serve(data):
    state, transport, errors = ServerState(), _Transport(), []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    protocol = StreamingProtocol(_http_config(), state, {}, _loop=loop, limits=_LIMITS, memory=ConnectionMemory())
    protocol.connection_made(transport)
    for part in _parts(data):
        protocol.data_received(part)
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    while state.tasks:
        await asyncio.sleep(0)
    if protocol.timeout_keep_alive_task is not None:
        protocol.timeout_keep_alive_task.cancel()
    assert not errors, errors
    assert len(transport.written) < _MAX_WRITTEN_BYTES
    assert not transport.written or transport.written.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in transport.written


def _parts(data):
    """Cut where the data says, so that a case also decides how its bytes arrive."""
    cut = sum(data) % (len(data) + 1) if len(data) % 3 else 0
    return [part for part in (data[:cut], data[cut:]) if part]


def _http_response(data):
    """Bytes of a worker end in a whole response or in its declared failure."""
    _loop().run_until_complete(_read_response(data))


async def _read_response(data):
    connection = ClientConnection(on_release=lambda _: None, on_lost=lambda _: None)
    connection.connection_made(_Transport())
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
    for part in _parts(data):
        connection.data_received(part)
    connection.connection_lost(None)
    try:
        await response.started()
        await response.read(1 << 24)
    finally:
        response.close()


def _form(data):
    """The first line is the Content-Type, the rest the body."""
    kind, _, body = data.partition(b"\n")
    _loop().run_until_complete(body_parts(body, kind.decode("latin-1"), reads_forms=True))


def _frames(data):
    """Frames of a child whose code may have written to its descriptors."""
    reader = FrameParser()
    for part in _parts(data):
        for frame in reader.feed(part):
            assert isinstance(frame.header, dict)
    reader.close()


def _stored(_id):
    return StoredResponse(response=b'{"id":"r","status":"completed","output":[]}', items=NO_ITEMS, created_s=0)


def _proxied_request(data):
    found = read_request(data, _stored)
    if found is not None:
        msgspec.json.decode(found.body, type=dict[str, msgspec.Raw])
        found.input_items("r1")


def _proxied_stream(data):
    """Events of a model server pass, or are rewritten, but never lost."""
    request = ProxiedRequest(body=b"{}", input=b'"a"', before=NO_ITEMS, previous_response_id="resp_1", is_stored=True)
    kept = []
    recorder = ResponseRecorder(
        request, NO_ITEMS, lambda _id, entry: kept.append(entry), created_s=0, max_bytes=100_000
    )
    out = b"".join(recorder.feed(part) for part in _parts(data)) + recorder.rest()
    assert kept or b"response." in data or out == data
    recorder.whole(data)


_MULTIPART = (
    b'multipart/form-data; boundary=B\n--B\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n'
    b"Content-Type: text/plain\r\n\r\nhello\r\n--B\r\nContent-Disposition: form-data; name=c\r\n\r\n\r\n--B--\r\n"
)
_EVENTS = (
    b'event: response.created\ndata: {"response":{"id":"r","status":"queued","output":[]}}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
    b'event: response.completed\ndata: {"response":{"id":"r","status":"completed","output":[{"id":"m"}]}}\r\n\r\n'
)


def _containers(data: bytes) -> object:
    """Times of containers are added up, and are published as they are."""
    found = read_answered(data.decode("latin-1"))
    assert all(name and 0.0 <= seconds < math.inf for name, seconds in found)
    return found


def _usage(data):
    """The tokens of a request: in a header or a trailer of our servers, in an answer of others."""
    told = read_usage(data[:64].decode("latin-1"))
    assert told is None or 0 <= told <= MAX_TOKENS
    found = usage_in(data)
    assert found is None or (has_usage(data) and 0 <= found <= MAX_TOKENS)


TARGETS = (
    Target(
        "usage",
        _usage,
        refusals=(),
        make_seeds=lambda: {
            "header": b"12 30",
            "answer": b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}',
            "events": b'data: {"response":{"usage":{"input_tokens":1,"output_tokens":2}}}\n\ndata: [DONE]\n\n',
        },
        words=(b'"usage":{', b"data: ", b"total_tokens", b"-1", b"1e308", b"99999999999999999999", b"\xb2 1"),
    ),
    Target(
        "http-request",
        _http_request,
        refusals=(),
        make_seeds=lambda: {name: data[:5000] for name, (data, _) in MALFORMED.items()},
        words=(
            *(b"HTTP/1.1\r\n", b"Host: a\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: ", b"\r\n\r\n"),
            *(b"Upgrade: h2c\r\n", b"Connection: upgrade\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n", b" \t", b":"),
            *(
                b"http://a:1/",
                b"%2e%2e",
                b"POST ",
                b"Connection: close\r\n",
                b"0\r\nX: y\r\n\r\n",
                b"GET / HTTP/1.0\r\n",
            ),
        ),
    ),
    Target(
        "http-response",
        _http_response,
        refusals=(NoResponse, ResponseBroken),
        words=(
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"\r\n\r\n",
        ),
    ),
    Target(
        "form",
        _form,
        make_seeds=lambda: {
            "multipart": _MULTIPART,
            "urlencoded": b"application/x-www-form-urlencoded; charset=x\na=1&b=%ff&c",
        },
        words=(
            b"--B\r\n",
            b"--B--",
            b"; name=",
            b"filename*=UTF-8''%ff",
            b"boundary=",
            b'"',
            b"\\",
            b"\r\n\r\n",
            b"&=",
            b";" * 5000,
        ),
        limit_s=0.5,
    ),
    Target("handler-frames", _frames, refusals=(BadFrame,)),
    Target(
        "containers-header",
        _containers,
        refusals=(),
        make_seeds=lambda: {"pipeline": b"pre=0.25,chat=1e-3,post"},
        words=(b"=nan", b"=-1", b"=1e999", b",", b"=", b"\xb2"),
    ),
    Target(
        "responses-request",
        _proxied_request,
        refusals=(HeadraceError,),
        make_seeds=lambda: {
            "continued": b'{"model":"m","input":"a","previous_response_id":"resp_1"}',
            "items": b'{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"store":true}',
        },
        words=(b"input", b"previous_response_id", b"store", b"id", b"content", b"role"),
        is_json=True,
    ),
    Target(
        "responses-stream",
        _proxied_stream,
        refusals=(),
        make_seeds=lambda: {"events": _EVENTS, "whole": b'{"id":"r","status":"completed","output":[],"store":false}'},
        words=(b"\n\n", b"\r\n\r\n", b"event: response.failed\ndata: ", b'"response":', b'"id":', b'"status":"failed"'),
    ),
)
