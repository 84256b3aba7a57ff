"""`/invocations` in the dialects of the settings, and by what the body says it is."""

import json

import pytest

from headrace.core.errors import SettingsError
from headrace.server.app import create_app
from headrace.settings.loading import load_settings
from headrace.settings.server_settings import ServerSettings, setting_rule
from headrace.testing.echo import EchoScript
from headrace.wire.registry import DIALECT_NAMES

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
        (record,) = echo.records(1)
    assert record["dialect"] == f"lmi-{version}"


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
