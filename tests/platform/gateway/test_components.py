"""Inference components: how requests name them, and the copies that answer."""

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.gateway.routing import (
    ComponentNeeded,
    NoReplica,
    RoutingQuery,
    UnknownComponent,
    UnknownVariant,
    choose,
)
from headrace.platform.state.routes import AdapterRoute
from tests.waiting import WAIT_S

from .conftest import Running
from .openai_worker import chat
from .routes import asleep, component, route, variant
from .workers import Exchange, Worker

MESSAGES = [{"role": "user", "content": "hi"}]
HOST = variant("AllTraffic")


def two(gateway: Running) -> tuple[object, object]:
    """An endpoint with the components `a` and `b`, one copy each."""
    workers = gateway.worker(chat), gateway.worker(chat)
    gateway.put(
        route(HOST, components=[component(name, [worker.url]) for name, worker in zip("ab", workers, strict=True)])
    )
    return workers


def test_requests_for_an_adapter_reach_the_copies_of_its_base_with_its_name(gateway):
    worker = gateway.worker(chat)
    adapter = component("a", [worker.url], adapter=AdapterRoute(name="a", base="chat"))
    gateway.put(route(HOST, components=[component("chat", [worker.url]), adapter]))
    for name in ("a", "chat"):
        gateway.client.post(
            "/endpoints/ep/invocations",
            content=b"{}",
            headers={"X-Amzn-SageMaker-Inference-Component": name, "X-Amzn-SageMaker-Adapter-Identifier": "forged"},
        )
    identifiers = [asked.headers.get("x-amzn-sagemaker-adapter-identifier") for asked in worker.asked]
    assert identifiers == ["a", None]


def error_of(call, **parameters) -> dict:
    with pytest.raises(ClientError) as caught:
        call(EndpointName="ep", Body=b"{}", **parameters)
    return caught.value.response["Error"]


def test_the_header_chooses_the_component(gateway):
    a, b = two(gateway)
    answer = gateway.boto.invoke_endpoint(EndpointName="ep", InferenceComponentName="b", Body=b'{"model": "x"}')
    answer["Body"].read()
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert (len(a.asked), len(b.asked)) == (0, 1)
    stream = gateway.boto.invoke_endpoint_with_response_stream(
        EndpointName="ep", InferenceComponentName="a", Body=b'{"stream": true}'
    )
    assert len(list(stream["Body"])) == 4
    assert len(a.asked) == 1


def test_a_request_without_a_component_name_is_refused(gateway):
    two(gateway)
    for call in (gateway.boto.invoke_endpoint, gateway.boto.invoke_endpoint_with_response_stream):
        error = error_of(call)
        assert error["Code"] == "ValidationError"
        assert error["Message"].startswith("Inference Component Name header is required for endpoints to which")
    gateway.put(route(HOST))
    assert "header is required" in error_of(gateway.boto.invoke_endpoint)["Message"]


def test_unknown_component_names_are_refused(gateway):
    two(gateway)
    wrong = error_of(gateway.boto.invoke_endpoint, InferenceComponentName="c")
    assert wrong["Message"] == "Inference Component c of account 123456789012 not found."
    wrong = error_of(gateway.boto.invoke_endpoint, InferenceComponentName="a", TargetVariant="other")
    assert wrong["Message"] == "Variant other not found for Request"


def asked_paths(worker: Worker) -> list[str]:
    return [asked.path for asked in worker.asked]


def test_openai_clients_name_a_component_as_the_model_or_in_the_path(gateway):
    import openai

    a, b = two(gateway)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="-", timeout=WAIT_S) as client:
        assert [model.id for model in client.models.list()] == ["a", "b"]
        assert client.chat.completions.create(model="b", messages=MESSAGES).choices[0].message.content == "b"
        with pytest.raises(openai.BadRequestError, match="Inference Component Name header is required"):
            client.chat.completions.create(model="ep", messages=MESSAGES)
    base = f"{gateway.url}/endpoints/ep/inference-components/a/openai/v1"
    with openai.OpenAI(base_url=base, api_key="-", timeout=WAIT_S) as client:
        client.chat.completions.create(model="anything", messages=MESSAGES)
    assert [asked_paths(worker) for worker in (a, b)] == [["/v1/models", "/v1/chat/completions"]] * 2


def test_an_ambiguous_name_means_an_endpoint_with_models_then_a_component_then_its_host(gateway):
    import openai

    plain, hidden, own = gateway.worker(chat), gateway.worker(chat), gateway.worker(chat)
    gateway.put(
        route(HOST, components=[component("same", [hidden.url]), component("ep", [own.url])]),
        route(variant("AllTraffic", [plain.url]), endpoint="same", uid="uid-2"),
    )
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="-", timeout=WAIT_S) as client:
        assert [model.id for model in client.models.list()] == ["same", "ep"]
        assert client.models.retrieve("ep").id == "ep"
        for model in ("same", "ep"):
            client.chat.completions.create(model=model, messages=MESSAGES)
    asked = ["/v1/models", "/v1/chat/completions"]
    assert [asked_paths(worker) for worker in (plain, hidden, own)] == [asked, [], asked]


def test_a_worker_gets_the_token_that_it_requires(gateway):
    worker = gateway.worker()
    gateway.put(route(variant("AllTraffic", [worker.url], token="secret")))
    headers = {"Authorization": "Bearer the-clients-own"}
    assert gateway.client.post("/endpoints/ep/invocations", content=b"x", headers=headers).content == b"x"
    assert worker.asked[0].headers["authorization"] == "Bearer secret"
    assert "secret" not in gateway.log.getvalue()


def test_requests_with_the_same_prefix_go_to_the_same_copy_of_a_component():
    urls = [f"http://w{number}" for number in range(5)]
    of = route(HOST, components=[component("a", urls, strategy="PREFIX_AWARE")])
    chosen = {choose(of, RoutingQuery(component="a", prefix=b"p"), {}, lambda: 0.0).replica.worker for _ in range(5)}
    assert len(chosen) == 1
    kept = next(iter(chosen))
    session = choose(of, RoutingQuery(component="a", worker=kept, affinity=b"s"), {}, lambda: 0.0)
    assert session.replica.worker == kept
    with pytest.raises(NoReplica):
        choose(of, RoutingQuery(component="a", worker="http://elsewhere", affinity=b"s"), {}, lambda: 0.0)


def test_a_session_stays_with_the_copy_that_opened_it(gateway):
    async def container(exchange: Exchange) -> None:
        opened = {}
        if exchange.asked.headers.get("x-amzn-sagemaker-session-id") == "NEW_SESSION":
            opened = {"x-amzn-sagemaker-session-id": f"{len(exchange.worker.asked)}-of-{exchange.worker.url[-4:]}"}
        exchange.whole(exchange.worker.url.encode(), **opened)

    copies = [gateway.worker(container) for _ in range(3)]
    gateway.put(route(HOST, components=[component("a", [copy.url for copy in copies])]))

    def ask(session: str) -> tuple[str, str | None]:
        answer = gateway.boto.invoke_endpoint(
            EndpointName="ep", InferenceComponentName="a", Body=b"{}", SessionId=session
        )
        return answer["Body"].read().decode(), answer.get("NewSessionId")

    opened = [ask("NEW_SESSION") for _ in range(12)]
    assert len({url for url, _ in opened}) > 1, "they are spread"
    for _ in range(3):
        for url, session in opened:
            assert ask(session) == (url, None)


@given(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 5), st.floats(0, 1, exclude_max=True))
def test_only_the_copies_of_a_component_answer_for_it(copies, asked, number):
    components = [
        component(f"c{index}", [f"http://c{index}-{copy}" for copy in range(count)])
        for index, count in enumerate(copies)
    ]
    of = route(HOST, components=components)
    ask = RoutingQuery(component=f"c{asked}")
    if asked >= len(copies):
        with pytest.raises(UnknownComponent):
            choose(of, ask, {}, lambda: number)
    elif copies[asked] == 0:
        with pytest.raises(NoReplica) as caught:
            choose(of, ask, {}, lambda: number)
        assert caught.value.asleep == components[asked].route
    else:
        assert choose(of, ask, {}, lambda: number).replica.worker.startswith(f"http://c{asked}-")
    with pytest.raises(ComponentNeeded):
        choose(of, RoutingQuery(), {}, lambda: number)


def test_a_request_may_wait_for_a_variant_scaled_to_zero():
    with pytest.raises(NoReplica) as caught:
        choose(route(asleep("a", weight=0), asleep("b")), RoutingQuery(), {}, lambda: 0.0)
    assert caught.value.asleep is not None
    assert caught.value.asleep.name == "b"
    with pytest.raises(NoReplica) as caught:
        choose(route(asleep("a", weight=0)), RoutingQuery(), {}, lambda: 0.0)
    assert caught.value.asleep is None
    with pytest.raises(UnknownVariant):
        choose(route(asleep("a")), RoutingQuery(target_variant="b"), {}, lambda: 0.0)
