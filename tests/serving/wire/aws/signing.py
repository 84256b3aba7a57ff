"""Requests signed by botocore, with no network: its own signers, and whole boto3 clients stopped before they send."""

import functools
from urllib.parse import urlsplit

import boto3
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from headrace.serving.wire.aws.http import HttpRequest

ACCESS_KEY = "AKIAHEADRACE"
SECRET = "a/secret+with=signs"
SECRETS = {ACCESS_KEY: SECRET}
URL = "http://127.0.0.1:8080"
SIGNED_S = 1_767_225_600.0
"""2026-01-01T00:00:00Z"""

SIGNERS = {
    "header": SigV4Auth,
    "query": SigV4QueryAuth,
    "s3-header": S3SigV4Auth,
    "s3-query": S3SigV4QueryAuth,
}


def signed(kind, service, *, method="POST", path="/", body=b"", headers=None, token=None, **options):
    """A request as one of botocore's signers makes it."""
    credentials = Credentials(ACCESS_KEY, SECRET, token)
    request = AWSRequest(method=method, url=URL + path, data=body, headers=headers or {})
    SIGNERS[kind](credentials, service, "us-east-1", **options).add_auth(request)
    return http_request(request.prepare())


def http_request(prepared):
    """The request as a server receives it."""
    url = urlsplit(prepared.url)
    headers = {name.lower(): _text(value) for name, value in prepared.headers.items()}
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    body = body if isinstance(body, bytes) else b""  # a file, as S3 has it
    return HttpRequest(prepared.method, url.path or "/", url.query, {"host": url.netloc, **headers}, body)


def changed(request, **changes):
    """The request with some parts replaced; `headers` are added."""
    fields = {name: getattr(request, name) for name in ("method", "path", "query", "headers", "body")}
    headers = {**request.headers, **changes.pop("headers", {})}
    return HttpRequest(**{**fields, "headers": headers, **changes})


class Stopped(Exception):
    """Contains the request that a client was about to send."""

    def __init__(self, request):
        super().__init__()
        self.request = request


@functools.cache
def client(service, *, endpoint_url=URL, token=None, **config):
    """A boto3 client that raises `Stopped` instead of sending."""
    made = boto3.session.Session(ACCESS_KEY, SECRET, token, "us-east-1").client(
        service, endpoint_url=endpoint_url, config=Config(retries={"total_max_attempts": 1}, **config)
    )
    made.meta.events.register("before-send.*", _stop)
    return made


def sent_by(call, *arguments, **params):
    """The request that a client's method sends."""
    try:
        call(*arguments, **params)
    except Stopped as stopped:
        return http_request(stopped.request)
    raise AssertionError("nothing was sent")


def _stop(request, **_):
    raise Stopped(request)


def _text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
