"""The limits of access keys, as the SDKs of each API meet them."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import anthropic
import openai
import pytest
from botocore.exceptions import ClientError

from headrace.platform.gateway.key_usage import KeyUsages
from headrace.serving.http.asgi import ASGIApp, Receive, Scope, Send, set_caller
from headrace.serving.wire.key_limits import KeyLimits
from headrace.serving.wire.usage import USAGE_HEADER
from tests.serving.server.conftest import Echo, serving
from tests.waiting import WAIT_S

from .conftest import Running, client_of, running
from .openai_worker import MESSAGES, event
from .routes import component, route, variant
from .workers import Exchange

KEY = "HRAKLIMITED"
CHAT: Any = {"model": "ep", "messages": MESSAGES}


class LimitedGateway:
    """A gateway whose every request has one key, with limits and a clock that a test sets."""

    def __init__(self) -> None:
        self.limits: KeyLimits | None = None
        self.number = 0
        self.now_s = 6000.0

    @property
    def key(self) -> str:
        """A key that no test before has used."""
        return f"{KEY}{self.number}"

    def wrap(self, gateway: ASGIApp) -> ASGIApp:
        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            set_caller(scope, self.key, limits=self.limits)
            await gateway(scope, receive, send)

        return limited


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, LimitedGateway]]:
    limited = LimitedGateway()
    with running(wrap=limited.wrap, usages=KeyUsages(tmp_path_factory.mktemp("usage"))) as made:
        made.gateway._service.limiter.clock = lambda: limited.now_s
        yield made, limited


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    """Our server, with an echo for a model, whose log lines are lost: the gateway's have the same place."""
    with serving() as made:
        yield made


def tokens_of(echo: Echo) -> float:
    """The tokens that a server has counted."""
    metrics = echo.service.metrics
    return metrics.prompt_tokens.sum + metrics.output_tokens.sum


@pytest.fixture
def scene(shared: tuple[Running, LimitedGateway]) -> Iterator["Scene"]:
    gateway, limited = shared
    limited.number += 1
    limited.now_s = 6000.0 + 600 * limited.number
    made = Scene(gateway, limited)
    with made.openai, made.anthropic:
        yield made
    gateway.until(gateway.is_idle, "all requests ended")
    gateway.clean_up()


class Scene:
    def __init__(self, gateway: Running, limited: LimitedGateway) -> None:
        self.gateway, self.limited = gateway, limited
        options: Any = {"api_key": "-", "max_retries": 0, "timeout": WAIT_S}
        self.openai = openai.OpenAI(base_url=f"{gateway.url}/v1", **options)
        self.anthropic = anthropic.Anthropic(base_url=gateway.url, **options)

    def limit(self, **limits: Any) -> None:
        self.limited.limits = KeyLimits(**limits)

    def messages(self) -> Any:
        return self.anthropic.messages.create(max_tokens=9, **CHAT)

    def invoke(self, endpoint: str = "ep", **more: Any) -> Any:
        return self.gateway.boto.invoke_endpoint(EndpointName=endpoint, Body=b"{}", **more)

    def used_tokens(self) -> int:
        usage = self.gateway.gateway.key_usages.of(self.limited.key).read(self.limited.now_s)
        assert usage.in_flight == 0
        return usage.tokens.now


async def answer(exchange: Exchange) -> None:
    """Answer with a usage of 30 tokens, in the header and the trailer of our servers."""
    assert exchange.asked.headers.get(USAGE_HEADER) in {"1", None}
    told = {USAGE_HEADER: "10 20"} if USAGE_HEADER in exchange.asked.headers else {}
    if json.loads(exchange.asked.body or b"{}").get("stream"):
        exchange.start(content_type="text/event-stream")
        for word in ("one", "two", "three"):
            exchange.chunk(event(word))
        trailers = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        exchange.raw(f"0\r\n{trailers}\r\n".encode())
        return
    body = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": "m", "choices": []}
    exchange.whole(json.dumps(body).encode(), content_type="application/json", **told)


def test_openai_clients_see_what_is_left_and_when_to_come_again(scene: Scene) -> None:
    scene.gateway.serve(answer)
    scene.limit(requests_per_minute=2, tokens_per_minute=1000)
    first = scene.openai.chat.completions.with_raw_response.create(**CHAT)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"] == "2m0s"
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    assert USAGE_HEADER not in first.headers
    with scene.openai.chat.completions.create(**CHAT, stream=True) as stream:
        assert len(list(stream)) == 3
        assert stream.response.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError, match=r"requests per minute: limit 2, used 2") as refused:
        scene.openai.chat.completions.create(**CHAT)
    body: Any = refused.value.body
    assert (body["type"], body["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert refused.value.response.headers["retry-after"] == "90"
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    scene.limited.now_s += 90
    scene.openai.chat.completions.create(**CHAT)


def test_anthropic_clients_get_their_own_headers_and_error(scene: Scene) -> None:
    scene.gateway.serve(answer)
    scene.limit(requests_per_minute=1)
    first = scene.anthropic.messages.with_raw_response.create(max_tokens=9, **CHAT)
    assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert first.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    with pytest.raises(anthropic.RateLimitError) as refused:
        scene.messages()
    body: Any = refused.value.body
    assert body["error"]["type"] == "rate_limit_error"
    assert int(refused.value.response.headers["retry-after"]) > 0


def test_boto3_gets_the_exception_that_it_retries(scene: Scene) -> None:
    refusals: list[Any] = []
    scene.gateway.serve()
    scene.limit(requests_per_minute=1)
    scene.invoke()
    with closing(client_of(scene.gateway.url, retries={"total_max_attempts": 1})) as boto:
        for call in (boto.invoke_endpoint, boto.invoke_endpoint_with_response_stream):
            with pytest.raises(ClientError) as refused:
                call(EndpointName="ep", Body=b"{}")
            refusals.append(refused.value.response)
    for refusal in refusals:
        assert refusal["Error"]["Code"] == "ThrottlingException"
        metadata = refusal["ResponseMetadata"]
        assert metadata["HTTPStatusCode"] == 429
        assert int(metadata["HTTPHeaders"]["retry-after"]) > 0


def test_models_that_a_key_may_not_use_do_not_exist_for_it(scene: Scene) -> None:
    worker = scene.gateway.worker(answer)
    hosted = component("comp", [worker.url])
    scene.gateway.put(
        route(variant("v", [worker.url])),
        route(variant("v", [worker.url]), endpoint="other"),
        route(variant("AllTraffic", []), endpoint="host", components=(hosted,)),
    )
    names = [model.id for model in scene.openai.models.list()]
    assert sorted(names) == ["comp", "ep", "other"]
    scene.limit(models=("e?", "comp"))
    assert sorted(model.id for model in scene.openai.models.list()) == ["comp", "ep"]
    scene.openai.chat.completions.create(**CHAT)
    scene.openai.chat.completions.create(**{**CHAT, "model": "comp"})
    scene.messages()
    scene.invoke()
    scene.invoke("host", InferenceComponentName="comp")
    texts = set()
    for name in ("other", "missing"):
        with pytest.raises(openai.NotFoundError) as unknown:
            scene.openai.chat.completions.create(**{**CHAT, "model": name})
        body: Any = unknown.value.body
        assert (body["code"], body["param"]) == ("model_not_found", "model")
        texts.add(body["message"].replace(name, "NAME"))
        with pytest.raises(openai.NotFoundError):
            scene.openai.models.retrieve(name)
        with pytest.raises(anthropic.NotFoundError):
            scene.anthropic.messages.create(max_tokens=9, model=name, messages=CHAT["messages"])
        with pytest.raises(ClientError) as denied:
            scene.invoke(name)
        assert denied.value.response["Error"]["Code"] == "AccessDeniedException"
        assert f"endpoint/{name} because the limits" in denied.value.response["Error"]["Message"]
        denied_chat = scene.gateway.client.post("/api/chat", json={**CHAT, "model": name})
        assert (denied_chat.status_code, "does not exist" in denied_chat.json()["error"]) == (404, True)
    assert len(texts) == 1
    listed = scene.gateway.client.get("/api/tags").json()["models"]
    assert sorted(model["name"] for model in listed) == ["comp:latest", "ep:latest"]
    assert scene.gateway.client.post("/api/chat", json={**CHAT, "model": "ep:latest"}).status_code == 200
    assert scene.gateway.client.get("/endpoints/other/openai/v1/models").status_code == 404


def test_a_key_without_the_action_is_forbidden(scene: Scene) -> None:
    scene.gateway.serve(answer)
    scene.limit(actions=("s3:*", "sagemaker:InvokeEndpointAsync"))
    assert list(scene.openai.models.list()) == []
    with pytest.raises(openai.PermissionDeniedError, match="sagemaker:InvokeEndpoint "):
        scene.openai.chat.completions.create(**CHAT)
    with pytest.raises(anthropic.PermissionDeniedError):
        scene.messages()
    with pytest.raises(ClientError, match="AccessDeniedException"):
        scene.invoke()
    scene.limit(actions=("invoke",))
    scene.openai.chat.completions.create(**CHAT)
    loading = scene.gateway.client.post("/v1/load_lora_adapter", json={"model": "ep"})
    assert loading.status_code == 403


async def foreign(exchange: Exchange) -> None:
    """Answer as a server of others does: with the usage in the body only."""
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    body = json.dumps({"choices": [], "usage": usage}).encode()
    if json.loads(exchange.asked.body).get("stream"):
        exchange.start(content_type="text/event-stream")
        exchange.chunk(event("one"))
        exchange.chunk(b"data: " + body + b"\n\n")
        exchange.chunk(b"data: [DONE]\n\n")
        exchange.end()
    else:
        exchange.whole(body, content_type="application/json")


async def silent(exchange: Exchange) -> None:
    """Stream without any usage."""
    exchange.start(content_type="text/event-stream")
    for word in ("one", "two", "three"):
        exchange.chunk(event(word))
    exchange.end()


async def failing(exchange: Exchange) -> None:
    exchange.whole(b'{"error": {"message": "no"}}', status="400 Bad Request", content_type="application/json")


ESTIMATE = len(json.dumps({"messages": MESSAGES, "model": "ep", "stream": True}, separators=(",", ":"))) // 4


@pytest.mark.parametrize(
    ("script", "stream", "num_tokens"),
    [
        (answer, False, 30),
        (answer, True, 30),
        (foreign, False, 11),
        (foreign, True, 11),
        (silent, True, ESTIMATE + 3),
        (failing, True, 0),
    ],
)
def test_tokens_are_counted_when_a_request_ends(
    scene: Scene, script: Callable[[Exchange], Any], stream: bool, num_tokens: int
) -> None:
    scene.gateway.serve(script)
    scene.limit(tokens_per_minute=1000)
    sent = {**CHAT, **({"stream": True} if stream else {})}
    scene.gateway.client.post("/v1/chat/completions", json=sent).read()
    scene.gateway.until(scene.gateway.is_idle, "it has ended")
    assert scene.used_tokens() == num_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", {**CHAT, "max_tokens": 9}),
        ("/v1/responses", {"model": "ep", "input": "one two"}),
        ("/endpoints/ep/invocations", {"inputs": "one two"}),
        ("/endpoints/ep/invocations-response-stream", {"inputs": "one two"}),
    ],
)
def test_our_servers_tell_the_tokens_exactly(
    scene: Scene, echo: Echo, path: str, body: dict[str, object], *, stream: bool
) -> None:
    scene.gateway.put(route(variant("v", [echo.url])))
    scene.limit(tokens_per_minute=1000)
    before = tokens_of(echo)
    answer = scene.gateway.client.post(path, json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    scene.gateway.until(lambda: scene.gateway.is_idle() and not echo.open_calls, "it has ended")
    assert scene.used_tokens() == tokens_of(echo) - before > 0
    assert USAGE_HEADER not in answer.headers


def test_a_stream_that_is_cancelled_counts_what_was_produced(scene: Scene) -> None:
    async def endless(exchange: Exchange) -> None:
        exchange.start(content_type="text/event-stream")
        for _ in range(5):
            exchange.chunk(event("word"))
        await exchange.until_gone()

    scene.gateway.serve(endless)
    scene.limit(tokens_per_minute=1000, max_in_flight=1)
    with scene.openai.chat.completions.create(**CHAT, stream=True) as stream:
        for _, _ in zip(range(5), stream, strict=False):
            pass
        with pytest.raises(openai.RateLimitError, match="1 requests in flight; expected at most 1") as refused:
            scene.openai.chat.completions.create(**CHAT)
        assert refused.value.response.headers["retry-after"] == "1"
    scene.gateway.until(scene.gateway.is_idle, "it is cancelled")
    assert scene.used_tokens() == ESTIMATE + 5


def test_tokens_over_the_limit_are_refused_until_they_are_a_minute_old(scene: Scene) -> None:
    scene.gateway.serve(answer)
    scene.limit(tokens_per_minute=25)
    scene.openai.chat.completions.create(**CHAT)  # 30 tokens: more than was known before
    with pytest.raises(openai.RateLimitError, match="tokens per minute: limit 25, used 30"):
        scene.openai.chat.completions.create(**CHAT)
    scene.limited.now_s += 121
    scene.openai.chat.completions.create(**{**CHAT, "messages": [{"role": "user", "content": "long " * 100}]})
    with pytest.raises(openai.RateLimitError):
        scene.openai.chat.completions.create(**CHAT)


def test_gateways_that_share_a_folder_count_together_and_a_restart_gives_no_new_minute(scene: Scene) -> None:
    limited, first = scene.limited, scene.gateway
    worker = first.serve(answer)
    scene.limit(requests_per_minute=3)
    scene.openai.chat.completions.create(**CHAT)
    for number in range(2):  # the second one is the first one again, after its end
        folder = first.gateway.key_usages.folder
        with running(wrap=limited.wrap, usages=KeyUsages(folder), routes=[route(variant("v", [worker.url]))]) as other:
            other.gateway._service.limiter.clock = lambda: limited.now_s
            found = other.client.post("/v1/chat/completions", json=CHAT)
            assert (found.status_code, found.headers["x-ratelimit-remaining-requests"]) == (200, str(1 - number))
    with pytest.raises(openai.RateLimitError):
        scene.openai.chat.completions.create(**CHAT)


def test_counting_tokens_and_listing_models_are_free(scene: Scene) -> None:
    scene.gateway.serve(answer)
    scene.limit(requests_per_minute=1)
    for _ in range(3):
        scene.openai.models.list()
        scene.gateway.client.post("/v1/messages/count_tokens", json=CHAT)
    scene.openai.chat.completions.create(**CHAT)
