"""Messages between processes of a platform: members, model hosts, and heads of requests that reach workers."""

import asyncio
import hashlib
import io
import re

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.tracing import read_trace
from headrace.platform.cluster.model_host.protocol import REASON_HEADER, parse_timing, reason_of
from headrace.platform.control.loops.adapter_loader import message_of
from headrace.platform.gateway import request as runtime_request
from headrace.platform.host.channel import _ASKED, PATH, Channel
from headrace.platform.host.peers import Siblings
from headrace.platform.state.coordination import Member
from headrace.serving.server.sagemaker import read_attributes
from headrace.serving.server.sessions import request_type
from headrace.serving.server.trusted_code import events_of
from headrace.serving.wire.aws.errors import AwsError
from tests.fuzz.target import Malformed, Target
from tests.fuzz.targets.archives import scene
from tests.fuzz.targets.connections import _loop

_OWN = Member(id="a", url="http://a.example:7450", host="a", data_dir="/", version="1")
_NOW_S = 1_700_000_000.0
_NONCE = "0" * 24


def _channel() -> Channel:
    answers = {"echo": lambda argument: argument, "fixed": lambda _: 1}
    siblings = Siblings(folder=scene("members"), own_id="a", answers=answers)
    return Channel(siblings=siblings, own=_OWN, secret="s" * 40, now_s=lambda: _NOW_S)


def _question(data):
    """A sealed and signed question is answered or is unknown; without its signature nothing is read."""
    channel = _channel()
    head, _, text = data.partition(b"\n\n")
    body = channel._sealed(_ASKED, _NONCE, text)
    signed = channel._signed(_OWN.machine, _NONCE, hashlib.sha256(body).hexdigest()) | {"host": _OWN.machine}
    lines = (line.partition(":") for line in head.decode("latin-1").split("\n") if line)
    changes = {name.strip().lower(): value.strip() for name, _, value in lines}
    status = _loop().run_until_complete(_answered(channel, {**signed, **changes}, body))
    assert status in {200, 404}
    assert all(signed.get(name) == value for name, value in changes.items() if name in signed)


async def _answered(channel: Channel, headers: dict[str, str], body: bytes) -> int:
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": raw,
    }
    await channel(scope, receive, send)
    return sent[0]["status"]


class _Writer:
    """The end of a socket that keeps nothing."""

    is_closed = False

    def write(self, data):
        msgspec.json.decode(data)

    async def drain(self):
        pass

    def close(self):
        self.is_closed = True


def _sibling(data):
    """A line of another process on this machine is answered, or ends its connection."""
    _loop().run_until_complete(_serve(data))


async def _serve(data):
    reader, writer = asyncio.StreamReader(), _Writer()
    reader.feed_data(data)
    reader.feed_eof()
    await _channel().siblings._serve(reader, writer)
    assert writer.is_closed


def _worker_answer(data):
    """Answers of a worker, which may run a stranger's code, to an adapter, and reports of a sandboxed server."""
    assert len(message_of(data)) <= len(data) + 1
    for event in events_of(io.BytesIO(data)):
        assert isinstance(event.completed, int)


def _timing(data):
    """The headers in which a model host tells why and how long a request waited."""
    timing = parse_timing(data.decode("latin-1"))
    assert all(0 <= value < 10**15 for value in (timing.wait, timing.download or 0, timing.load or 0, *timing.unload))
    reason_of({REASON_HEADER: data.decode("latin-1")})


def _runtime_head(data):
    """Path and headers of a runtime request; what is passed on to a worker fits into headers."""
    path, *lines = data.split(b"\n")
    found = runtime_request.match(path.decode("latin-1"))
    if found is None:
        raise Malformed
    pairs = (line.partition(b":") for line in lines if b":" in line)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
    if any(_CONTROL.search(value) for _, value in headers):  # the parser of HTTP refuses them
        raise Malformed
    invocation = runtime_request.read(*found, headers, read_trace(headers))
    for name, value in invocation.worker_headers():
        assert not {"\r", "\n", "\0"} & {*name, *value}, (name, value)
        value.encode("latin-1")


def _session(data):
    """The first line has custom attributes, the rest may open or close a session."""
    attributes, _, body = data.partition(b"\n")
    assert all(name == name.lower() for name in read_attributes(attributes.decode("latin-1")))
    request_type(body)


_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HEAD = (
    b"/endpoints/e/invocations\ncontent-type: application/json\naccept: */*\n"
    b"x-amzn-sagemaker-custom-attributes: a=b, accept_eula=true\nx-amzn-sagemaker-target-variant: v\n"
    b"x-amzn-sagemaker-target-model: m.tar.gz\nx-amzn-sagemaker-session-id: NEW_SESSION\n"
    b"x-headrace-priority: background\n"
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\namz-sdk-request: attempt=2; max=3"
)
_ASYNC = (
    b"/endpoints/e/async-invocations\nx-amzn-sagemaker-inputlocation: s3://b/k\nx-amzn-sagemaker-requestttlseconds: 6\n"
    b"x-amzn-sagemaker-invocationtimeoutseconds: 900\nx-amzn-sagemaker-inference-id: i"
)

TARGETS = (
    Target(
        "member-question",
        _question,
        (AwsError,),
        lambda: {
            "known": b'\n\n{"name": "echo", "argument": [1, {"a": null}]}',
            "for all": b'\n\n{"name": "fixed", "is_for_all": true}',
            "head": b'x-amz-date: 20231114T221320Z\n\n{"name": "echo"}',
        },
        words=(
            b"\n\n",
            b"x-amz-nonce: ",
            b"host: b\n",
            b"x-amz-content-sha256: UNSIGNED-PAYLOAD\n",
            b"[" * 5000,
            b"\xff",
        ),
        is_json=True,
        suite_cases=200,
    ),
    Target(
        "sibling-question",
        _sibling,
        (),
        lambda: {"known": b'["echo", {"a": [1]}]\n', "unknown": b'["other", null]\n'},
        words=(b"\n", b"[" * 5000, b"{}", b'"echo"', b"1e999", b"\xff"),
        is_json=True,
        suite_cases=200,
    ),
    Target(
        "worker-answer",
        _worker_answer,
        (),
        lambda: {
            "error": b'{"error": {"message": "no such adapter", "code": 404}}',
            "text": b"not found",
            "events": b'{"task": "weights", "completed": 1, "total": 2, "unit": "B"}\n{"task": "x"}\n',
        },
        words=(b"[" * 5000, b"\n", b"1e999", b"9" * 5000, b'"message"', b'"info": ', b"\xff"),
        is_json=True,
        suite_cases=200,
    ),
    Target(
        "model-timing",
        _timing,
        (),
        lambda: {"whole": b"wait=1200;download=300;load=900;unload=40;unload=2"},
        words=(b"=", b";", b"9" * 400, b"-1", b"unload=", b"no-memory", b"\xb2"),
        suite_cases=300,
    ),
    Target(
        "runtime-head",
        _runtime_head,
        (AwsError,),
        lambda: {"usual": _HEAD, "stream": _HEAD.replace(b"s\n", b"s-response-stream\n", 1), "async": _ASYNC},
        words=(
            b"x-amzn-sagemaker-",
            b"\r",
            b"\0",
            b"\xc3\xa9",
            b"\xff",
            b"9" * 400,
            b"tracestate: a=b\n",
            b"content-encoding: ",
        ),
        suite_cases=400,
    ),
    Target(
        "session-request",
        _session,
        (InvalidRequest,),
        lambda: {"new": b'a=b;route=/v1/x\n{"requestType": "NEW_SESSION"}', "close": b'\n{"requestType": "CLOSE"}'},
        words=(b"requestType", b",", b"=", b";", b"[" * 5000, b"\xff", b"9" * 5000),
        is_json=True,
        suite_cases=300,
    ),
)
