"""Stand-ins of SageMaker's packages: their tables of encoders and decoders, byte for byte."""

import contextlib
import datetime as dt
import importlib
import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import STANDINS

pytestmark = pytest.mark.usefixtures("sagemaker_imports")

round_trips = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)


def module(name: str) -> Any:
    return importlib.import_module(name)


TABLES = ("sagemaker_inference.encoder", "sagemaker_containers._encoders")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("value", "content_type", "encoded"),
    [
        ([42, 6, 9], "application/json", "[42, 6, 9]"),
        ([42.0, 6.0, 9.0], "application/json", "[42.0, 6.0, 9.0]"),
        (["42", "6", "9"], "application/json", '["42", "6", "9"]'),
        ({42: {"6": 9.0}}, "application/json", '{"42": {"6": 9.0}}'),
        ([42, 6, 9], "text/csv", "42\n6\n9\n"),
        ([42.0, 6.0, 9.0], "text/csv", "42.0\n6.0\n9.0\n"),
        (["42", "6", "9"], "text/csv", "42\n6\n9\n"),
        ([[1, 2], [3, 4]], "text/csv", "1,2\n3,4\n"),
    ],
)
def test_arrays_are_written_as_the_originals_write_them(name: str, value: Any, content_type: str, encoded: str) -> None:
    encode = module(name).encode

    assert encode(value, content_type) == encoded
    if not isinstance(value, dict):
        assert encode(np.array(value), content_type) == encoded


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sagemaker_inference.encoder", 'a b,c"d\ne,f\n'), ("sagemaker_containers._encoders", 'a b,"c""d"\ne,f\n')],
)
def test_only_the_older_package_quotes_cells(name: str, expected: str) -> None:
    assert module(name).encode(np.array([["a b", 'c"d'], ["e", "f"]]), "text/csv") == expected


@pytest.mark.parametrize("name", TABLES)
@given(array=arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=4)))
@round_trips
def test_npy_and_json_bring_every_array_back(name: str, array: Any) -> None:
    encode = module(name).encode
    decode = module(name.replace("encoder", "decoder") if "inference" in name else name).decode

    np.testing.assert_array_equal(decode(encode(array, "application/x-npy"), "application/x-npy"), array)
    np.testing.assert_array_equal(decode(encode(array, "application/json"), "application/json"), array)


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(array=arrays.arrays(np.float64, st.tuples(st.integers(2, 5), st.integers(2, 5)), elements=numbers))
@round_trips
def test_csv_brings_every_matrix_back(array: Any) -> None:
    encoder, decoder = module("sagemaker_inference.encoder"), module("sagemaker_inference.decoder")
    containers = module("sagemaker_containers.beta.framework").encoders

    np.testing.assert_array_equal(decoder.decode(encoder.encode(array, "text/csv"), "text/csv"), array)
    np.testing.assert_array_equal(containers.decode(containers.encode(array, "text/csv"), "text/csv"), array)


@pytest.mark.parametrize("form", ["csc_matrix", "csr_matrix", "coo_matrix"])
def test_sparse_matrices_are_read_from_npz(form: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0, 0, 3], [4, 0, 0]])
    buffer = io.BytesIO()
    sparse.save_npz(buffer, getattr(sparse, form)(dense))

    decoded = module("sagemaker_inference.decoder").decode(buffer.getvalue(), "application/x-npz")

    np.testing.assert_array_equal(decoded.toarray(), dense)


@pytest.mark.parametrize("name", [*TABLES, "sagemaker_inference.decoder"])
def test_other_types_are_refused_with_the_originals_text(name: str) -> None:
    functions = [getattr(module(name), function, None) for function in ("encode", "decode")]
    for function in filter(None, functions):
        with pytest.raises(Exception, match=r"^Content type application/octet-stream is not supported") as failed:
            function(42, "application/octet-stream")
        assert type(failed.value).__name__ == "UnsupportedFormatError"


def test_text_that_is_no_number_stays_text_in_csv() -> None:
    encoders = module("sagemaker_containers.beta.framework").encoders

    assert encoders.csv_to_numpy("a,1\nb,2").tolist() == [["a", "1"], ["b", "2"]]
    with pytest.raises(Exception, match=r"Error while writing numpy array: .* dtype is: <class 'float'>"):
        encoders.csv_to_numpy("a,1", dtype=float)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"Content-Type": "a"}, "a"),
        ({"content-type": "a"}, "a"),
        ({"ContentType": "a"}, "a"),
        ({"contentType": "a"}, "a"),
        ({"Accept": "a"}, None),
    ],
)
def test_every_spelling_of_the_content_type_is_found(headers: dict[str, str], found: str | None) -> None:
    assert module("sagemaker_inference.utils").retrieve_content_type_header(headers) == found


def test_the_environment_has_the_toolkits_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAGEMAKER_PROGRAM", "SAGEMAKER_BASE_DIR", "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "SM_MODEL_DIR"):
        monkeypatch.delenv(name, raising=False)
    environment = module("sagemaker_inference.environment")
    values = vars(environment.Environment())

    assert environment.code_dir == "/opt/ml/model/code"
    assert values == {
        "module_name": "inference",
        "model_server_timeout": 60,
        "model_server_timeout_seconds": None,
        "model_server_workers": None,
        "startup_timeout": 600,
        "default_accept": "application/json",
        "inference_http_port": "8080",
        "management_http_port": "8080",
        "safe_port_range": None,
        "vmargs": "-XX:-UseContainerSupport",
        "max_request_size": None,
    }


def test_the_packages_import_nothing_heavy_and_touch_no_folder() -> None:
    """scikit-learn code must not wait for torch, nor a model without numpy fail at an import."""
    code = (
        "import sys\n"
        "import sagemaker_inference.transformer, sagemaker_inference.encoder, sagemaker_inference.decoder\n"
        "import sagemaker_containers.beta.framework, sagemaker_containers.entry_point\n"
        "import sagemaker_xgboost_container.encoder, sagemaker_xgboost_container.data_utils\n"
        "import sagemaker_huggingface_inference_toolkit.handler_service\n"
        "print(sorted({'numpy', 'scipy', 'torch', 'xgboost', 'PIL', 'transformers'} & set(sys.modules)))\n"
    )
    path = f"{STANDINS.parent.parent}:{STANDINS}"

    printed = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, check=True, capture_output=True, text=True
    ).stdout

    assert printed == "[]\n"


class TestHuggingFace:
    @pytest.fixture
    def tables(self) -> Any:
        return module("sagemaker_huggingface_inference_toolkit.decoder_encoder")

    def test_csv_becomes_objects_or_the_list_of_its_inputs(self, tables: Any) -> None:
        asked = "question,context\r\nwhere do i live?,My name is Philipp and I live in Nuremberg"

        assert tables.decode(asked, "text/csv") == {
            "inputs": [{"question": "where do i live?", "context": "My name is Philipp and I live in Nuremberg"}]
        }
        assert tables.decode("inputs\r\nI love you\r\nI like you", "text/csv") == {
            "inputs": ["I love you", "I like you"]
        }

    @pytest.mark.parametrize("text", ["I love you\r\nI like you", ""])
    def test_csv_without_the_names_of_columns_is_refused(self, tables: Any, text: str) -> None:
        with pytest.raises(ValueError, match="You need to provide the correct CSV with Header columns"):
            tables.decode(text, "text/csv")

    def test_json_is_compact_and_holds_arrays_and_times(self, tables: Any) -> None:
        value = {"a": np.float32(0.5), "b": np.array([1, 2]), "c": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "d": "é"}

        assert tables.encode(value) == '{"a":0.5,"b":[1,2],"c":"2026-01-02 00:00:00+00:00","d":"é"}'
        with pytest.raises(ValueError, match="Out of range float"):
            tables.encode({"a": float("nan")})

    def test_csv_has_a_line_of_names(self, tables: Any) -> None:
        value = [{"answer": "Nuremberg", "score": 0.99}, {"answer": "Berlin, of course", "score": 0.26}]

        assert tables.encode(value, "text/csv") == 'answer,score\r\nNuremberg,0.99\r\n"Berlin, of course",0.26\r\n'

    @pytest.mark.parametrize("kind", ["png", "jpeg", "bmp", "tiff", "gif", "webp", "x-image"])
    def test_images_go_both_ways(self, tables: Any, kind: str) -> None:
        image = pytest.importorskip("PIL.Image").new("RGB", (4, 3), (255, 0, 0))

        decoded = tables.decode(tables.encode(image, f"image/{kind}"), f"image/{kind}")["inputs"]

        assert (decoded.mode, decoded.size) == ("RGB", (4, 3))

    def test_audio_stays_bytes(self, tables: Any) -> None:
        assert tables.decode(bytearray(b"RIFF"), "audio/wave") == {"inputs": b"RIFF"}


RECORDS = {
    "int32": (b"\n#\xd7\xce\x13\x00\x00\x00\n\x11\n\x06values\x12\x07:\x05\n\x03*\x06\t\x00", [42, 6, 9]),
    "float64": (
        (
            b"\n#\xd7\xce(\x00\x00\x00\n&\n\x06values\x12\x1c\x1a\x1a\n\x18\x00\x00\x00\x00\x00\x00E@\x00\x00\x00\x00"
            b'\x00\x00\x18@\x00\x00\x00\x00\x00\x00"@'
        ),
        [42.0, 6.0, 9.0],
    ),
    "sparse": (
        (
            b"\n#\xd7\xce\x19\x00\x00\x00\n\x17\n\x06values\x12\r:\x0b\n\x02\x01\x01\x12\x02\x00\x05\x1a\x01\x06"
            b"\x00\x00\x00"
        ),
        [1, 0, 0, 0, 0, 1],
    ),
}


class TestRecordIO:
    """The records of the XGBoost image's own tests, and what our writer makes of arrays."""

    @pytest.mark.parametrize(("data", "values"), RECORDS.values(), ids=RECORDS)
    def test_records_are_read(self, data: bytes, values: list[float]) -> None:
        recordio = module("headrace_handler.contracts.sagemaker.recordio")

        ((features, label),) = recordio.read_records(data)

        tensor = features["values"]
        dense = [0.0] * len(values)
        for key, value in zip(tensor.keys or range(len(values)), tensor.values, strict=True):
            dense[key] = value
        assert (dense, label) == (values, {})

    @given(
        array=arrays.arrays(
            st.sampled_from([np.float32, np.float64, np.int32]), st.tuples(st.integers(1, 4), st.integers(1, 4))
        )
    )
    @round_trips
    def test_every_matrix_comes_back(self, array: Any) -> None:
        recordio = module("headrace_handler.contracts.sagemaker.recordio")
        encoders = module("sagemaker_containers.beta.framework").encoders

        records = list(recordio.read_records(encoders.array_to_recordio_protobuf(array, labels=array[:, 0].copy())))

        np.testing.assert_array_equal([features["values"].values for features, _ in records], array)
        np.testing.assert_array_equal(np.concatenate([label["values"].values for _, label in records]), array[:, 0])

    def test_sparse_rows_keep_their_columns(self) -> None:
        sparse = pytest.importorskip("scipy.sparse")
        recordio = module("headrace_handler.contracts.sagemaker.recordio")
        matrix = sparse.csr_matrix(np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))

        rows = [features["values"] for features, _ in recordio.read_records(recordio.write_matrix(matrix))]

        assert [(row.values.tolist(), row.keys, row.num_columns) for row in rows] == [([2.0], [1], 3), ([3.0], [2], 3)]

    @given(data=st.binary(max_size=64), head=st.sampled_from([b"", b"\n#\xd7\xce", b"\n#\xd7\xce\x10\x00\x00\x00"]))
    @round_trips
    def test_other_bytes_are_refused_and_never_read_past_their_end(self, data: bytes, head: bytes) -> None:
        recordio = module("headrace_handler.contracts.sagemaker.recordio")
        with contextlib.suppress(ValueError):
            list(recordio.read_records(head + data))


def test_json_lines_are_made_of_the_only_list() -> None:
    to_lines = module("sagemaker_xgboost_container.encoder").json_to_jsonlines

    assert to_lines(json.dumps({"predictions": [{"a": [1, 2]}, {"a": 3}]})) == b'{"a": [1, 2]}\n{"a": 3}\n'
    with pytest.raises(ValueError, match="not compatible for conversion to jsonlines"):
        to_lines({"predictions": [], "metadata": []})
