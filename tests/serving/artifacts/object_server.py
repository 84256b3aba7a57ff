"""A small object server in a thread: the S3 operations that workers use, plain HTTP, and faults on demand."""

import hashlib
import re
import threading
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.platform.storage.s3_signing import S3Access


@dataclass
class Objects:
    """The stored objects by `/bucket/key`, and the faults to play."""

    contents: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    """Responses for these paths end in the middle of what is asked for."""
    emptied: set[str] = field(default_factory=set)
    """Responses for these paths are complete but have no content."""
    denied: set[str] = field(default_factory=set)
    codings: dict[str, str] = field(default_factory=dict)
    """The `Content-Encoding` of these paths."""
    gets: list[str] = field(default_factory=list)
    """GETs of objects, in order."""
    url: str = ""

    @property
    def access(self) -> S3Access:
        return S3Access(endpoint_url=self.url, access_key="a", secret_key="s", region="us-east-1")

    def granted(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the specification with what the platform grants its worker."""
        return replace(spec, grants=ObjectGrants(self.access).for_worker(spec))


@cache
def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: Objects

    def do_HEAD(self) -> None:
        self._answer_object(with_body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parse_qs(parts.query):
            self._answer_list(unquote(parts.path).strip("/"), parse_qs(parts.query).get("prefix", [""])[0])
        else:
            self.objects.gets.append(unquote(parts.path))
            self._answer_object(with_body=True)

    def _answer_list(self, bucket: str, prefix: str) -> None:
        if not any(path.startswith(f"/{bucket}/") for path in self.objects.contents):
            self._error(404, "NoSuchBucket")
            return
        rows = "".join(
            f"<Contents><Key>{escape(path.removeprefix(f'/{bucket}/'))}</Key><Size>{len(content)}</Size>"
            f"<ETag>{escape(etag(content))}</ETag></Contents>"
            for path, content in sorted(self.objects.contents.items())
            if path.startswith(f"/{bucket}/{prefix}")
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        self._send(200, page, {"Content-Type": "application/xml"})

    def _answer_object(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        content = self.objects.contents.get(path)
        if path in self.objects.denied:
            self._error(403, "AccessDenied", with_body=with_body)
        elif content is None:
            self._error(404, "NoSuchKey", with_body=with_body)
        elif self.headers.get("If-Match", etag(content)) != etag(content):
            self._error(412, "PreconditionFailed", with_body=with_body)
        elif path in self.objects.cut and with_body:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", etag(content))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif path in self.objects.emptied and with_body:
            self._send(206, b"", {"ETag": etag(content)})
        elif span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
            headers = {"ETag": etag(content), "Content-Range": f"bytes {first}-{last}/{len(content)}"}
            self._send(206, content[first : last + 1], headers, with_body=with_body)
        else:
            coding = {"Content-Encoding": self.objects.codings[path]} if path in self.objects.codings else {}
            self._send(200, content, {"ETag": etag(content), **coding}, with_body=with_body)

    def _error(self, status: int, code: str, *, with_body: bool = True) -> None:
        body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
        self._send(status, body, {}, with_body=with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class ObjectServer:
    """The server, running during a `with` block."""

    def __init__(self) -> None:
        self.objects = Objects()
        handler = type("Handler", (_Handler,), {"objects": self.objects})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.objects.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Objects:
        self._thread.start()
        return self.objects

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
