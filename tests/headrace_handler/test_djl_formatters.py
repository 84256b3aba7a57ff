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


ECHOES = """
    from djl_python.input_parser import input_formatter

    @input_formatter
    def read(payload):
        return {"seen": sorted(payload), **payload}
"""

WRITES_TOKENS = """
    from djl_python.output_formatter import output_formatter
    from djl_python.request_io import RequestOutput

    @output_formatter
    def write(output: RequestOutput) -> str:
        token, *_ = output.sequences[0].get_next_token()
        request = output.input
        return f"{token.text} {request.input_text} {request.parameters.get('k')} {output.sequences[0].finish_reason}|"
"""

RETURNS_NONE = """
    from djl_python.input_parser import input_formatter
    from djl_python.output_formatter import output_formatter

    @input_formatter
    def read(payload): ...

    @output_formatter
    def write(output): ...
"""

SETS_FORMATTER = """
    from djl_python.input_parser import input_formatter
    from djl_python.request_io import TextInput

    def write(output): ...

    @input_formatter
    def read(payload):
        return TextInput(input_text="x", output_formatter=write)
"""


def token(contract: Any, path: str, index: int, text: str, **more: Any) -> Any:
    return formatted(contract, "token", {"index": index, "token": {"id": 1, "text": text}, **more}, path=path)


def formatted(contract: Any, part: str, value: Any, **kwargs: Any) -> Any:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return predict(contract, item({part: content}, **kwargs), mode="format")


@pytest.mark.parametrize(("code", "kinds"), [(BY_DICT, ["input", "output"]), (BY_REQUEST, ["input", "token"])])
def test_code_without_a_handler_tells_which_formatters_it_has(
    load_model: LoadModel, code: str, kinds: list[str]
) -> None:
    assert predict(load_model(code), item(), mode="describe").json == {"formatters": kinds}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (BY_DICT, {"inputs": "HELLO", "parameters": {"max_new_tokens": 4}}),
        (BY_REQUEST, {"inputs": "hello", "parameters": {"top_k": 1}, "stream": True}),
    ],
)
def test_both_forms_of_input_formatters_get_the_request(
    load_model: LoadModel, code: str, expected: dict[str, Any]
) -> None:
    headers = {"Content-Type": "application/json"}

    reply = formatted(load_model(code), "input", {"prompt": "hello", "top_k": 1, "stream": True}, headers=headers)

    assert (reply.status, reply.json) == (200, expected)


def test_a_formatter_gets_a_body_decoded_by_its_type_and_without_the_adapters(load_model: LoadModel) -> None:
    contract = load_model(ECHOES)

    text = formatted(contract, "input", b"hello", headers={"content-type": "text/plain"})
    adapters = formatted(contract, "input", {"inputs": "x", "adapters": "a"})

    assert text.json == {"seen": ["inputs"], "inputs": ["hello"]}
    assert adapters.json == {"seen": ["inputs"], "inputs": "x", "adapters": "a"}


def test_the_tokenizer_is_loaded_with_its_first_use_and_from_local_files(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python.input_parser import input_formatter

        @input_formatter
        def read(payload, tokenizer):
            return {"inputs": tokenizer.decode([1])} if payload else {"inputs": str(bool(tokenizer))}
        """,
        {"model_id": "no/such-model"},
    )

    assert formatted(contract, "input", {}).json == {"inputs": "True"}
    assert "failed" in formatted(contract, "input", {"x": 1}).json["error"]


def test_an_output_formatter_may_use_members_as_attributes_or_keys(load_model: LoadModel) -> None:
    contract = load_model(BY_DICT)

    chat = formatted(contract, "output", {"choices": [{"message": {"content": "hi"}}]})
    text = formatted(contract, "output", {"generated_text": "hi"})

    assert chat.body == b'{"choices":[{"message":{"content":"<hi>"}}]}\n'
    assert text.body == b'{"text": "hi"}\n'


def test_events_of_a_stream_are_text_with_a_line_end_after_each(load_model: LoadModel) -> None:
    contract = load_model(
        """
        import json
        from djl_python.output_formatter import output_formatter

        @output_formatter
        def write(output):
            if output.strip() == "data: [DONE]":
                return output
            return {"event": json.loads(output[6:])["n"]}
        """
    )

    events = [formatted(contract, "event", event).body for event in (b'data: {"n": 1}\n\n', b"data: [DONE]\n\n")]

    assert events == [b'{"event": 1}\n', b"data: [DONE]\n\n\n"]


def test_an_output_formatter_of_a_rolling_batch_gets_one_token_after_the_other(load_model: LoadModel) -> None:
    contract = load_model(BY_REQUEST)
    for number in ("1", "2"):
        formatted(contract, "input", {"prompt": f"prompt {number}"}, path=number)

    first = json.loads(token(contract, "1", 0, "a").body)
    other = json.loads(token(contract, "2", 0, "x").body)
    last = json.loads(token(contract, "1", 1, "b", finish_reason="length").body)

    assert first == {"text": "a", "index": 0, "first": True}
    assert other == {"text": "x", "index": 0, "first": True}
    assert last == {"text": "b", "index": 1, "first": False, "reason": "length", "of": "prompt 1"}


def test_without_an_input_formatter_the_first_token_comes_with_the_payload(load_model: LoadModel) -> None:
    contract = load_model(WRITES_TOKENS)

    parts = [
        token(contract, "1", 0, "a", input={"inputs": "p", "parameters": {"k": 1}}).body,
        token(contract, "1", 1, "b", finish_reason="eos_token").body,
    ]

    assert parts == [b"a p 1 None|", b"b p 1 eos_token|"]


@pytest.mark.parametrize("indexes", [[1], [0, 2]])
def test_a_token_whose_predecessors_another_process_had_is_refused(load_model: LoadModel, indexes: list[int]) -> None:
    contract = load_model(WRITES_TOKENS)

    replies = [token(contract, "1", index, "a", input={"inputs": "p"}) for index in indexes]

    assert replies[-1].status == 424
    assert "started again in the middle of the response" in replies[-1].json["error"]


@pytest.mark.parametrize(
    ("code", "part", "value", "error"),
    [
        (BY_DICT, "input", {}, "Custom formatter failed: Custom input formatter execution failed: KeyError: 'prompt'"),
        (BY_DICT, "input", b"{", "Input parsing failed: Expecting property name enclosed in double quotes"),
        (BY_DICT, "output", {}, "Custom formatter failed: Custom output formatter execution failed: KeyError: 'gener"),
        (BY_DICT, "token", {}, "Custom formatter failed: model.py formats ['input', 'output'], not 'token'"),
        (
            BY_REQUEST,
            "input",
            {},
            "Input Parsing failed. Ensure that the request payload is valid. Invalid Request Property: 'prompt'",
        ),
        (RETURNS_NONE, "input", {}, "expected a dict or RequestInput"),
        (RETURNS_NONE, "output", {}, "expected a dict, a str or the response"),
        (SETS_FORMATTER, "input", {}, "mark that function with @output_formatter"),
    ],
)
def test_a_formatter_that_fails_is_an_error_of_the_request(
    load_model: LoadModel, code: str, part: str, value: Any, error: str
) -> None:
    reply = formatted(load_model(code), part, value)

    assert reply.status == reply.json["code"] == 424
    assert error in reply.json["error"]


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
