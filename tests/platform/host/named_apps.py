"""A platform whose applications say their names, with one access key."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from starlette.responses import JSONResponse

from headrace.platform.gateway.app import Gateway
from headrace.platform.host.access import Authenticator
from headrace.platform.host.access_keys import ACCESS_KEY, AccessKeySpec, KeyRing
from headrace.platform.host.app import Apps, PlatformApp
from headrace.platform.state.store import open_store
from headrace.serving.http.asgi import Receive, Scope, Send, caller_of
from headrace.serving.http.body import BodyBudget, read_body
from headrace.serving.wire.key_limits import NO_LIMITS, KeyLimits
from tests import plain_http
from tests.waiting import WAIT_S

from .broken_store import out_of_reach
from .serving import serving

KEY, SECRET = "HRAKTEST", "a-secret+with/signs"


def app_named(name: str) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, max_bytes=1 << 20)
        response = JSONResponse({"served_by": name, "bytes": len(body)}, headers={"x-caller": caller_of(scope)})
        await response(scope, receive, send)

    return app


@contextmanager
def platform(
    *,
    is_open: bool,
    allowed_hosts: tuple[str, ...] = (),
    status: str = "ok",
    max_bytes: int = 1 << 26,
    is_outdated: bool = False,
    is_reachable: bool = True,
    s3: Any = None,
    control: Any = None,
    registry: Any = None,
    limits: KeyLimits = NO_LIMITS,
) -> Iterator[str]:
    """
    A platform; `is_reachable` is False if its database is out of reach, `limits` are those of its key.

    `s3` and `control` are its applications, and `registry` makes one of a check of passwords.
    """
    store = open_store("sqlite://")
    store.create(ACCESS_KEY, KEY, spec=AccessKeySpec(secret=SECRET, limits=limits))
    authenticator = Authenticator(KeyRing(store), is_open=is_open, allowed_hosts=allowed_hosts)
    apps = Apps(
        gateway=app_named("gateway"),
        gateway_owns=Gateway.owns,
        control=control or app_named("control"),
        s3=s3 or app_named("s3"),
        console=app_named("console"),
        metrics=app_named("metrics"),
        health=lambda: {"service": "headrace", "status": status},
        outdated=lambda: is_outdated,
        registry=None if registry is None else registry(authenticator.check_password),
    )
    app = PlatformApp(apps, authenticator, BodyBudget(max_bytes))
    with nullcontext() if is_reachable else out_of_reach(store), serving(app) as url:
        yield url
    store.close()


def signed(
    url: str,
    service: str,
    *,
    method: str = "POST",
    path: str = "/",
    body: bytes = b"",
    secret: str = SECRET,
    **headers: str,
) -> httpx.Response:
    request = AWSRequest(method, url + path, data=body, headers=headers)
    SigV4Auth(Credentials(KEY, secret), service, "us-east-1").add_auth(request)
    return plain_http.request(method, url + path, content=body, headers=dict(request.headers.items()), timeout=WAIT_S)


TARGET = {"X-Amz-Target": "SageMaker.ListModels", "Content-Type": "application/x-amz-json-1.1"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
CBOR = {"smithy-protocol": "rpc-v2-cbor", "Content-Type": "application/cbor"}
LIST_METRICS = "/service/GraniteServiceVersion20100801/operation/ListMetrics"


def sagemaker_token(secret: str = SECRET, *, key: Credentials | None = None) -> str:
    """As `sagemaker.core.token_generator.generate_token` makes it of an access key."""
    host = "sagemaker.amazonaws.com"
    request = AWSRequest("POST", f"https://{host}/", headers={"host": host}, params={"Action": "CallWithBearerToken"})
    SigV4QueryAuth(key or Credentials(KEY, secret), "sagemaker", "us-east-1", expires=600).add_auth(request)
    url = request.url.removeprefix("https://") + "&Version=1"
    return f"Bearer sagemaker-api-key-{base64.b64encode(url.encode()).decode()}"
