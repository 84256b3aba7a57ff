"""Results and errors of handlers of DJL, and how they are answered."""

import json
from typing import Any

import pytest

from tests.headrace_handler.djl_models import LeavingReply, LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture

ECHO = """
    import sys
    from pathlib import Path
    from djl_python import Input, Output

    def pieces():
        for index in range(5):
            yield f"t-{index}\\n"

    def breaking():
        yield "first"
        raise ValueError("late failure")

    def handle(inputs: Input):
        if inputs.contains_key("exception"):
            raise ValueError(inputs.get_as_string("exception"))
        if inputs.contains_key("typeerror"):
            return "invalid_type"
        if inputs.contains_key("exit"):
            sys.exit()
        if inputs.contains_key("OOM"):
            raise MemoryError
        if inputs.contains_key("nothing"):
            return None
        if inputs.is_empty():
            return Output()
        outputs = Output()
        if inputs.get_property("content-type"):
            outputs.add_property("content-type", inputs.get_property("content-type"))
        if inputs.contains_key("stream"):
            return outputs.add_stream_content(pieces(), None)
        if inputs.contains_key("default-stream"):
            return outputs.add_stream_content(iter(["a", 1]))
        if inputs.contains_key("breaking"):
            return outputs.add_stream_content(breaking(), None)
        if inputs.contains_key("list"):
            return outputs.add_stream_content(["a"], None)
        if inputs.contains_key("finalize"):
            return outputs.add("body").finalize(Path("finalized").write_text, "after")
        for index, each in enumerate(inputs.get_batches()):
            outputs.add(each.get_as_bytes(), key="data", batch_index=index if inputs.is_batch() else None)
        return outputs
"""


def test_an_echo_returns_the_body_and_the_content_type_that_it_sets(load_model: LoadModel) -> None:
    reply = predict(load_model(ECHO), item(b"\x00body", {"Content-Type": "application/x-own"}))

    assert (reply.status, reply.phrase, reply.body) == (200, "OK", b"\x00body")
    assert dict(reply.headers) == {"content-type": "application/x-own"}


def test_no_content_type_is_invented(load_model: LoadModel) -> None:
    assert predict(load_model(ECHO), item(b"body")).headers == []


def test_each_item_of_a_stream_is_a_chunk(load_model: LoadModel) -> None:
    reply = predict(load_model(ECHO), item({"stream": b""}))

    assert reply.chunks == [b"t-0\n", b"t-1\n", b"t-2\n", b"t-3\n", b"t-4\n"]
    assert len(reply.body) == 20


def test_the_default_formatter_wraps_each_item(load_model: LoadModel) -> None:
    reply = predict(load_model(ECHO), item({"default-stream": b""}))

    assert reply.chunks == [b'{"outputs": "a"}\n', b'{"outputs": 1}\n']


def test_an_exception_in_a_stream_is_its_last_chunk(load_model: LoadModel) -> None:
    reply = predict(load_model(ECHO), item({"breaking": b""}))

    assert (reply.status, reply.chunks, reply.aborted) == (200, [b"first", b"late failure"], None)


def test_a_list_is_no_stream_because_it_is_no_iterator(load_model: LoadModel) -> None:
    assert predict(load_model(ECHO), item({"list": b""})).body == b"'list' object is not an iterator"


def test_a_client_that_leaves_closes_the_generator(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        closed = []
        def pieces():
            try:
                while True:
                    yield "piece"
            finally:
                closed.append(True)
        def handle(inputs):
            return None if inputs.is_empty() else Output().add_stream_content(pieces(), None)
        """
    )
    reply = LeavingReply(after=2)

    predict(contract, item(b"x", reply=reply))

    assert reply.chunks == [b"piece", b"piece"]
    assert not reply.is_over
    assert contract._code.module.closed == [True]


@pytest.mark.parametrize(
    ("field", "status", "phrase", "error"),
    [
        ("exception", 424, "invoke handler failure", "why"),
        ("typeerror", 424, "invoke handler failure", "Invalid output type: <class 'str'>"),
        ("OOM", 507, "", None),
        ("nothing", 204, "No content", None),
    ],
)
def test_a_handler_that_returns_no_output_is_answered_with_its_error(
    load_model: LoadModel, field: str, status: int, phrase: str, error: str | None
) -> None:
    reply = predict(load_model(ECHO), item({field: b"why"}))

    assert (reply.status, reply.phrase) == (status, phrase)
    body = {"code": status, "message": phrase, "error": error}
    assert reply.body == (b"" if error is None else json.dumps(body, indent=2, separators=(",", ":")).encode())


def test_an_exit_leaves_the_contract_so_that_the_child_ends(load_model: LoadModel) -> None:
    contract = load_model(ECHO)

    with pytest.raises(SystemExit):
        predict(contract, item({"exit": b""}))


def test_what_is_to_be_finalized_runs_after_the_response(load_model: LoadModel, tmp_path: Any) -> None:
    reply = predict(load_model(ECHO), item({"finalize": b""}))

    assert reply.is_over
    assert (tmp_path / "finalized").read_text() == "after"


def test_an_error_of_the_handler_keeps_its_code_and_body(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else Output().error("no such label", code=400)
        """
    )

    reply = predict(contract, item(b"x"))

    assert reply.status == 400
    assert reply.body == b'{\n  "code":400,\n  "message":"invoke handler failure",\n  "error":"no such label"\n}'
    assert dict(reply.headers) == {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("Output(code='many')", "Invalid output code: 'many'"),
        ("Output(code=99)", "Invalid output code: 99"),
        (r"Output().add_property('x', 'a\r\nSet-Cookie: b')", "Invalid output property: 'x' has a line break"),
    ],
)
def test_an_output_that_is_no_http_response_is_an_error_of_the_handler(
    load_model: LoadModel, code: str, error: str
) -> None:
    contract = load_model(
        f"""
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else {code}
        """
    )

    reply = predict(contract, item(b"x"))

    assert reply.status == 424
    assert json.loads(reply.body)["error"] == error


def test_a_message_becomes_a_phrase_of_one_line(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else Output(code=418, message="a\\r\\nb \u2713")
        """
    )

    assert predict(contract, item(b"x")).phrase == "a b ?"
