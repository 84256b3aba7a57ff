"""`/invocations` in the dialects of the settings, and by what the body says it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.server.app import create_app
from headrace.serving.server.sagemaker import accepted_eula, read_attributes
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings, setting_rule
from headrace.serving.wire.registry import DIALECT_NAMES
from headrace.testing.echo import EchoScript

from .conftest import serving

ASK = {"inputs": "one two three", "parameters": {"max_new_tokens": 8}}


def test_the_settings_know_the_dialects_that_there_are():
    assert set(setting_rule("dialect").choices) == {"auto", *DIALECT_NAMES}


@pytest.mark.parametrize("version", ["0.25", "0.26", "0.27", "17"])
def test_lmi_answers_with_one_object(version):
    with serving(dialect=f"lmi-{version}") as echo:
        response = echo.post("/invocations", ASK)
        assert response.status_code == 200, response.text
        assert response.json()["generated_text"] == "one two three"
        # The log is of the whole process: a server of another test may write to it too.
        echo.until(lambda: any(record["dialect"] == f"lmi-{version}" for record in echo.records(0)), "its request line")


def test_lmi_0_25_streams_the_fragments_of_one_object():
    with serving(dialect="lmi-0.25") as echo:
        text = echo.post("/invocations", {**ASK, "stream": True}).text
    assert text.startswith('{"generated_text": "')
    assert json.loads(text)["generated_text"] == "one two three"


@pytest.mark.parametrize(("version", "name"), [("0.26", "log_prob"), ("0.27", "log_prob"), ("17", "logprob")])
def test_later_lmi_streams_lines_with_the_logprob_name_of_its_time(version, name):
    with serving(dialect=f"lmi-{version}", output_formatter="jsonlines") as echo:
        response = echo.post("/invocations", {**ASK, "stream": True})
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert response.headers["content-type"] == "application/jsonlines"
    assert "".join(line["token"].get("text", "") for line in lines[:3]) == "one two three"
    assert name in lines[0]["token"]
    assert lines[-1]["generated_text"] == "one two three"


def test_lmi_settings_choose_lmi_and_its_errors():
    settings, _ = load_settings({"model": "echo"}, {"OPTION_ROLLING_BATCH": "vllm"})
    with serving(dialect=settings.dialect) as echo:
        echo.backend.script = EchoScript(fail_after_tokens=0)
        failed = echo.post("/invocations", ASK)
    assert failed.status_code == 424
    assert failed.json()["code"] == 424


@pytest.mark.parametrize("dialect", ["tgi-3", "lmi-17", "openai"])
def test_a_body_says_by_its_fields_that_it_is_openais(dialect):
    with serving(dialect=dialect) as echo:
        chat = echo.post("/invocations", {"messages": [{"role": "user", "content": "a b"}]})
        completion = echo.post("/invocations", {"prompt": "a b"})
    assert chat.json()["choices"][0]["message"]["content"] == "a b"
    assert completion.json()["choices"][0]["text"] == "a b"


def test_tgi_compat_makes_lmi_answer_as_tgi():
    with serving(dialect="lmi-17", tgi_compat=True) as echo:
        text = echo.post("/invocations", {**ASK, "stream": True}).text
    assert text.startswith("data:")


def test_lmis_options_with_another_dialect_stop_the_start():
    with pytest.raises(SettingsError, match="belong to the lmi dialects"):
        create_app(ServerSettings(model="echo", dialect="tgi-3", output_formatter="sse"))


def test_torchserve_takes_text_whatever_its_content_type():
    with serving(dialect="torchserve") as echo:
        response = echo.client.post(
            "/invocations", content=b"one two three", headers={"Content-Type": "application/json"}
        )
        (record,) = echo.records(1)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == "one two threeone two three\n"
    assert record["dialect"] == "torchserve"


def test_torchserves_answers_are_as_long_as_the_settings_say():
    with serving(dialect="torchserve", default_max_new_tokens=2) as echo:
        assert echo.client.post("/invocations", content=b"one two three").text == "one two threeone two\n"
        failed = echo.client.post("/invocations", content=b"")
    assert failed.status_code == 400
    assert failed.json()["type"] == "BadRequestException"


SHORT = {"inputs": "one two", "parameters": {"max_new_tokens": 4}}
LLAMA = "meta-llama/Llama-2-13b-chat-hf"
DECLINED, ACCEPTED, SILENT = "accept_eula=false", "accept_eula=true", None


@pytest.mark.parametrize(
    ("check", "model", "refused"),
    [
        ("ignore", LLAMA, set()),
        ("gated", LLAMA, {DECLINED}),
        ("gated", "smollm2", set()),
        ("required", "smollm2", {DECLINED, SILENT}),
    ],
)
def test_a_declined_licence_is_a_424_in_jumpstarts_form_where_it_is_asked_for(check, model, refused):
    with serving(model=model, eula_check=check) as echo:
        for attributes in (DECLINED, ACCEPTED, SILENT):
            headers = {} if attributes is None else {"X-Amzn-SageMaker-Custom-Attributes": attributes}
            response = echo.post("/invocations", SHORT, headers=headers)
            assert response.status_code == (424 if attributes in refused else 200), response.text
            if attributes in refused:
                answer = response.json()
                assert (answer["code"], answer["message"]) == (424, "prediction failure")
                assert answer["error"].startswith("Need to pass custom_attributes='accept_eula=true' as part of header")
        assert echo.post("/generate", SHORT).status_code == 200


@pytest.mark.parametrize(
    ("attributes", "accepted"),
    [
        ("", None),
        ("c000b4f9", None),
        ("accept_eula=true", True),
        ("accept_eula=True", True),
        ("trace=1, accept_eula=true", True),
        ("trace=1;accept_eula=false", False),
        ("accept_eula", False),
        ("accept_eula=", False),
        ("not_accept_eula=true", None),
    ],
)
def test_attributes_are_read_in_their_usual_spellings(attributes, accepted):
    assert accepted_eula(read_attributes(attributes)) is accepted


@given(st.text())
def test_no_attributes_break_it(attributes):
    assert accepted_eula(read_attributes(attributes)) in (None, True, False)


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
