"""The contract of SageMaker's toolkits: which functions are called with what, and how their results are answered."""

import logging
import sys
from pathlib import Path

import pytest

from headrace_handler.contract import Call, LoadFailed
from tests.headrace_handler.sagemaker_models import load, load_program, write_program
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

CONFLICT = """
def model_fn(model_dir): return None
def transform_fn(model, data, content_type, accept): return data
def predict_fn(data, model): return data
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


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            CONFLICT,
            (
                "ValueError: Cannot use transform_fn implementation in conjunction with "
                "input_fn, predict_fn, and/or output_fn implementation"
            ),
        ),
        ("def model_fn(a, b, c): return 1", "TypeError: model_fn takes 3 arguments but 1 were given."),
        ("def model_fn(d): return 1\ndef input_fn(x): pass", "TypeError: input_fn takes 1 arguments but 2 were given."),
        ("import nothing_of_the_kind", "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("def model_fn(d): raise OSError('no weights')", "OSError: no weights"),
        (
            "",
            (
                "NotImplementedError: \nPlease provide a model_fn implementation.\n"
                "See documentation for model_fn at https://sagemaker.readthedocs.io/en/stable/\n"
            ),
        ),
    ],
)
def test_code_that_cannot_serve_fails_when_it_is_loaded(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(LoadFailed) as failed:
        load_program(tmp_path, code)

    assert (failed.value.status, failed.value.message) == (500, message)
    assert failed.value.__cause__ is not None  # the child prints its traceback


def test_a_lack_of_memory_is_told_by_its_own_status(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as failed:
        load_program(tmp_path, "def model_fn(d): raise MemoryError('16 GiB')")

    assert (failed.value.status, failed.value.message) == (507, "MemoryError: 16 GiB")


@pytest.mark.parametrize("place", ["code/inference.py", "inference.py", "code/sub/inference.py"])
def test_the_program_and_its_neighbours_are_found_in_code_and_in_the_models_folder(tmp_path: Path, place: str) -> None:
    write_program(
        tmp_path,
        "from neighbour import NAME\ndef model_fn(d): return NAME\ndef transform_fn(m, b, c, a): return m",
        place,
    )
    write_program(tmp_path, "NAME = 'next door'", str(Path(place).parent / "neighbour.py"))

    contract = load(tmp_path, entry=place.removeprefix("code/"))

    assert call(contract, b"")[0].body == b"next door"
    assert "inference" in sys.modules  # its own name, for pickles of its classes


def test_an_absolute_program_is_used_where_it_is(tmp_path: Path) -> None:
    write_program(tmp_path / "submitted", ECHO, "train.py")
    (tmp_path / "model").mkdir()

    contract = load(tmp_path / "model", entry=str(tmp_path / "submitted" / "train.py"))

    assert call(contract, b"")[0].json[3] == str(tmp_path / "model")


def test_a_program_that_is_missing_is_named_with_the_folders_that_were_searched(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as failed:
        load(tmp_path, entry="serve.py")

    assert failed.value.message == (
        f"The program serve.py (SAGEMAKER_PROGRAM) does not exist; expected it in {tmp_path / 'code'} and {tmp_path}."
    )


def test_a_program_with_the_name_of_a_module_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"logging\.py has the name of a module in use"):
        load(tmp_path, entry=write_program(tmp_path, "", "code/logging.py"))
    assert sys.modules["logging"] is logging


def test_multi_model_endpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")

    with pytest.raises(LoadFailed, match="multi-model endpoints are not served"):
        load_program(tmp_path, ECHO)


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="The profile is mxnet; expected one of generic"):
        load_program(tmp_path, ECHO, "mxnet")


def test_batch_transform_gets_no_parameters_from_images_that_have_none(tmp_path: Path) -> None:
    contract = load_program(tmp_path, ECHO)

    (reply,) = call(contract, b"", path="/execution-parameters")

    assert (reply.status, reply.json["type"]) == (404, "ResourceNotFoundException")


def test_a_mode_of_another_contract_is_refused(tmp_path: Path) -> None:
    (reply,) = call(load_program(tmp_path, ECHO), b"", mode="explain")

    assert (reply.status, reply.body) == (
        501, b"The mode explain is not part of SageMaker's inference.py; expected predict.\n"
    )  # fmt: skip


def test_code_of_the_packages_that_public_programs_import_runs_unchanged(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path,
        """
        from sagemaker_containers.beta.framework import (
            content_types, encoders, env, modules, transformer, worker)
        from sagemaker_inference import (
            content_types as types, decoder, default_handler_service, default_inference_handler, encoder, environment,
            errors, transformer as toolkit, utils)
        from sagemaker_containers import entry_point
        from sagemaker_xgboost_container import data_utils, encoder as xgb_encoders
        from sagemaker_huggingface_inference_toolkit import decoder_encoder, handler_service

        def model_fn(model_dir): return environment.Environment().module_name
        def input_fn(data, content_type): return encoders.decode(data, content_type)
        def predict_fn(data, model): return decoder.decode(encoder.encode(data, types.NPY), types.NPY)
        def output_fn(prediction, accept): return encoder.encode(prediction, accept), accept
        """,
    )

    (reply,) = call(contract, b"1,2\n3,4", content_type="text/csv", headers=[("Accept", "application/json")])

    assert reply.body == b"[[1.0, 2.0], [3.0, 4.0]]"


def test_the_packages_and_the_environment_tell_the_folder_of_the_model(tmp_path: Path) -> None:
    contract = load_program(
        tmp_path,
        """
        import os
        from sagemaker_containers.beta.framework import env
        from sagemaker_inference import environment
        def model_fn(model_dir): return [model_dir, os.environ["SM_MODEL_DIR"], env.model_dir, environment.model_dir]
        def transform_fn(model, data, content_type, accept): return model
        """,
    )

    assert call(contract, b"")[0].json == [str(tmp_path)] * 4


def test_what_the_code_measures_is_printed_for_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = load_program(
        tmp_path,
        """
        def model_fn(model_dir): return None
        def transform_fn(model, data, content_type, accept, context):
            context.metrics.add_counter("Words", 3)
            return b""
        """,
    )

    call(contract, b"")

    assert capsys.readouterr().out.startswith("[METRICS]Words.Count:3|#")


def test_the_log_has_the_level_that_the_sdk_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SAGEMAKER_CONTAINER_LOG_LEVEL", "40")
    with caplog.at_level(logging.INFO):  # restores the level
        load_program(tmp_path, ECHO)
        assert logging.getLogger().level == logging.ERROR


def test_xgboost_runs_on_one_thread_as_in_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    code = """
        import os
        threads = os.environ.get("OMP_NUM_THREADS")
        def model_fn(model_dir): return threads
        def transform_fn(model, data, content_type, accept): return model, "text/plain"
    """

    assert call(load_program(tmp_path, code, "xgboost"), b"")[0].body == b"1"
