"""TorchServe's contract, with handlers like those of its own tests (ModelServerTest.java, test/pytest)."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_handler.contract import Call, Part
from headrace_handler.contracts.torchserve.service import encode
from tests.headrace_handler.support import call, make_item
from tests.headrace_handler.torchserve_models import load, write_model

pytestmark = pytest.mark.usefixtures("ts_imports")

ECHO_TYPES = """
    def handle(data, context):
        return data and [f"{type(row['body']).__name__} {row['body']!r}" for row in data]
"""


@pytest.mark.parametrize(
    ("content_type", "body", "seen"),
    [
        ("application/json", b'{"a": 1}', "dict {'a': 1}"),
        ("application/json; charset=utf-8", b'{"a": 1}', "dict {'a': 1}"),
        ("application/json", b"{", "bytearray bytearray(b'{')"),
        ("text/plain", "é".encode(), "str 'é'"),
        ("text/plain", b"\xff", "bytearray bytearray(b'\\xff')"),
        ("image/png", b"x", "bytearray bytearray(b'x')"),
        (None, b"x", "bytearray bytearray(b'x')"),
    ],
)
def test_bodies_are_decoded_by_their_type(tmp_path: Path, content_type: str | None, body: bytes, seen: str) -> None:
    contract = load(write_model(tmp_path / "m", ECHO_TYPES))

    assert call(contract, body, content_type=content_type)[0].body.decode() == seen


def test_bodies_stay_bytes_where_the_image_says_so(tmp_path: Path) -> None:
    contract = load(write_model(tmp_path / "m", ECHO_TYPES), decode_input_request="false")

    assert call(contract, b"{}", content_type="application/json")[0].body == b"bytearray bytearray(b'{}')"


def test_form_fields_and_query_parameters_have_their_names(tmp_path: Path) -> None:
    handler = "def handle(data, ctx): return data and [{k: str(v) for k, v in data[0].items()}]"
    contract = load(write_model(tmp_path / "m", handler))
    fields = [
        Part(name="data", content_type="text/plain", content=bytearray(b"text")),
        Part(name="target", content=bytearray(b"3")),
    ]
    on_invocations, reply = make_item(fields, query=[("q", "1")])
    on_predictions, other = make_item(fields, query=[("q", "1")], path="", request_id="r-1")

    contract.call(Call(items=[on_invocations]))
    contract.call(Call(items=[on_predictions]))

    assert reply.json == {"q": "bytearray(b'1')", "data": "text", "target": "bytearray(b'3')"}
    assert other.json == {"data": "text", "target": "bytearray(b'3')"}


def test_requests_of_a_batch_with_the_same_id_get_their_own_responses(tmp_path: Path) -> None:
    handler = """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            parts = [row["data"] for row in data or ()]
            if parts:
                send_intermediate_predict_response(parts, context.request_ids, "ok", 200, context)
            return ["." for _ in parts]
    """
    contract = load(write_model(tmp_path / "m", handler))
    made = [
        make_item([Part(name="data", content_type="text/plain", content=bytearray(text))], request_id="same")
        for text in (b"a", b"b")
    ]

    contract.call(Call(items=[item for item, _ in made]))

    assert [bytes(reply.body) for _, reply in made] == [b"a.", b"b."]


def test_headers_tell_the_rest_of_the_path_and_the_mode(tmp_path: Path) -> None:
    handler = """
        def handle(data, ctx):
            return data and [{key: ctx.get_request_header(0, key) for key in ("url_path", "explain", "describe", "x")}]
    """
    contract = load(write_model(tmp_path / "m", handler))

    assert call(contract, b"", path="a/b", headers=[("X", "1")])[0].json == {
        "url_path": "a/b",
        "explain": "False",
        "describe": None,
        "x": "1",
    }
    assert call(contract, b"", path="", mode="explain")[0].json["explain"] == "True"
    assert call(contract, b"", mode="describe")[0].json["describe"] == "True"
    assert call(contract, b"")[0].json["explain"] is None


def test_a_handler_sets_status_phrase_type_and_headers_of_each_request(tmp_path: Path) -> None:
    handler = """
        def handle(data, ctx):
            if data is None:
                return
            ctx.set_response_status(507, "Full", idx=1)
            ctx.set_response_content_type(0, "text/x")
            ctx.set_response_header(0, "dummy", "1")
            return ["Invalid response"] * len(data)
    """
    first, second = call(load(write_model(tmp_path / "m", handler)), b"", b"")

    assert (first.status, first.headers) == (200, [("content-type", "text/x"), ("dummy", "1")])
    assert (second.status, second.phrase, second.body) == (507, "Full", b"Invalid response")


def test_a_status_that_http_does_not_have_becomes_500(tmp_path: Path) -> None:
    handler = "def handle(data, ctx):\n  if data: ctx.set_response_status(code=100)\n  return ['x']"

    assert call(load(write_model(tmp_path / "m", handler)), b"")[0].status == 500


@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("return 'x'", 503, "Invalid model predict output"),
        ("return None", 503, "Invalid model predict output"),
        ("return []", 503, "number of batch response mismatched"),
        ("return [{1, 2}] * len(data)", 503, "Unsupported model output data type."),
        ("raise PredictionException('Some Prediction Error', 599)", 599, "Some Prediction Error"),
        ("raise PredictionException('x')", 500, "x"),
        ("raise PredictionException('x', 413)", 507, "x"),
        ("raise MemoryError('Some Memory Error')", 507, "Out of resources"),
        ("raise RuntimeError('CUDA error: out of memory')", 507, "Out of resources"),
        ("raise ValueError('secret')", 503, "Prediction failed"),
    ],
)
def test_failures_have_torchserves_status_and_text_for_all_of_a_batch(
    tmp_path: Path, statement: str, status: int, message: str
) -> None:
    handler = f"""
        from ts.utils.util import PredictionException
        def handle(data, ctx):
            if data is not None:
                {statement}
    """
    for reply in call(load(write_model(tmp_path / "m", handler)), b"a", b"b"):
        assert reply.status == status
        assert reply.json == {"code": status, "type": "InternalServerException", "message": message}
        assert reply.header("content-type") == "application/json"


def test_a_traceback_is_logged_and_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contract = load(write_model(tmp_path / "m", "def handle(data, ctx):\n  if data: raise KeyError('inner')"))

    reply = call(contract, b"")[0]

    assert b"inner" not in reply.body
    assert "KeyError: 'inner'" in caplog.text


def test_sys_exit_ends_the_child(tmp_path: Path) -> None:
    contract = load(write_model(tmp_path / "m", "import sys\ndef handle(data, ctx):\n  if data: sys.exit(3)"))

    with pytest.raises(SystemExit):
        call(contract, b"")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_results_are_text_as_it_is_or_json(value: object) -> None:
    body = bytes(encode(value))

    assert body == value.encode() if isinstance(value, str) else json.loads(body) == value


def test_tensors_are_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    handler = "import torch\ndef handle(data, ctx): return data and [torch.tensor([1, 2])]"
    reply = call(load(write_model(tmp_path / "m", handler)), b"")[0]
    (tmp_path / "reply.pt").write_bytes(reply.body)

    assert torch.load(tmp_path / "reply.pt").tolist() == [1, 2]


STREAM = """
    from ts.handler_utils.utils import send_intermediate_predict_response as send
    def handle(data, ctx):
        if data is None:
            return
        for _ in range(3):
            send(["hello"] * len(data), ctx.request_ids, "Intermediate Prediction success", 200, ctx)
        return ["hello world "] * len(data)
"""


def test_a_streamed_response_has_one_chunk_for_each_part(tmp_path: Path) -> None:
    for reply in call(load(write_model(tmp_path / "m", STREAM)), b"foo", b"bar"):
        assert reply.chunks == [b"hello", b"hello", b"hello", b"hello world "]
        assert reply.header("ts_stream_next") == "true"
        assert reply.has_ended


def test_the_older_import_of_streaming_works(tmp_path: Path) -> None:
    handler = STREAM.replace("ts.handler_utils.utils", "ts.protocol.otf_message_handler")

    assert len(call(load(write_model(tmp_path / "m", handler)), b"")[0].chunks) == 4


def test_only_the_first_process_of_a_job_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert call(load(write_model(tmp_path / "m", STREAM)), b"")[0].chunks == [b"hello world "]


def test_a_client_that_has_gone_does_not_disturb_its_batch(tmp_path: Path) -> None:
    contract = load(write_model(tmp_path / "m", STREAM))
    gone, left = make_item(request_id="r-0")
    stays, reply = make_item(request_id="r-1")
    left.is_cancelled = True

    contract.call(Call(items=[gone, stays]))

    assert left.chunks == []
    assert len(reply.chunks) == 4


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [("raise ValueError", 503, "Prediction failed"), ("return []", 503, "number of batch response mismatched")],
)
def test_a_failure_after_the_first_part_ends_the_stream_in_band(
    tmp_path: Path, ending: str, status: int, message: str
) -> None:
    handler = STREAM.replace('return ["hello world "] * len(data)', ending)

    reply = call(load(write_model(tmp_path / "m", handler)), b"")[0]

    assert reply.status == 200
    assert reply.chunks[:3] == [b"hello"] * 3
    assert json.loads(reply.chunks[3])["code"] == status
    assert reply.aborted == message


def test_a_part_that_cannot_be_serialized_fails_its_requests(tmp_path: Path) -> None:
    handler = STREAM.replace('["hello"]', "[{1}]")

    reply = call(load(write_model(tmp_path / "m", handler)), b"")[0]

    assert (reply.status, reply.json["message"]) == (503, "Unsupported model output data type.")


def test_one_context_lives_as_long_as_the_handler(tmp_path: Path) -> None:
    handler = """
        def handle(data, ctx):
            if data is None:
                ctx.cache = []
                return
            ctx.cache.append(ctx.get_request_id(0))
            return [[ctx.cache, ctx.system_properties["batch_size"], ctx.model_yaml_config["handler"]]]
    """
    contract = load(write_model(tmp_path / "m", handler), batch_size=3, config={"handler": {"a": 1}})
    call(contract, b"")

    assert call(contract, b"")[0].json == [["r-0", "r-0"], 3, {"a": 1}]


def test_a_request_without_a_sequence_begins_one(tmp_path: Path) -> None:
    handler = """
        def handle(data, ctx):
            start = ctx.header_key_sequence_start
            return data and [[ctx.get_sequence_id(0), ctx.get_request_header(0, start)]]
    """
    contract = load(write_model(tmp_path / "m", handler), config={"sequenceBatching": True})

    new, start = call(contract, b"")[0].json
    assert (new[:7], start) == ("ts-seq-", "true")
    assert call(contract, b"", headers=[("ts_request_sequence_id", "s1")])[0].json == ["s1", None]


def test_continuous_batching_calls_the_handler_until_its_criteria_stop(tmp_path: Path) -> None:
    handler = """
        def handle(data, ctx):
            if data is None:
                ctx.cache = {}
                return
            for index, row in enumerate(data):
                if row:
                    ctx.cache[ctx.request_ids[index]] = int(row["body"])
            ids = dict(ctx.request_ids)
            ctx.stopping_criteria = {i: lambda _, key=key: ctx.cache[key] == 0 for i, key in ids.items()}
            for key in ids.values():
                ctx.cache[key] -= 1
            return [str(ctx.cache[key]) for key in ids.values()]
    """
    contract = load(write_model(tmp_path / "m", handler), config={"continuousBatching": True})

    short, long = call(contract, b"1", b"3")

    assert short.chunks == [b"0"]
    assert long.chunks == [b"2", b"1", b"0"]
    assert long.header("ts_stream_next") == "true"


@pytest.mark.parametrize(
    ("envelope", "body", "expected"),
    [
        ("body", b'"x"', '"x"'),
        ("json", b'{"instances": [1, {"b64": "eA=="}]}', {"predictions": ["1", "b'x'"]}),
        ("kserve", b'{"instances": [1, 2]}', {"predictions": ["1", "2"]}),
        (
            "kservev2",
            b'{"id": "7", "inputs": [{"name": "i", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}',
            {
                "id": "7",
                "model_name": "m",
                "model_version": "1.0",
                "outputs": [{"name": "i", "datatype": "INT64", "data": [3], "shape": [1]}],
            },
        ),
    ],
)
def test_envelopes_take_requests_apart(tmp_path: Path, envelope: str, body: bytes, expected: object) -> None:
    handler = """
        def handle(data, ctx):
            if data is None:
                return
            return [sum(row["data"]) if isinstance(row, dict) else str(row) for row in data]
    """
    contract = load(write_model(tmp_path / "m", handler), service_envelope=envelope)

    reply = call(contract, body, content_type="application/json")[0]

    assert (reply.body.decode() if isinstance(expected, str) else reply.json) == (
        "x" if isinstance(expected, str) else expected
    )


def test_metrics_are_lines_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handler = """
        from ts.metrics.dimension import Dimension
        from ts.metrics.metric_type_enum import MetricTypes
        def handle(data, ctx):
            if data is None:
                ctx.bytes = ctx.metrics.add_metric_to_cache(
                    metric_name="Bytes", unit="B", dimension_names=["kind"], metric_type=MetricTypes.HISTOGRAM)
                return
            ctx.metrics.add_counter("Calls", 2, dimensions=[Dimension("Host", "h")])
            ctx.bytes.add_or_update(5, ["k"])
            ctx.bytes.add_or_update(5, [])
            return data and ["OK"]
    """
    contract = load(write_model(tmp_path / "m", handler))
    call(contract, b"")

    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[METRICS]")]
    assert lines[0].startswith("[METRICS]Calls.Count:2|#Host:h,ModelName:m,Level:Model|#type:COUNTER|#hostname:")
    assert lines[0].endswith(",r-0")
    assert lines[1].startswith("[METRICS]Bytes.Bytes:5|#kind:k|#type:HISTOGRAM|#hostname:")
    assert "should correspond to Dimension names: ['kind']" in lines[2]
    assert lines[3].startswith("[METRICS]PredictionTime.Milliseconds:")
