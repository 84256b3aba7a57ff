"""The image `sagemaker-scikit-learn`, with real models."""

import io
from pathlib import Path

import numpy as np
import pytest

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.sagemaker_models import (
    CSV,
    JSON,
    NPY,
    SERVER_ERROR,
    invoke,
    load_program,
    npy,
)
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import call

pytestmark = pytest.mark.usefixtures("sagemaker_imports")


class TestScikitLearn:
    """`sagemaker-scikit-learn`: `model_fn` loads a pickle, all else is the image's."""

    CODE = """
        import os, joblib
        def model_fn(model_dir): return joblib.load(os.path.join(model_dir, "model.joblib"))
    """

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        joblib = pytest.importorskip("joblib")
        linear = pytest.importorskip("sklearn.linear_model")
        model = linear.LinearRegression().fit([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.0, 1.0, 2.0])
        joblib.dump(model, tmp_path / "model.joblib")
        return tmp_path

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            (JSON, b"[[1, 0], [0, 1]]"),
            (CSV, b"1,0\n0,1\n"),
            ("text/csv; charset=utf-8", b"1,0\n0,1\n"),
            (NPY, npy([[1.0, 0.0], [0.0, 1.0]])),
        ],
    )
    def test_rows_of_each_type_are_predicted(self, folder: Path, content_type: str, body: bytes) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), body, content_type)

        assert (reply.status, reply.header("Content-Type")) == (200, JSON)
        np.testing.assert_allclose(reply.json, [1.0, 2.0], atol=1e-6)

    def test_predictions_are_written_in_each_type(self, folder: Path) -> None:
        contract = load_program(folder, self.CODE, "sklearn")

        text, binary = (invoke(contract, b"1,0\n0,1", CSV, accept) for accept in (CSV, NPY))

        assert text.header("Content-Type") == "text/csv; charset=utf-8"
        np.testing.assert_allclose([float(line) for line in text.body.splitlines()], [1.0, 2.0], atol=1e-6)
        assert binary.header("Content-Type") == NPY
        np.testing.assert_allclose(np.load(io.BytesIO(binary.body)), [1.0, 2.0], atol=1e-6)

    def test_a_single_row_of_csv_is_a_row(self, folder: Path) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"0,1\n", CSV)

        np.testing.assert_allclose(reply.json, [2.0], atol=1e-6)

    @pytest.mark.parametrize(("content_type", "accept", "status"), [("image/png", JSON, 415), (CSV, "image/png", 406)])
    def test_a_type_that_is_not_supported_is_told_as_json(
        self, folder: Path, content_type: str, accept: str, status: int
    ) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"1,0", content_type, accept)

        assert (reply.status, reply.header("Content-Type")) == (status, JSON)
        assert list(reply.json) == ["error", "error-message", "stack-trace"]
        assert reply.json["error"] == "UnsupportedFormatError"
        assert reply.json["error-message"].startswith("Content type image/png is not supported by this framework.")

    def test_any_other_failure_is_the_page_of_the_web_framework(self, folder: Path) -> None:
        reply = invoke(load_program(folder, self.CODE, "sklearn"), b"1,2,3", CSV)  # one column too many

        assert (reply.status, reply.header("Content-Type")) == (500, "text/html; charset=utf-8")
        assert reply.body == SERVER_ERROR

    @pytest.mark.parametrize(
        ("returned", "status", "content_type", "body"),
        [
            ("'text'", 200, "text/html; charset=utf-8", b"text"),
            ("('a,b', 'text/csv')", 200, "text/csv; charset=utf-8", b"a,b"),
            ("{'b': 1, 'a': [2]}", 200, JSON, b'{"a":[2],"b":1}\n'),
            ("worker.Response('x', status=418, mimetype='text/x-own')", 418, "text/x-own; charset=utf-8", b"x"),
            ("(piece for piece in ['x', 'y'])", 200, "text/plain", b"xy"),
            ("object()", 500, "text/html; charset=utf-8", SERVER_ERROR),
        ],
    )
    def test_what_a_function_returns_is_answered_as_the_web_framework_does(
        self, tmp_path: Path, returned: str, status: int, content_type: str, body: bytes
    ) -> None:
        code = f"""
            from sagemaker_containers.beta.framework import worker
            def model_fn(model_dir): return None
            def transform_fn(model, data, content_type, accept): return {returned}
        """

        reply = invoke(load_program(tmp_path, code, "sklearn"), b"", JSON, "text/plain")

        assert (reply.status, reply.header("Content-Type"), reply.body) == (status, content_type, body)

    def test_a_parameter_with_a_default_is_no_context(self, tmp_path: Path) -> None:
        code = """
            def model_fn(model_dir): return None
            def predict_fn(data, model, threshold=0.5): return [threshold]
        """

        assert invoke(load_program(tmp_path, code, "sklearn"), b"[1]", JSON).json == [0.5]

    def test_a_request_without_a_type_is_json(self, tmp_path: Path) -> None:
        contract = load_program(
            tmp_path, "def model_fn(d): return 1\ndef predict_fn(data, model): return data", "sklearn"
        )

        assert call(contract, b"[1.5]")[0].json == [1.5]

    def test_batch_transform_gets_the_parameters_of_the_program(self, tmp_path: Path) -> None:
        code = "def model_fn(d): return 1\ndef execution_parameters_fn(): return {'MaxPayloadInMB': 6}"

        (reply,) = call(load_program(tmp_path, code, "sklearn"), b"", path="/execution-parameters")

        assert (reply.status, reply.json) == (200, {"MaxPayloadInMB": 6})

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("x = 1", "Please provide a model_fn implementation"),
            (
                "def model_fn(d): pass\ndef transform_fn(a, b, c, d): pass\ndef input_fn(a, b): pass",
                "Cannot use transform_fn implementation with input_fn, predict_fn, and/or output_fn",
            ),
            ("def model_fn(d): pass\ndef predict_fn(a): pass", "too many positional arguments"),
        ],
    )
    def test_code_that_cannot_serve_fails_before_the_first_request(
        self, tmp_path: Path, code: str, message: str
    ) -> None:
        with pytest.raises(LoadFailed, match=message):
            load_program(tmp_path, code, "sklearn")
