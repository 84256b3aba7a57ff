import json

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.wire.lmi.dialect import Lmi
from headrace.serving.wire.registry import DIALECT_NAMES, get_dialect, select_dialect
from headrace.serving.wire.tgi.dialect import Tgi
from tests.serving.wire.samples import CONTEXT, answer, streamed, whole


def test_every_name_gives_a_dialect():
    lmi = {"lmi-17", "lmi-0.27", "lmi-0.26", "lmi-0.25"}
    assert set(DIALECT_NAMES) == {"tgi-3", "tgi-1.0", *lmi, "openai", "torchserve", "tei", "hf-toolkit"}
    for name in DIALECT_NAMES:
        assert get_dialect(name).name.startswith(name)


def test_an_unknown_name_stops_the_start():
    with pytest.raises(SettingsError, match="Dialect 'tgi-2' is unknown"):
        get_dialect("tgi-2")


def test_formatters_belong_to_lmi():
    assert get_dialect("lmi-0.27", output_formatter="sse") == Lmi(version="0.27", formatter="sse")
    assert get_dialect("lmi-0.27", output_formatter="jsonlines_chat") == Lmi(version="0.27", formatter="jsonlines")
    assert get_dialect("lmi-17", tgi_compat=True) == Lmi(version="17", tgi_compat=True)
    with pytest.raises(SettingsError, match="output_formatter '3p' is not supported"):
        get_dialect("lmi-17", output_formatter="3p")
    with pytest.raises(SettingsError, match="belong to the lmi dialects"):
        get_dialect("tgi-3", output_formatter="json")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"inputs": "a", "parameters": {}}', "tgi-3"),
        (b'{"messages": [], "model": "x"}', "openai-chat"),
        (b'{"prompt": "a"}', "openai-completions"),
        (b'{"inputs": "a", "messages": []}', "tgi-3"),
        (b"{}", "tgi-3"),
        (b"not json", "tgi-3"),
        (b"\xff", "tgi-3"),
    ],
)
def test_the_fields_of_a_body_select_its_dialect(body, name):
    assert select_dialect(body, Tgi(version="3")).name == name


@pytest.mark.parametrize(
    ("configured", "content_type"),
    [
        (Tgi(), "text/event-stream"),
        (Lmi(version="0.27"), "application/jsonlines"),
        (Lmi(version="0.27", formatter="sse"), "text/event-stream"),
        (Lmi(version="17", tgi_compat=True), "text/event-stream"),
    ],
)
def test_a_chat_on_invocations_streams_as_the_container_does(configured, content_type):
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    parsed = select_dialect(body, configured).parse(body, CONTEXT)
    assert parsed.reply.content_type == content_type
    assert streamed(parsed, answer("a"))


def test_the_openai_dialect_reads_chat_by_itself():
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert json.loads(whole(get_dialect("openai").parse(body, CONTEXT), answer("a")))["object"] == "chat.completion"
