"""Handlers of DJL: what they are called with, and how their results and errors are answered."""

import json
from typing import Any

import pytest

from headrace_handler.contract import LoadFailed
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


def test_running_out_of_memory_while_loading_is_reported_as_507(load_model: LoadModel) -> None:
    with pytest.raises(LoadFailed, match=r"^OOM: MemoryError$") as failure:
        load_model("def handle(inputs):\n    raise MemoryError\n")

    assert failure.value.status == 507


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def handle(inputs):\n    raise ValueError('no weights')", "invoke handler failure: ValueError: no weights"),
        ("def handle(inputs):\n    return 'x'", "invoke handler failure"),
        ("import sys\ndef handle(inputs):\n    sys.exit(3)", r"invoke handler failure: SystemExit: 3"),
        ("from djl_python import Output\ndef handle(inputs):\n    return Output(500, 'no')", "no"),
    ],
)
def test_a_handler_that_cannot_load_its_model_fails_the_load(load_model: LoadModel, code: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=f"^Failed to initialize model: {message}"):
        load_model(code)


@pytest.mark.parametrize(
    ("code", "options", "entry", "message"),
    [
        (None, {}, "", r"\.py file not found in: "),
        (None, {}, "own.py", r"entry-point file not found .*own\.py\."),
        ("import deepspeed_of_nvidia", {}, "", r"model\.py cannot be imported: ModuleNotFound.*\(model\.py, line 1\)"),
        ("import sys\nsys.exit()", {}, "", r"model\.py cannot be imported: SystemExit"),
        ("x = 1", {}, "", r"model\.py has no function handle; expected `def handle\(inputs\)`"),
        ("x = 1", {"handler": "own"}, "", r"model\.py has no function own"),
        (None, {}, "djl_python.huggingface", r"option\.entryPoint is djl_python\.huggingface, which the server's"),
        (None, {}, "https://host/model.py", r"option\.entryPoint is https://host/model\.py; expected a file or module"),
        (None, {}, "no_such_module", r"no_such_module cannot be imported: ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_code_that_is_not_there_or_cannot_be_imported_fails_the_load(
    load_model: LoadModel, code: str | None, options: dict[str, str], entry: str, message: str
) -> None:
    with pytest.raises(LoadFailed, match=message):
        load_model(code, options, entry=entry)


def test_the_module_is_named_model_and_runs_once(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "sibling.py").write_text("import model\nimport own\nassert model is own\n")
    (tmp_path / "own.py").write_text(
        "from djl_python import Output\nruns = []\nruns.append(1)\n"
        "def handle(inputs):\n    import sibling\n    return Output().add(f'{__name__} {len(runs)}')\n"
    )

    contract = load_model(entry="own.py")

    assert predict(contract, item(b"x")).body == b"model 1"


def test_a_file_named_like_the_model_comes_before_model_py(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "tiny.py").write_text(
        "from djl_python import Output\ndef handle(inputs):\n    return Output().add('tiny')\n"
    )

    assert predict(load_model("raise ValueError"), item(b"x")).body == b"tiny"


def test_an_entry_may_be_a_module_and_the_handler_another_function(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "own_package.py").write_text(
        "from djl_python import Output\ndef go(inputs):\n    return Output().add('go')\n"
    )

    contract = load_model(None, {"handler": "go"}, entry="own_package")

    assert predict(contract, item(b"x")).body == b"go"
