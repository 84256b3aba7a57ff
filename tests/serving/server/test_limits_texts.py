"""Values over a limit are refused with the limit in force, and the docs name the setting that changes it."""

from dataclasses import fields
from pathlib import Path

import pytest

from headrace.serving.settings.server_settings import ServerSettings

from .conftest import serving

DOCS = (Path(__file__).parent.parent.parent.parent / "docs" / "limits.md").read_text()
CHAT = {"messages": [{"role": "user", "content": "a"}]}
LIMITS = {"max_best_of": 3, "max_stop_sequences": 5, "max_top_n_tokens": 7}
STOPS = list("abcdef")


@pytest.fixture(scope="module")
def limited():
    with serving(**LIMITS) as echo:
        yield echo


@pytest.mark.parametrize(
    ("path", "body", "setting"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 4}, "max_best_of"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 8}, "max_top_n_tokens"),
        ("/v1/chat/completions", {**CHAT, "stop": STOPS}, "max_stop_sequences"),
        ("/v1/completions", {"prompt": "a", "best_of": 4}, "max_best_of"),
        ("/v1/completions", {"prompt": "a", "logprobs": 8}, "max_top_n_tokens"),
        ("/generate", {"inputs": "a", "parameters": {"best_of": 4}}, "max_best_of"),
        ("/generate", {"inputs": "a", "parameters": {"top_n_tokens": 8}}, "max_top_n_tokens"),
        ("/generate", {"inputs": "a", "parameters": {"stop": STOPS}}, "max_stop_sequences"),
    ],
)
def test_a_refusal_has_the_number_that_is_in_force(limited, path, body, setting):
    answer = limited.post(path, body)
    assert answer.status_code in {400, 422}
    assert str(LIMITS[setting]) in answer.text
    assert f"`{setting}`" in DOCS


@pytest.mark.parametrize("name", LIMITS)
def test_the_docs_have_the_default(name):
    default = next(field.default for field in fields(ServerSettings) if field.name == name)
    assert f"| `{name}` | {default} |" in DOCS
