"""Formatters of a `model.py` around the server's own engine."""

import json
from typing import Any

import pytest

from tests.headrace_handler.djl_models import LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture

BY_DICT = """
    from djl_python.input_parser import input_formatter
    from djl_python.output_formatter import output_formatter

    @input_formatter
    def read(decoded_payload, tokenizer=None):
        if "prompt" not in decoded_payload:
            raise KeyError("prompt")
        return {"inputs": decoded_payload["prompt"].upper(), "parameters": {"max_new_tokens": 4}}

    @output_formatter
    def write(response):
        if hasattr(response, "choices"):
            response.choices[0].message.content = f"<{response.choices[0].message.content}>"
            return response
        return {"text": response["generated_text"]}
"""

BY_REQUEST = """
    import json
    from djl_python import Input
    from djl_python.encode_decode import decode
    from djl_python.input_parser import input_formatter
    from djl_python.output_formatter import TextGenerationOutput, output_formatter
    from djl_python.request_io import RequestOutput, TextInput

    @input_formatter
    def read(input_item: Input, **kwargs):
        payload = decode(input_item, input_item.get_property("Content-Type"))
        return TextInput(input_text=payload.pop("prompt"), parameters=payload)

    @output_formatter
    def write(request_output: RequestOutput) -> str:
        sequence = request_output.sequences[request_output.best_sequence_index]
        token, index, first, last = sequence.get_next_token()
        tail = {"reason": sequence.finish_reason, "of": request_output.input.input_text} if last else {}
        return json.dumps({"text": token.text, "index": index, "first": first, **tail}) + "\\n"
"""


def formatted(contract: Any, part: str, value: Any, **kwargs: Any) -> Any:
    return predict(contract, item({part: json.dumps(value).encode()}, **kwargs), mode="format")


@pytest.mark.parametrize(("code", "kinds"), [(BY_DICT, ["input", "output"]), (BY_REQUEST, ["input", "token"])])
def test_code_without_a_handler_tells_which_formatters_it_has(
    load_model: LoadModel, code: str, kinds: list[str]
) -> None:
    assert predict(load_model(code), item(), mode="describe").json == {"formatters": kinds}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (BY_DICT, {"inputs": "HELLO", "parameters": {"max_new_tokens": 4}}),
        (BY_REQUEST, {"inputs": "hello", "parameters": {"top_k": 1}}),
    ],
)
def test_both_forms_of_input_formatters_get_the_request(
    load_model: LoadModel, code: str, expected: dict[str, Any]
) -> None:
    headers = {"Content-Type": "application/json"}

    reply = formatted(load_model(code), "input", {"prompt": "hello", "top_k": 1}, headers=headers)

    assert (reply.status, reply.json) == (200, expected)


def test_an_output_formatter_may_use_members_as_attributes_or_keys(load_model: LoadModel) -> None:
    contract = load_model(BY_DICT)

    chat = formatted(contract, "output", {"choices": [{"message": {"content": "hi"}}]})
    text = formatted(contract, "output", {"generated_text": "hi"})

    assert chat.json == {"choices": [{"message": {"content": "<hi>"}}]}
    assert text.json == {"text": "hi"}


def test_an_output_formatter_of_a_rolling_batch_gets_one_token_after_the_other(load_model: LoadModel) -> None:
    contract = load_model(BY_REQUEST)

    def step(text: str, request_id: str, **more: Any) -> Any:
        return json.loads(
            formatted(contract, "token", {"token": {"id": 1, "text": text}, **more}, request_id=request_id).json
        )

    first = step("a", "1", input={"inputs": "prompt"})
    other = step("x", "2", input={"inputs": "other"})
    last = step("b", "1", finish_reason="length")

    assert first == {"text": "a", "index": 0, "first": True}
    assert other == {"text": "x", "index": 0, "first": True}
    assert last == {"text": "b", "index": 1, "first": False, "reason": "length", "of": "prompt"}


@pytest.mark.parametrize(
    ("part", "value", "error"),
    [
        ("input", {}, "Custom formatter failed: 'prompt'"),
        ("output", {}, "Custom formatter failed: 'generated_text'"),
        ("token", {}, "Custom formatter failed: model.py formats ['input', 'output'], not 'token'"),
    ],
)
def test_a_formatter_that_fails_is_an_error_of_the_request(
    load_model: LoadModel, part: str, value: Any, error: str
) -> None:
    reply = formatted(load_model(BY_DICT), part, value)

    assert reply.json == {"code": 424, "message": "invoke handler failure", "error": error}


def test_a_prediction_of_code_with_formatters_only_is_refused(load_model: LoadModel) -> None:
    reply = predict(load_model(BY_DICT), item(b"x"))

    assert (reply.status, reply.json["error"]) == (424, "module 'model' has no attribute 'handle'")


def test_a_handler_gets_its_formatters_as_properties(load_model: LoadModel) -> None:
    contract = load_model(
        BY_DICT
        + """
    from djl_python import Output
    def handle(inputs):
        return Output().add(inputs.get_properties()["output_formatter"]({"generated_text": "x"}))
    """
    )

    assert predict(contract, item(b"x")).json == {"text": "x"}
