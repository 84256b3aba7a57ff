"""SageMaker's toolkits while they load a model: where its program lies, what makes the load fail, what it finds."""

import logging
import sys
from pathlib import Path

import pytest

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.sagemaker_models import load, load_program, write_program
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import call

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

    with pytest.raises(LoadFailed, match="this server serves one model"):
        load_program(tmp_path, ECHO)


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="The profile is mxnet; expected one of generic"):
        load_program(tmp_path, ECHO, "mxnet")


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
