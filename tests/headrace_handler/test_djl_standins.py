"""Headrace's `djl_python`: the members that public handlers use, and the bytes that they make."""

import datetime as dt
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace_handler.standins.djl_python.pair_list import PairList
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace_handler.contracts.djl.asynchronous import read_pairs
from headrace_handler.standins.djl_python.async_utils import create_non_stream_output, create_stream_chunk_output
from headrace_handler.standins.djl_python.encode_decode import decode, encode
from headrace_handler.standins.djl_python.huggingface import get_rolling_batch_class_from_str, infer_task
from headrace_handler.standins.djl_python.inputs import Input
from headrace_handler.standins.djl_python.np_util import from_nd_list, to_nd_list
from headrace_handler.standins.djl_python.outputs import Output
from headrace_handler.standins.djl_python.request_io import TextGenerationOutput, TextInput, Token
from headrace_handler.standins.djl_python.session_manager import SessionManager
from tests.headrace_handler.djl_models import LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture

DTYPES = st.sampled_from(["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", ">f4", ">i8"])


def an_input(content_type: str | None, body: bytes) -> Input:
    inputs = Input()
    if content_type:
        inputs.properties["Content-Type"] = content_type
    inputs.content.add("data", bytearray(body))
    return inputs


def test_an_nd_list_has_the_bytes_of_djl() -> None:
    encoded = to_nd_list([np.array([[1.0, 2.0]], "float32")])

    assert bytes(encoded) == (
        struct.pack(">i", 1)
        + b"\0\4NDAR"
        + struct.pack(">i", 3)
        + b"\0"
        + b"\0\7default"
        + b"\0\7FLOAT32"
        + struct.pack(">iqq", 2, 1, 2)
        + struct.pack(">i", 2)
        + b"\0?\0?"
        + b"<"
        + struct.pack(">i", 8)
        + struct.pack("<2f", 1.0, 2.0)
    )


SHAPES = arrays.array_shapes(min_dims=0, min_side=0)


@given(st.lists(DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)), max_size=3))
def test_arrays_survive_an_nd_list(given_arrays: list[Any]) -> None:
    decoded = from_nd_list(to_nd_list(given_arrays))

    assert len(decoded) == len(given_arrays)
    for before, after in zip(given_arrays, decoded, strict=True):
        assert after.dtype == before.dtype.newbyteorder("=")
        np.testing.assert_array_equal(after, before)


@given(st.lists(arrays.arrays("float32", arrays.array_shapes()), min_size=1, max_size=3))
def test_arrays_survive_an_npz(given_arrays: list[Any]) -> None:
    body = bytes(Output().add_as_npz(given_arrays).content.value_at(0))

    for decoded in (an_input("tensor/npz", body).get_data(), from_nd_list(body)):
        for before, after in zip(given_arrays, decoded, strict=True):
            np.testing.assert_array_equal(after, before)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_nd_list_are_an_error_and_not_a_crash(encoded: bytes) -> None:
    try:
        from_nd_list(encoded)
    except Exception as error:  # noqa: BLE001 -- whatever numpy says of a broken zip
        assert str(error)  # noqa: PT017


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), min_size=1, max_size=4))
def test_encoded_pairs_are_read_with_lengths_of_both_widths(pairs: dict[str, str]) -> None:
    old = struct.pack(">h", len(pairs)) + b"".join(
        struct.pack(">h", len(text.encode())) + text.encode() for pair in pairs.items() for text in pair
    )

    assert read_pairs(Output.binary_encode(pairs)) == pairs
    assert read_pairs(old) is not None


@given(st.binary(max_size=60))
def test_other_bytes_are_not_taken_for_pairs_by_mistake(content: bytes) -> None:
    pairs = read_pairs(content)

    assert pairs is None or isinstance(pairs, dict)


def test_json_has_the_indent_and_the_separators_of_djl() -> None:
    day = dt.datetime(2024, 1, 2)  # noqa: DTZ001 -- written as it is
    value = {"a": [1, np.float32(0.5), np.int64(2)], "b": np.arange(2), "c": day, "d": "ü"}

    encoded = bytes(Output().add_as_json(value).content.value_at(0)).decode()

    numbers = '"a":[\n    1,\n    0.5,\n    2\n  ],\n  "b":[\n    0,\n    1\n  ]'
    assert encoded == f'{{\n  {numbers},\n  "c":"2024-01-02 00:00:00",\n  "d":"ü"\n}}'


def test_json_refuses_numbers_that_it_has_no_name_for() -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        Output().add(float("nan"))


def test_an_output_takes_text_bytes_and_other_values_and_names_a_batch_by_its_index() -> None:
    output = Output().add("ü", "a").add(b"b").add({"c": 1}, 7).add("d", "data", 3).add("e", batch_index=0)

    assert output.content.get_keys() == ["a", None, "7", "batch_3.data", "batch_0."]
    assert [bytes(value) for value in output.content.get_values()] == ["ü".encode(), b"b", b'{\n  "c":1\n}', b"d", b"e"]


def test_an_input_finds_headers_whatever_their_case_and_content_by_key_or_the_first() -> None:
    inputs = an_input("text/plain", b"body")
    inputs.content.add("other", bytearray(b"1"))

    assert inputs.get_property("content-TYPE") == "text/plain"
    assert inputs.get_property("accept") is None
    assert (inputs.get_as_string(), inputs.get_as_json("other"), inputs.get_data()) == ("body", 1, "body")
    assert (inputs.contains_key("other"), inputs.contains_key("none")) == (True, False)
    assert str(inputs) == "properties: {'Content-Type': 'text/plain'}\ndata: body\nother: 1"
    with pytest.raises(KeyError, match="requested data for key:none is not found!"):
        inputs.get_as_bytes("none")


def test_an_input_reads_its_data_by_the_content_type_and_rows_of_csv_by_their_names() -> None:
    assert an_input("application/json; charset=utf-8", b'{"a": 1}').get_data() == {"a": 1}
    assert an_input("application/octet-stream", b"\x00").get_data() == b"\x00"
    assert an_input("text/csv", b"x,y\n1,2\n").get_as_csv() == [{"x": "1", "y": "2"}]
    (array,) = an_input("tensor/ndlist", bytes(to_nd_list([np.arange(3)]))).get_data()
    assert array.tolist() == [0, 1, 2]


def test_an_input_without_content_has_no_bytes() -> None:
    assert (Input().is_empty(), Input().get_as_bytes(), Input().get_data()) == (True, None, None)


@given(st.integers(1, 120), st.sampled_from("._"))
def test_a_batch_is_split_by_the_index_in_its_keys(size: int, separator: str) -> None:
    inputs = Input()
    inputs.properties["batch_size"] = str(size)
    for index in range(size):
        inputs.properties[f"batch_{index:03}{separator}requestId"] = str(index)
        inputs.content.add(f"batch_{index:03}{separator}data", bytearray(str(index).encode()))

    batch = inputs.get_batches()

    assert [each.get_as_string() for each in batch] == [each.get_property("requestId") for each in batch]
    assert len(batch) == size


@pytest.mark.parametrize("size", ["0", "-1", "1001", "999999999999"])
def test_a_header_of_a_client_that_is_no_size_of_a_batch_is_refused(size: str) -> None:
    inputs = Input()
    inputs.properties["batch_size"] = size
    inputs.content.add("data", bytearray())

    with pytest.raises(ValueError, match=f"batch_size is {size}; expected 1 to 1000"):
        inputs.get_batches()


@pytest.mark.parametrize(
    ("content_type", "body", "decoded"),
    [
        (None, b"", {"inputs": ""}),
        (None, b'{"a": 1}', {"a": 1}),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("text/plain", b"hi", {"inputs": ["hi"]}),
        ("text/csv", b"inputs\r\na\r\nb\r\n", {"inputs": ["a", "b"]}),
        ("text/csv", b"question,context\r\nq,c\r\n", {"inputs": [{"question": "q", "context": "c"}]}),
        ("audio/wave", b"\1", {"inputs": bytearray(b"\1")}),
        ("application/x-www-form-urlencoded", b"a=b", {"inputs": "a=b"}),
        ("application/octet-stream", b"\2", {"inputs": bytearray(b"\2")}),
    ],
)
def test_a_request_is_decoded_by_its_content_type(content_type: str | None, body: bytes, decoded: Any) -> None:
    assert decode(an_input(content_type, body), content_type) == decoded


def test_arrays_images_and_numbers_are_decoded_too() -> None:
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (3, 2)).save(picture, "PNG")
    array = np.arange(3)

    assert decode(an_input("image/png", picture.getvalue()), "image/png")["inputs"].size == (3, 2)
    assert decode(an_input("", bytes(to_nd_list(array))), "tensor/ndlist")["inputs"][0].tolist() == [0, 1, 2]
    assert decode(an_input("", b"1,2\n3,4"), "text/csv", require_csv_headers=False).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="CSV contains non-numeric data"):
        decode(an_input("", b"1,a"), "text/csv", require_csv_headers=False)
    with pytest.raises(ValueError, match="You need to provide the correct CSV"):
        decode(an_input("", b"1,a"), "text/csv")


@pytest.mark.parametrize(
    ("accept", "content_type", "body"),
    [
        (None, "application/json", b'[\n  {\n    "a":1\n  }\n]'),
        ("text/csv", "text/csv", b"a\r\n1\r\n"),
    ],
)
def test_a_prediction_is_encoded_by_the_accepted_type(accept: str | None, content_type: str, body: bytes) -> None:
    output = Output()

    encode(output, [{"a": 1}], accept)

    assert (output.get_property("Content-Type"), bytes(output.content.value_at(0))) == (content_type, body)


def test_outputs_of_asynchronous_handlers_are_pairs() -> None:
    whole = create_non_stream_output({"a": "ü"})
    chunk = create_stream_chunk_output("text", False, error="why", code=500)

    assert read_pairs(whole.content.value_at(0)) == {"data": '{"a": "ü"}\n', "last": "True"}
    assert read_pairs(chunk.content.value_at(0)) == {"data": "text\n", "last": "False", "error": "why", "code": "500"}
    assert chunk.get_properties() == {"Content-Type": "application/jsonlines"}


def test_a_generated_sequence_is_read_token_by_token() -> None:
    output = TextGenerationOutput(request_id=1, input=TextInput(tgi_compat=True))
    output.set_next_token(Token(1, "a", -0.5))
    output.set_next_token(Token(2, "b", special_token=True), is_last_token=True, finish_reason="length")
    sequence = output.sequences[0]

    read = [sequence.get_next_token()[1:] for _ in range(3)]

    assert read == [(0, True, False), (1, False, True), (0, False, False)]
    assert (sequence.finish_reason, sequence.get_last_token()) == ("length", sequence.tokens[1])
    assert output.get_tokens_as_dict() == [
        {"id": 1, "text": "a", "logprob": -0.5},
        {"id": 2, "text": "b", "logprob": None, "special": True},
    ]
    assert Token(3, "c", error_msg="e").as_dict() == {"id": 3, "text": "c", "log_prob": None, "error_msg": "e"}


def test_a_list_of_pairs_drops_values_of_none() -> None:
    pairs = PairList(pair_map={"a": 1})
    pairs.add("b", None)
    pairs.add("c", 3, index=0)
    pairs.add_all(PairList(["d"], [4]))

    assert (pairs.get_keys(), pairs.get_values(), pairs.get("b")) == (["c", "a", "d"], [3, 1, 4], None)
    with pytest.raises(ValueError, match="key value size mismatch"):
        PairList(["a"], [1, 2])


@pytest.fixture
def sessions(tmp_path: Path) -> dict[str, str]:
    return {"sessions_path": str(tmp_path / "sessions")}


def test_sessions_keep_values_and_arrays_for_all_processes(sessions: dict[str, str]) -> None:
    manager = SessionManager(sessions)
    session = manager.create_session()
    session.put("a/b", {"x": 1})
    session.get_as_numpy("state", (2, 2), create=True).fill(3)

    other = SessionManager(sessions)
    found = other.get_session(session.session_id)

    assert found is not None
    assert (found.get("a/b"), found.get("none", 5)) == ({"x": 1}, 5)
    assert found.get_as_numpy("state", (2, 2)).tolist() == [[3, 3], [3, 3]]
    later = manager.create_session()
    assert other.get_session(later.session_id) is not None
    other.close_session(later.session_id)
    with pytest.raises(ValueError, match=f"session not found: {later.session_id}"):
        manager.get_session(later.session_id)


@pytest.mark.parametrize("session_id", [None, "", "NEW_SESSION"])
def test_a_new_session_has_no_state(sessions: dict[str, str], session_id: str | None) -> None:
    assert SessionManager(sessions).get_session(session_id) is None


def test_sessions_expire_and_foreign_ids_are_not_found(sessions: dict[str, str]) -> None:
    manager = SessionManager({**sessions, "sessions_expiration": "-1"})
    session = manager.create_session()

    assert manager.get_session(session.session_id) is None
    manager.create_session()
    assert not Path(session.files_path).exists()
    for foreign in ("../../etc", "0" * 36):
        with pytest.raises(ValueError, match="session not found"):
            manager.close_session(foreign)
    with pytest.raises(ValueError, match="sessions stay on this host"):
        SessionManager({**sessions, "sessions_s3url": "s3://bucket"})


def test_a_model_of_scikit_learn_needs_no_code(load_model: LoadModel, tmp_path: Path) -> None:
    import joblib
    from sklearn import linear_model

    joblib.dump(linear_model.LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0]), tmp_path / "model.joblib")
    contract = load_model(None, {"model_format": "joblib", "trust_insecure_model_files": "true"})

    as_json = predict(contract, item(b'{"inputs": [[2.0], [3.0]]}', {"Content-Type": "application/json"}))
    as_csv = predict(contract, item(b"2", {"Content-Type": "text/csv", "Accept": "text/csv"}))

    assert [round(value, 6) for value in as_json.json["predictions"]] == [4.0, 6.0]
    assert [round(float(line), 6) for line in as_csv.body.decode().split()] == [4.0]
    refused = predict(contract, item(b"{}", {"Content-Type": "application/json", "Accept": "image/png"}))
    assert refused.json["error"] == "Unsupported Accept type: image/png. Supported types: application/json, text/csv"


def test_functions_of_sagemaker_serve_a_model_by_the_names_of_their_parameters(
    load_model: LoadModel, tmp_path: Path
) -> None:
    (tmp_path / "model.pkl").write_bytes(b"not read, because model_fn loads")
    contract = load_model(
        """
        import json
        import numpy as np
        runs = []
        runs.append(1)
        def model_fn(model_dir):
            return 10
        def input_fn(request_body, content_type):
            return np.array(json.loads(request_body))
        def predict_fn(input_data, model):
            return input_data * model + len(runs)
        def output_fn(prediction, accept):
            return json.dumps(prediction.tolist())
        """
    )

    reply = predict(contract, item(b"[1, 2]", {"Accept": "application/json"}))

    assert (reply.json, dict(reply.headers)) == ([[11, 21]], {"Content-Type": "application/json"})


def test_pickled_models_are_loaded_only_if_they_are_trusted(load_model: LoadModel, tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"never read")

    with pytest.raises(Exception, match=r"option\.trust_insecure_model_files must be set to 'true'"):
        load_model(None, {"model_format": "pickle"})
    with pytest.raises(Exception, match="Unsupported model format: onnx"):
        load_model(None, {"model_format": "onnx"})


def test_the_task_follows_from_the_architecture() -> None:
    assert infer_task(["GPT2LMHeadModel"]) == "text-generation"
    assert infer_task(["BertForSequenceClassification"]) == "text-classification"
    with pytest.raises(ValueError, match=r"Set option\.task"):
        infer_task(["Own"])
    with pytest.raises(ValueError, match="Invalid rolling batch type: vllm"):
        get_rolling_batch_class_from_str("vllm", True)


def test_an_error_is_json_with_its_code() -> None:
    output = Output().error("why", code=400, message="bad")

    assert json.loads(output.content.value_at(0)) == {"code": 400, "message": "bad", "error": "why"}
    assert (output.code, output.message) == (400, "bad")
    assert json.loads(str(output))["content"] == {"null": "type: <class 'bytearray'>"}
