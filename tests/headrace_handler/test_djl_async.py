"""Asynchronous handlers and rolling batches of DJL."""

import asyncio
import json
from typing import Any

import pytest

from headrace_handler.contract import Call
from tests.headrace_handler.djl_models import LeavingReply, LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture
from tests.waiting import WAIT_S

ECHO = """
    import asyncio
    from djl_python import Output
    from djl_python.async_utils import create_non_stream_output, handle_streaming_response
    from djl_python.encode_decode import decode

    waiting = asyncio.Event()
    closed = []

    async def tokens(count):
        try:
            for index in range(count):
                yield index
        finally:
            closed.append(True)

    async def late():
        yield Output().add(Output.binary_encode({"data": "first", "last": False}))
        raise ValueError("late failure")

    async def early():
        raise ValueError("early failure")
        yield

    async def handle(inputs):
        if inputs.is_empty():
            return None
        payload = decode(inputs, inputs.get_property("Content-Type"))
        kind = payload.get("kind")
        if kind == "raise":
            raise ValueError("why")
        if kind == "wait":
            await waiting.wait()
        if kind == "release":
            waiting.set()
        if kind == "late":
            return late()
        if kind == "early":
            return early()
        if kind == "plain":
            return Output().add("as it is").add_property("x-own", "1")
        if kind == "coded":
            return create_non_stream_output("", error="too long", code=payload.get("code", 413))
        if kind == "stream":
            return handle_streaming_response(tokens(4), lambda index: (str(index), index == payload.get("last")))
        return create_non_stream_output({"kind": kind}, properties={"x-own": "2"})
"""


def send(contract: Any, kind: str, **more: Any) -> Any:
    return predict(contract, item(json.dumps({"kind": kind, **more}).encode()))


def test_an_async_handler_needs_no_option_and_answers_whole_responses(load_model: LoadModel) -> None:
    reply = send(load_model(ECHO), "whole")

    assert reply.chunks == [b'{"kind": "whole"}\n']
    assert dict(reply.headers) == {"Content-Type": "application/json", "x-own": "2"}


@pytest.mark.parametrize(
    ("last", "chunks"),
    [(2, [b"0\n", b"1\n", b"2\n"]), (None, [b"0\n", b"1\n", b"2\n", b"3\n"])],
    ids=["marked as the last", "ended"],
)
def test_each_output_is_a_chunk_until_the_last_one(
    load_model: LoadModel, last: int | None, chunks: list[bytes]
) -> None:
    contract = load_model(ECHO)

    reply = send(contract, "stream", last=last)

    assert reply.chunks == chunks
    assert dict(reply.headers) == {"Content-Type": "application/jsonlines"}


def test_an_output_that_is_not_encoded_is_sent_as_it_is(load_model: LoadModel) -> None:
    reply = send(load_model(ECHO), "plain")

    assert (reply.status, reply.body, dict(reply.headers)) == (200, b"as it is", {"x-own": "1"})


@pytest.mark.parametrize(("kind", "error"), [("raise", "why"), ("early", "early failure")])
def test_an_exception_before_the_first_chunk_has_a_message_of_its_own(
    load_model: LoadModel, kind: str, error: str
) -> None:
    reply = send(load_model(ECHO), kind)

    assert reply.status == 424
    assert reply.json == {"code": 424, "message": "service.invoke_handler_async() failure", "error": error}


def test_an_exception_in_a_stream_is_its_last_chunk(load_model: LoadModel) -> None:
    reply = send(load_model(ECHO), "late")

    assert (reply.status, reply.chunks) == (200, [b"first", b"late failure"])


def test_a_code_that_is_no_status_is_that_of_a_handler_that_fails(load_model: LoadModel) -> None:
    contract = load_model(ECHO)

    for code in ("x", 7, 99999):
        assert send(contract, "coded", code=code).body == b'{"code":424,"error":"too long"}'


def test_a_code_among_the_pairs_is_the_status_of_the_response(load_model: LoadModel) -> None:
    reply = send(load_model(ECHO), "coded")

    assert (reply.status, reply.phrase, reply.body) == (413, "too long", b'{"code":413,"error":"too long"}')


def test_calls_run_at_once(load_model: LoadModel) -> None:
    contract = load_model(ECHO, {"async_mode": "true"})
    waiting, release = (item(json.dumps({"kind": kind}).encode()) for kind in ("wait", "release"))

    async def both() -> None:
        await asyncio.gather(*(contract.call_async(Call(items=[each])) for each in (waiting, release)))

    contract.loop.run_until_complete(asyncio.wait_for(both(), 30))

    assert waiting.reply.json == {"kind": "wait"}


def test_a_client_that_leaves_closes_the_asynchronous_generator(load_model: LoadModel) -> None:
    contract = load_model(ECHO)
    reply = LeavingReply(after=1)

    predict(contract, item(b'{"kind": "stream"}', reply=reply))
    contract.loop.run_until_complete(contract.loop.shutdown_asyncgens())

    assert reply.chunks == [b"0\n"]
    assert contract._code.module.closed == [True]


def test_the_first_call_of_a_handler_that_yields_is_its_first_item(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        async def handle(inputs):
            if not inputs.is_empty():
                yield Output().add(Output.binary_encode({"data": "one", "last": True}))
        """
    )

    assert predict(contract, item(b"x")).body == b"one"


ROLLING = """
    from djl_python import Output
    from djl_python.encode_decode import decode

    live, sizes, resets = [], [], []

    def handle(inputs):
        if inputs.is_empty():
            return None
        batch = inputs.get_batches()
        sizes.append(len(batch))
        if inputs.get_property("reset_rollingbatch"):
            resets.append(True)
            live.clear()
        outputs = Output()
        for index, each in enumerate(batch):
            if index >= len(live):
                payload = decode(each, each.get_property("Content-Type"))
                live.append([payload["inputs"], payload["steps"], 0])
            else:
                assert each.get_as_bytes() == b"" and not each.get_properties()
            request = live[index]
            request[2] += 1
            if request[0] == "fail" and request[2] == 2:
                raise ValueError("step failed")
            last = request[2] == request[1]
            outputs.add(Output.binary_encode({"data": f"{request[0]}{request[2]} ", "last": last}), batch_index=index)
            outputs.add_property(f"batch_{index}_Content-Type", "text/own")
        live[:] = [request for request in live if request[2] < request[1]]
        return outputs
"""


def prompt(text: str, steps: int, reply: Any = None) -> Any:
    return item(
        json.dumps({"inputs": text, "steps": steps}).encode(), {"Content-Type": "application/json"}, reply=reply
    )


def test_a_rolling_batch_steps_all_requests_until_each_has_ended(load_model: LoadModel) -> None:
    contract = load_model(ROLLING, {"rolling_batch": "auto"})
    items = [prompt("a", 3), prompt("b", 1), prompt("c", 2)]

    predict(contract, *items)

    assert [each.reply.chunks for each in items] == [[b"a1 ", b"a2 ", b"a3 "], [b"b1 "], [b"c1 ", b"c2 "]]
    assert dict(items[0].reply.headers) == {"Content-Type": "text/own"}
    assert contract._code.module.sizes == [3, 2, 1]


def test_a_rolling_batch_has_no_more_requests_than_its_size(load_model: LoadModel) -> None:
    contract = load_model(ROLLING, {"rolling_batch": "auto", "max_rolling_batch_size": "2"})

    predict(contract, *(prompt("a", 2) for _ in range(5)))

    assert max(contract._code.module.sizes) == 2


def test_a_step_that_fails_ends_its_requests_and_resets_the_handler(load_model: LoadModel) -> None:
    contract = load_model(ROLLING, {"rolling_batch": "auto"})
    items = [prompt("a", 3), prompt("fail", 3)]

    predict(contract, *items)
    after = predict(contract, prompt("b", 1))

    body = b'{"code":424,"message":"Batch inference failed"}'
    assert [each.reply.chunks for each in items] == [[b"a1 ", body], [b"fail1 ", body]]
    assert contract._code.module.resets == [True]
    assert after.chunks == [b"b1 "]


def test_a_client_that_leaves_a_rolling_batch_does_not_disturb_the_others(load_model: LoadModel) -> None:
    contract = load_model(ROLLING, {"rolling_batch": "auto"})
    items = [prompt("a", 3, LeavingReply(after=1)), prompt("b", 3)]

    predict(contract, *items)

    assert [each.reply.chunks for each in items] == [[b"a1 "], [b"b1 ", b"b2 ", b"b3 "]]


def test_a_rolling_batch_whose_outputs_do_not_fit_fails(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else Output().add("not encoded", batch_index=0)
        """,
        {"rolling_batch": "auto"},
    )

    reply = predict(contract, prompt("a", 1))

    assert (reply.status, reply.json) == (424, {"code": 424, "message": "Batch inference failed"})


def test_a_rolling_batch_whose_output_cannot_be_read_answers_all_requests(load_model: LoadModel) -> None:
    contract = load_model(
        """
        from djl_python import Output
        resets = []
        def handle(inputs):
            if inputs.is_empty():
                return None
            resets.append(inputs.get_property("reset_rollingbatch"))
            output = Output()
            for _ in inputs.get_batches():
                output.content.add(None, 5)
            return output
        """,
        {"rolling_batch": "auto"},
    )
    items = [prompt("a", 1), prompt("b", 1)]
    later = prompt("c", 1)

    for call in (Call(items=items), Call(items=[later])):
        contract.loop.run_until_complete(asyncio.wait_for(contract.call_async(call), WAIT_S))

    body = {"code": 424, "message": "Batch inference failed"}
    assert [each.reply.json for each in (*items, later)] == [body] * 3
    assert contract._code.module.resets == [None, "true"]
