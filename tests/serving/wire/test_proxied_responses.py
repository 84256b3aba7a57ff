"""Responses that a proxy stores: the request for the model server, and the response for the client."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.serving.wire.openai.proxied_responses import ResponseRecorder, read_request
from headrace.serving.wire.openai.stored_responses import StoredResponse

ASKED = {"type": "message", "role": "user", "content": "one"}
ANSWERED = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "1"}]}


def stored(status="completed"):
    response = json.dumps({"id": "resp_1", "status": status, "output": [ANSWERED]}, indent=1).encode()
    return StoredResponse(response=response, items=json.dumps([ASKED]).encode(), created_s=0)


def read(**fields):
    return read_request(json.dumps({"model": "m", **fields}).encode(), lambda _: stored())


def result(response_id="resp_2", status="completed", **fields):
    return {"id": response_id, "status": status, "store": False, "previous_response_id": None, "output": [], **fields}


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


STREAM = (
    event("response.created", response=result(status="in_progress"))
    + event("response.output_text.delta", delta="event: response.completed\ndata: {}")
    + b": a comment\r\n\r\n"
    + event("response.completed", response=result(output=["\u2028\n\n"]))
)


def recorder(request, kept, *, max_bytes=1 << 20):
    items = request.input_items("r")
    return ResponseRecorder(
        request, items, lambda name, entry: kept.update({name: entry}), created_s=7, max_bytes=max_bytes
    )


@pytest.mark.parametrize(
    ("own", "forwarded"),
    [("two", [{"role": "user", "content": "two"}]), ([{"role": "user", "content": "x"}], None), ([], None), (7, 7)],
)
def test_a_request_is_forwarded_with_the_conversation_that_it_continues(own, forwarded):
    request = read(input=own, previous_response_id="resp_1", temperature=0)
    expected = own if forwarded is None else forwarded
    sent = json.loads(request.body)
    assert sent == {
        "model": "m",
        "input": [ASKED, ANSWERED, *expected] if isinstance(expected, list) else expected,
        "temperature": 0,
        "store": False,
    }


def test_the_stored_items_are_those_of_the_client_with_ids():
    image = {"type": "input_image", "image_url": "data:x"}
    own = [{"role": "user", "content": "two", "name": None}, {"id": "i", "role": "user", "content": [image]}]
    request = read(input=own, previous_response_id="resp_1")
    two = {"type": "message", "id": "msg_r_in0", "role": "user", "status": "completed"}
    assert json.loads(request.input_items("r")) == [
        ASKED,
        ANSWERED,
        {**two, "content": [{"type": "input_text", "text": "two"}]},
        {**two, "id": "i", "content": [image]},
    ]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"store": 1}', b'{"input": ', b"\xff", b"[" * 100_000, b'{"store": false}']
)
def test_what_is_not_stored_or_not_valid_is_forwarded_as_it_is(body):
    assert read_request(body, lambda _: stored()) is None


def test_a_failed_response_is_not_continued():
    with pytest.raises(InvalidRequest, match="has failed"):
        read_request(b'{"previous_response_id": "resp_1"}', lambda _: stored("failed"))


def test_errors_count_the_items_as_the_client_does():
    request = read(input=[{}], previous_response_id="resp_1")
    error = b'{"param": "input[2].role", "message": "Missing \'input[2].role\', see input[1] and input[10]"}'
    assert request.error_for_client(error) == error.replace(b"[2]", b"[0]").replace(b"[10]", b"[8]")
    assert read(input=[{}]).error_for_client(error) == error


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_a_stream_is_passed_on_and_stored_however_it_is_cut(cuts):
    kept: dict[str, StoredResponse] = {}
    record = recorder(read(input="two", previous_response_id="resp_1"), kept)
    edges = [0, *sorted(cuts), len(STREAM)]
    got = b"".join(record.feed(STREAM[start:end]) for start, end in pairwise(edges))
    assert record.rest() == b""
    created, delta, comment, completed = got.replace(b"\r", b"").split(b"\n\n")[:4]
    settings = {"previous_response_id": "resp_1", "store": True}
    assert json.loads(created.split(b"data: ")[1])["response"] == {**result(status="in_progress"), **settings}
    assert delta in STREAM
    assert comment == b": a comment"
    response = json.loads(completed.split(b"data: ")[1])["response"]
    assert response == {**result(output=["\u2028\n\n"]), **settings}
    assert kept.keys() == {"resp_2"}
    assert json.loads(kept["resp_2"].response) == response
    assert [item["role"] for item in json.loads(kept["resp_2"].items)] == ["user", "assistant", "user"]


def test_a_response_that_continues_one_need_not_be_stored():
    kept: dict[str, StoredResponse] = {}
    request = read(input="two", previous_response_id="resp_1", store=False)
    passed_on = json.loads(recorder(request, kept).whole(json.dumps(result()).encode()))
    assert (passed_on["store"], passed_on["previous_response_id"], kept) == (False, "resp_1", {})


@pytest.mark.parametrize("own", [7, ["x"], [{"type": 1}], [{"role": "user", "content": "x", "type": []}]])
def test_input_of_an_unknown_form_is_not_stored(own):
    kept: dict[str, StoredResponse] = {}
    passed_on = json.loads(recorder(read(input=own), kept).whole(json.dumps(result()).encode()))
    assert (passed_on["store"], kept) == (False, {})


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "in_progress", "queued"])
def test_a_response_is_stored_when_it_has_ended(status):
    kept: dict[str, StoredResponse] = {}
    recorder(read(input="two"), kept).whole(json.dumps(result(status=status)).encode())
    assert bool(kept) == (status in {"completed", "incomplete", "failed"})


@pytest.mark.parametrize("body", [b"text", b"[]", b'{"id": 1}', b"\xff"])
def test_a_response_of_another_form_passes(body):
    kept: dict[str, StoredResponse] = {}
    record = recorder(read(input="two"), kept)
    streamed = b"event: response.completed\ndata: %b\n\n" % body
    assert (record.whole(body), record.feed(streamed), kept) == (body, streamed, {})


def test_an_event_that_is_too_large_passes_and_is_not_stored():
    kept: dict[str, StoredResponse] = {}
    record = recorder(read(input="two"), kept, max_bytes=100)
    assert record.feed(STREAM[:-1][-150:]) == STREAM[:-1][-150:]
    assert (record.rest(), kept) == (b"", {})
