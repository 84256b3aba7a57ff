"""Arguments of DJL handlers: options, headers, batches, and functions for adapters."""

import json
from typing import Any

import pytest

from tests.headrace_handler.djl_models import LeavingReply, LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture
from tests.headrace_handler.test_djl import ECHO

PROPERTIES = """
    from djl_python import Output
    first = {}
    def handle(inputs):
        shown = {key: str(value) for key, value in inputs.get_properties().items()}
        if inputs.is_empty():
            first.update(shown)
            return None
        content = {key: inputs.get_as_string(key) for key in inputs.get_content().get_keys()}
        return Output().add_as_json({"first": first, "now": shown, "content": content})
"""


def test_options_reach_the_first_call_and_headers_the_others(load_model: LoadModel, tmp_path: Any) -> None:
    contract = load_model(PROPERTIES, {"model_id": "/models/gpt", "batch_size": "4", "tensor_parallel_degree": "2"})
    headers = {"X-Own": "1", "X-Amzn-SageMaker-Custom-Attributes": "a=b; c=d=e;odd"}

    seen = json.loads(predict(contract, item(b"text", headers, query={"q": "1"}, request_id="id-7")).body)

    server = {
        "device_id": "-1",
        "tensor_parallel_degree": "2",
        "cluster_size": "1",
        "model_dir": str(tmp_path),
        "handler": "handle",
    }
    assert seen["first"] == {"model_id": "/models/gpt", "batch_size": "4", **server}
    assert seen["now"] == {"X-Own": "1", "a": "b", "c": "d=e", "requestId": "id-7", **server}
    assert seen["content"] == {"q": "1", "data": "text"}


def test_a_request_without_a_body_is_not_taken_for_the_first_call(load_model: LoadModel) -> None:
    assert json.loads(predict(load_model(PROPERTIES), item(b"")).body)["content"] == {"data": ""}


def test_a_request_cannot_choose_the_handler_unless_it_is_allowed(
    load_model: LoadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = load_model(
        """
        from djl_python import Output
        def handle(inputs):
            return Output().add("handle")
        def other(inputs):
            return Output().add(inputs.get_function_name())
        """
    )
    chosen = {"Handler": "other"}

    refused = predict(contract, item(b"x", chosen))
    monkeypatch.setenv("ALLOW_REQUEST_HANDLER_OVERRIDE", "true")
    allowed = predict(contract, item(b"x", chosen))

    assert refused.status == 400
    assert json.loads(refused.body) == {
        "code": 400,
        "type": "BadRequestException",
        "message": "The handler can't be overridden in a request",
    }
    assert allowed.body == b"other"


def test_requests_of_a_batch_have_keys_of_their_own_and_get_their_own_bodies(load_model: LoadModel) -> None:
    items = [item(f"body {index}".encode(), request_id=str(index)) for index in range(3)]

    predict(load_model(ECHO), *items)

    assert [each.reply.body for each in items] == [b"body 0", b"body 1", b"body 2"]


def test_a_batch_of_one_is_no_batch(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        def handle(inputs):
            return Output().add(str(inputs.is_batch()))
        """
    )

    assert predict(contract, item(b"x")).body == b"False"


@pytest.mark.parametrize(
    ("result", "status", "message"),
    [
        ("Output().add('a')", 400, "Batch output size mismatch, expected: 2, actual: 1"),
        ("Output().add_stream_content(iter('ab'), None)", 400, "Batch output size mismatch, expected: 2, actual: 1"),
        ("None", 400, "Batch output size mismatch, expected: 2, actual: 0"),
        ("Output().add('a', 'x').add('b', 'y')", 400, "Unexpected batch output key: x"),
        ("Output().add('a').add('b')", 400, "Unexpected batch output key: null"),
        ("Output().add('a', 'data', 0).add('b', 'data', 2)", 400, "Unexpected batch output key: batch_2.data"),
    ],
)
def test_a_batch_whose_output_does_not_fit_fails_as_a_whole(
    load_model: LoadModel, result: str, status: int, message: str
) -> None:
    contract = load_model(
        f"""
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else {result}
        """
    )
    items = [item(b"x"), item(b"y")]

    predict(contract, *items)

    body = {"code": status, "type": "TranslateException", "message": message}
    assert [json.loads(each.reply.body) for each in items] == [body, body]


def test_an_error_of_a_batch_is_that_of_each_request(load_model: LoadModel) -> None:
    items = [item({"exception": b"why"}), item(b"fine")]
    contract = load_model(
        """
        def handle(inputs):
            if not inputs.is_empty():
                raise ValueError(inputs.get_batches()[0].get_as_string("exception"))
        """
    )

    predict(contract, *items)

    assert [each.reply.status for each in items] == [424, 424]
    assert json.loads(items[1].reply.body)["error"] == "why"


def test_a_client_of_a_batch_that_has_gone_does_not_disturb_the_others(load_model: LoadModel) -> None:
    items = [item(b"a", reply=LeavingReply(after=0)), item(b"b")]

    predict(load_model(ECHO), *items)

    assert items[1].reply.body == b"b"


def test_state_lives_as_long_as_the_process(load_model: LoadModel) -> None:
    contract = load_model(
        """
        import numpy as np
        from djl_python import Output
        total = np.zeros(1, dtype="float32")
        def handle(inputs):
            global total
            if inputs.is_empty():
                return None
            total = total + inputs.get_as_numpy()[0]
            return Output().add_as_numpy([total])
        """
    )
    import numpy as np
    from djl_python.np_util import from_nd_list, to_nd_list

    bodies = [predict(contract, item(bytes(to_nd_list([np.ones(1, "float32")])))).body for _ in range(2)]

    assert [from_nd_list(body)[0].tolist() for body in bodies] == [[1.0], [2.0]]


ADAPTERS = """
    from djl_python import Output
    adapters = {}
    def register_adapter(inputs):
        if inputs.contains_key("error"):
            raise ValueError(f"Failed to register adapter: {inputs.get_property('name')}")
        adapters[inputs.get_property("name")] = inputs.get_as_string("option")
        return Output(message=f"Adapter {inputs.get_property('name')} registered")
    def unregister_adapter(inputs):
        del adapters[inputs.get_property("name")]
        return Output(message="gone")
    def handle(inputs):
        return None if inputs.is_empty() else Output().add_as_json(adapters)
"""


def test_adapters_are_registered_and_unregistered_by_functions_of_the_model(load_model: LoadModel) -> None:
    contract = load_model(ADAPTERS)
    register, unregister = ({"handler": f"{verb}_adapter", "name": "fr"} for verb in ("register", "unregister"))

    assert predict(contract, item({"option": b"o"}, register), mode="adapter").status == 200
    assert json.loads(predict(contract, item(b"x")).body) == {"fr": "o"}
    assert predict(contract, item({"error": b""}, register), mode="adapter").status == 424
    assert predict(contract, item({}, unregister), mode="adapter").status == 200
    assert json.loads(predict(contract, item(b"x")).body) == {}
    assert predict(contract, item({}, {"handler": "update_adapter"}), mode="adapter").status == 424
