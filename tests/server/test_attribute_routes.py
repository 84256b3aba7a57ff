"""`route` in the custom attributes of `/invocations`: every route of inference is reached, and no other one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.sagemaker import read_attributes

from .conftest import serving

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}
TGI = {"inputs": "one two", "parameters": {"max_new_tokens": 4}}
HEADER = "X-Amzn-SageMaker-Custom-Attributes"


@pytest.fixture(scope="module")
def echo():
    with serving(allow_runtime_lora_updating=True) as echo:
        yield echo


@pytest.mark.parametrize(
    ("attributes", "body", "key"),
    [
        ("route=/v1/chat/completions", CHAT, "choices"),
        ("route=/v1/completions", {"prompt": "one two", "max_tokens": 4}, "choices"),
        ("foo=bar,route=/v1/completions,baz=1", {"prompt": "one two", "max_tokens": 4}, "choices"),
        ("foo=bar; route=/v1/messages", CHAT, "content"),
        ("route=/v1/responses", {"input": "one two"}, "output"),
        ("route=/generate", TGI, "generated_text"),
        ("route=/tokenize", {"prompt": "one two"}, "tokens"),
        ("route=/api/chat", {**CHAT, "stream": False}, "message"),
        ("route=/invocations", TGI, None),
        ("trace=1", TGI, None),
        ("my_route=/v1/completions", TGI, None),
        ("", TGI, None),
    ],
)
def test_a_request_is_answered_by_the_route_that_its_attributes_name(attributes, body, key, echo):
    answer = echo.post("/invocations", body, headers={HEADER: attributes})
    assert answer.status_code == 200, answer.text
    if key is None:
        assert answer.json()[0]["generated_text"]
    else:
        path = read_attributes(attributes)["route"]
        assert key in answer.json()
        assert answer.json().keys() == echo.post(path, body).json().keys()


def test_a_stream_is_that_of_the_route(echo):
    headers = {HEADER: "route=/v1/chat/completions"}
    answer = echo.post("/invocations", {**CHAT, "stream": True}, headers=headers)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[0])["object"] == "chat.completion.chunk"


def test_the_errors_of_a_route_are_in_its_own_form(echo):
    answer = echo.post("/invocations", {"messages": 1}, headers={HEADER: "route=/v1/chat/completions"})
    assert answer.status_code == 400
    assert answer.json() == echo.post("/v1/chat/completions", {"messages": 1}).json()


@pytest.mark.parametrize(
    "route",
    [
        *(
            "/v1/audio/speech",
            "v1/completions",
            "/",
            "/ping",
            "/metrics",
            "/v1/models",
            "/v1/completions/",
            "//generate",
        ),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/v1/../generate", "/docs", "x" * 500, ""),
    ],
)
def test_a_route_that_is_none_of_inference_is_refused_by_name(route, echo):
    answer = echo.post("/invocations", TGI, headers={HEADER: f"route={route}"})
    assert answer.status_code == 404
    assert f"The custom attribute route is {route[:100]!r}; expected one of " in answer.text.replace("\\'", "'")
    assert "/v1/chat/completions" in answer.text


def test_a_key_is_needed_on_every_route():
    with serving(api_key="k") as echo:
        answer = echo.post("/invocations", CHAT, headers={HEADER: "route=/v1/chat/completions"})
        assert answer.status_code == 401


@given(st.text())
def test_any_attributes_are_read(text):
    assert all("," not in name + value for name, value in read_attributes(text).items())
