"""The contract of SageMaker's toolkits: which functions are called with what, and how their results are answered."""

import sys
from pathlib import Path

import pytest

from headrace_handler.contract import Call
from tests.headrace_handler.sagemaker_models import load_program
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import call, make_item

pytestmark = pytest.mark.usefixtures("sagemaker_imports")

ECHO = """
def model_fn(folder):
    return {"folder": folder}

def input_fn(data, content_type):
    return type(data).__name__, data if isinstance(data, str) else bytes(data).decode(), content_type

def predict_fn(data, model):
    return [*data, model["folder"]]

def output_fn(prediction, accept):
    import json
    return json.dumps([*prediction, accept])
"""


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/json", "str"),
        ("text/csv", "str"),
        ("application/json; charset=utf-8", "str"),
        ("application/octet-stream", "bytearray"),
    ],
)
def test_the_functions_get_text_for_json_and_csv_only_and_headers_as_they_were_sent(
    tmp_path: Path, content_type: str, kind: str
) -> None:
    contract = load_program(tmp_path, ECHO)

    (reply,) = call(contract, b"1,2", content_type=content_type, headers=[("accept", "text/plain")])

    assert reply.json == [kind, "1,2", content_type, str(tmp_path), "text/plain"]
    assert (reply.status, reply.header("Content-Type")) == (200, "text/plain")


@pytest.mark.parametrize("headers", [[], [("Accept", "*/*")]])
def test_without_an_accept_header_the_default_of_the_endpoint_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, str]]
) -> None:
    contract = load_program(tmp_path, ECHO)

    assert call(contract, b"", headers=headers)[0].header("Content-Type") == "application/json"
    monkeypatch.setenv("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "text/csv")
    assert call(contract, b"", headers=headers)[0].header("Content-Type") == "text/csv"


def test_a_function_with_one_parameter_more_gets_the_context_whatever_the_names(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path,
        """
        def model_fn(a, b=None):
            return b.system_properties["model_dir"] == a

        def transform_fn(a, b, c, d, context=None):
            context.set_response_header(0, "X-Model", str(a))
            context.set_response_status(code=202, phrase="Taken")
            return context.get_request_header(0, "X-Own") + b, "text/plain"
        """,
    )

    (reply,) = call(contract, b'"x"', content_type="application/json", headers=[("X-Own", "y")])

    assert (reply.status, reply.phrase, reply.body) == (202, "Taken", b'y"x"')
    assert reply.headers == [("Content-Type", "text/plain"), ("X-Model", "True")]


def test_the_model_is_loaded_once_between_its_preparation_and_its_warm_up(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path,
        """
        calls = []

        def pre_model_fn(model_dir): calls.append("pre")
        def model_fn(model_dir): calls.append("model"); return "m"
        def model_warmup_fn(model_dir, model): calls.append("warm-up " + model)
        def transform_fn(model, data, content_type, accept): return calls
        """,
    )

    replies = call(contract, b"", b"")

    assert [reply.json for reply in replies] == [["pre", "model", "warm-up m"]] * 2


def test_each_request_of_a_batch_has_its_own_headers_and_its_own_failure(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path,
        """
        def model_fn(model_dir): return None
        def transform_fn(model, data, content_type, accept):
            return 1 // int(data), content_type
        """,
    )
    made = [
        make_item(body, content_type=content_type)
        for body, content_type in ((b"1", "text/csv"), (b"0", "text/csv"), (b"1", "application/json"))
    ]

    contract.call(Call(items=[item for item, _ in made]))

    assert [reply.status for _, reply in made] == [200, 500, 200]
    assert [reply.header("content-type") for _, reply in made] == ["text/csv", None, "application/json"]


@pytest.mark.parametrize(
    ("raised", "status", "phrase", "text"),
    [
        ("ValueError('bad')", 500, "bad", "bad\nTraceback (most recent call last):\n"),
        ("ValueError()", 500, "Invalid Request", "Invalid Request\nTraceback"),
        ("errors.BaseInferenceToolkitError(418, 'body', 'a\\nb')", 418, "a b", "body\nTraceback"),
        ("errors.GenericInferenceToolkitError(429, 'slow down')", 429, "slow down", "slow down\nTraceback"),
    ],
)
def test_an_error_of_the_users_code_is_answered_with_its_status_and_traceback(
    tmp_path: Path, raised: str, status: int, phrase: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    contract = load_program(
        tmp_path,
        f"""
        from sagemaker_inference import errors
        def model_fn(model_dir): return None
        def predict_fn(data, model): raise {raised}
        """,
    )

    (reply,) = call(contract, b"[1]", content_type="application/json")

    assert (reply.status, reply.phrase) == (status, phrase)
    assert reply.body.decode().startswith(text)
    assert "predict_fn" in reply.body.decode()
    assert "Traceback" in caplog.text


def test_the_traceback_stays_in_the_log_if_the_endpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ERROR_TRACEBACK", "false")
    contract = load_program(tmp_path, "def model_fn(d): return 1\ndef predict_fn(data, model): raise ValueError('bad')")

    (reply,) = call(contract, b"[1]", content_type="application/json")

    assert reply.body == b"bad\n"


def test_an_unknown_content_type_is_answered_with_the_toolkits_text(tmp_path: Path) -> None:
    contract = load_program(tmp_path, "def model_fn(d): return 1\ndef predict_fn(data, model): return data")

    (reply,) = call(contract, b"x", content_type="application/pdf")

    assert reply.status == 500
    assert reply.body.decode().startswith(
        "Content type application/pdf is not supported by this framework.\n\n"
        "Please implement input_fn to to deserialize the request data or an output_fn to\n"
        "serialize the response. For more information, see the SageMaker Python SDK README.\nTraceback"
    )


@pytest.mark.parametrize(
    ("accept", "body", "content_type"),
    [
        ("application/json", b"[[1, 2], [3, 4]]", "application/json"),
        ("text/csv", b"1,2\n3,4\n", "text/csv"),
        ("text/html, text/csv", b"1,2\n3,4\n", "text/csv"),
        ("text/csv;q=0.5", b"1,2\n3,4\n", "text/csv"),
        ("text/html, */*", b"[[1, 2], [3, 4]]", "application/json"),
    ],
)
def test_the_default_functions_choose_the_first_type_that_they_can_write(
    tmp_path: Path, accept: str, body: bytes, content_type: str
) -> None:
    contract = load_program(tmp_path, "def model_fn(d): return 1\ndef predict_fn(data, model): return data")

    (reply,) = call(contract, b"1,2\n3,4\n", content_type="text/csv", headers=[("Accept", accept)])

    assert (reply.status, reply.body, reply.header("Content-Type")) == (200, body, content_type)


def stream(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"closed = []\ndef model_fn(d): return 1\ndef transform_fn(model, data, content_type, accept):\n{body}"


def test_a_generator_is_streamed_one_part_for_each_piece(tmp_path: Path) -> None:
    contract = load_program(tmp_path, stream("yield 'a'", "yield b'b'", "yield {'c': 1}"))

    (reply,) = call(contract, b"")

    assert reply.chunks == [b"a", b"b", b'{\n  "c": 1\n}']
    assert reply.has_ended


def test_a_stream_that_fails_before_its_first_part_has_the_status_of_the_failure(tmp_path: Path) -> None:
    (reply,) = call(load_program(tmp_path, stream("raise ValueError('early')", "yield 1")), b"")

    assert (reply.status, reply.aborted) == (500, None)
    assert reply.body.startswith(b"early\n")


def test_a_stream_that_fails_later_is_broken_off(tmp_path: Path) -> None:
    (reply,) = call(load_program(tmp_path, stream("yield 'a'", "raise ValueError('late')")), b"")

    assert (reply.status, reply.chunks, reply.aborted) == (200, [b"a"], "ValueError: late")


def test_a_stream_whose_client_has_gone_is_closed(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path, stream("try:", "    yield 'a'", "    yield 'b'", "finally:", "    closed.append(1)")
    )
    item, reply = make_item(b"")
    reply.is_cancelled = True

    contract.call(Call(items=[item]))

    assert reply.chunks == []
    assert sys.modules["inference"].closed == [1]


def test_what_is_neither_a_body_nor_json_is_refused_as_by_the_model_server(tmp_path: Path) -> None:
    contract = load_program(tmp_path, "def model_fn(d): return 1\ndef transform_fn(a, b, c, d): return object()")

    (reply,) = call(contract, b"")

    assert reply.status == 503
    assert reply.body == (
        b'{\n  "code": 503,\n  "type": "InternalServerException",\n'
        b'  "message": "Unsupported model output data type."\n}\n'
    )


def test_batch_transform_gets_no_parameters_from_images_that_have_none(tmp_path: Path) -> None:
    contract = load_program(tmp_path, ECHO)

    (reply,) = call(contract, b"", path="/execution-parameters")

    assert (reply.status, reply.json["type"]) == (404, "ResourceNotFoundException")


def test_a_mode_of_another_contract_is_refused(tmp_path: Path) -> None:
    (reply,) = call(load_program(tmp_path, ECHO), b"", mode="explain")

    assert (reply.status, reply.body) == (
        501, b"The mode explain is not part of SageMaker's inference.py; expected predict.\n"
    )  # fmt: skip
