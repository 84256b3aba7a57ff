"""Stored responses of other processes, asked for over their sockets."""

from contextlib import AsyncExitStack
from pathlib import Path

from headrace.platform.gateway.stored_responses import StoredResponses
from headrace.platform.host.peers import Siblings, share_responses
from headrace.serving.http.body import BodyBudget
from headrace.serving.wire.openai.stored_responses import ResponseKey, ResponseMemory, StoredResponse

from .test_siblings import standing

KEY = ResponseKey("ann", "resp_1")
ENTRY = StoredResponse(response=b'{"id": "resp_1", "text": "\xc3\xa9"}', items=b"[]", created_s=2e9)
LARGE = StoredResponse(response=b'"%b"' % (b"x" * (1 << 21)), items=b"[]", created_s=2e9)


def responses() -> StoredResponses:
    memory = ResponseMemory(max_bytes=1 << 24, max_age_s=1e9)
    return StoredResponses(memory, BodyBudget(1 << 24), max_body_bytes=1 << 24, max_event_bytes=1 << 24)


async def test_a_response_is_found_at_the_process_that_has_it_and_deleted_there(tmp_path: Path) -> None:
    owned = {name: responses() for name in ("a", "b", "c")}
    async with AsyncExitStack() as stack:
        for name, own in owned.items():
            siblings = Siblings(folder=tmp_path / "sockets", own_id=name)
            share_responses(own, siblings.ask, siblings.answers)
            await siblings.start()
            stack.push_async_callback(siblings.close)
            siblings.set_members(standing(*owned).members)
        find = owned["a"].find_elsewhere
        assert await find(KEY, is_deleted=False) is None
        owned["c"].store.add(KEY, ENTRY)
        owned["b"].store.add(ResponseKey("ann", "large"), LARGE)
        assert await find(KEY, is_deleted=False) == ENTRY
        assert await find(ResponseKey("ann", "large"), is_deleted=False) == LARGE
        assert await find(ResponseKey("bob", "resp_1"), is_deleted=False) is None
        assert await find(ResponseKey("ann", "x" * 100_000), is_deleted=False) is None
        assert await find(KEY, is_deleted=True) == ENTRY
        assert owned["c"].store.get(KEY, now_s=2e9) is None
        assert await find(KEY, is_deleted=False) is None
