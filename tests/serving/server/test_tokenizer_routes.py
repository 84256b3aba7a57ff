"""vLLM's routes around the tokenizer, as lm-eval and other clients call them."""

import jinja2
import pytest

from headrace.testing.echo import EchoBackend

from .conftest import serving

HELLO = [{"role": "user", "content": "one"}]


def test_a_text_is_tokenized_and_comes_back(echo):
    asked = {"model": "echo", "prompt": "one two", "add_special_tokens": False, "return_token_strs": True}
    found = echo.post("/tokenize", asked).json()
    text = echo.post("/detokenize", {"model": "echo", "tokens": found["tokens"]}).json()
    assert (found["count"], found["max_model_len"], found["token_strs"]) == (2, 512, ["one", " two"])
    assert text == {"prompt": "one two"}


def test_special_tokens_are_added_to_a_text_unless_they_are_turned_off(echo):
    counts = [
        echo.post("/tokenize", {"prompt": "one two", **more}).json()["count"]
        for more in ({}, {"add_special_tokens": True}, {"add_special_tokens": False})
    ]
    assert counts == [3, 3, 2]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 3),
        ({"add_generation_prompt": False}, 2),
        ({"add_special_tokens": True}, 4),
        ({"messages": [*HELLO, {"role": "assistant", "content": "two"}], "continue_final_message": True}, 4),
    ],
)
def test_a_chat_is_tokenized_through_its_template(echo, more, count):
    found = echo.post("/tokenize", {"messages": HELLO, **more}).json()
    assert (found["count"], len(found["tokens"]), found["token_strs"]) == (count, count, None)


def test_a_body_with_inputs_gets_the_answer_of_tgi(echo):
    spans = echo.post("/tokenize", {"inputs": "one two", "prompt": "ignored"}).json()
    assert [span["text"] for span in spans] == ["one", " two"]
    assert set(spans[0]) == {"id", "text", "start", "stop"}


def test_the_chat_template_that_is_shown_renders_what_is_tokenized(echo):
    info = echo.client.get("/tokenizer_info").json()
    text = jinja2.Template(info["chat_template"]).render(messages=HELLO, add_generation_prompt=True)
    shown = echo.post("/chat_tokenize", {"messages": HELLO}).json()
    assert (info["eos_token"], info["pad_token"]) == ("</s>", None)
    assert text == shown["templated_text"]


def test_the_version_is_shown(echo):
    assert echo.client.get("/version").json()["version"][0].isdigit()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", {"messages": HELLO, "chat_template": "{{ x }}"}, "'chat_template' is not supported"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"model": "other", "prompt": "one"}, "does not exist"),
        ("/detokenize", {"tokens": [49_999]}, "tokens is 49999"),
        ("/detokenize", {"tokens": ["one"]}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"model": "other", "tokens": []}, "does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(path, body, said):
    with serving(EchoBackend(), enable_lora=True) as echo:
        answer = echo.post(path, body)
    error = answer.json()["error"]
    assert 400 <= answer.status_code < 500
    assert said in (error if path == "/tokenize" else error["message"])
