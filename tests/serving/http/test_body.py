"""Request bodies are read whole, or refused before too much of them is held."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.http.body import (
    FREE_BYTES,
    BodyBudget,
    BodyTooLarge,
    BodyTooSlow,
    BudgetSpent,
    ClientGone,
    body_parts,
    read_body,
    replay,
)

GONE = {"type": "http.disconnect"}


def received(*parts: bytes, is_whole: bool = True) -> Any:
    """An ASGI `receive` for a body that arrives in parts, and a client that leaves then."""
    last = len(parts) - 1

    def messages() -> Iterator[dict[str, Any]]:
        for number, part in enumerate(parts):
            yield {"type": "http.request", "body": part, "more_body": not is_whole or number < last}

    left = messages()

    async def receive() -> dict[str, Any]:
        return next(left, GONE)

    return receive


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(0, 40))
def test_a_body_is_whole_or_too_large(parts: list[bytes], max_bytes: int) -> None:
    body = b"".join(parts)
    if len(body) <= max_bytes:
        assert asyncio.run(read_body(received(*parts), max_bytes=max_bytes)) == body
    else:
        with pytest.raises(BodyTooLarge):
            asyncio.run(read_body(received(*parts), max_bytes=max_bytes))


async def test_a_body_that_declares_too_many_bytes_is_refused_unread() -> None:
    async def never() -> dict[str, Any]:
        raise AssertionError("nothing is read")

    with pytest.raises(BodyTooLarge) as refused:
        await read_body(never, max_bytes=9, content_length=10)
    assert refused.value.num_bytes == 10


async def test_a_body_that_does_not_arrive_in_time_is_too_slow() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(BodyTooSlow):
        await read_body(never, max_bytes=9, timeout_s=0)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_gone() -> None:
    with pytest.raises(ClientGone):
        await read_body(received(b"half", is_whole=False), max_bytes=9)
    with pytest.raises(ClientGone):
        _ = [part async for part in body_parts(received(b"half", is_whole=False))]


async def test_bodies_of_all_requests_share_a_budget() -> None:
    budget = BodyBudget(max_bytes=10)
    large = b"x" * (FREE_BYTES + 10)
    with budget.share() as first:
        assert await read_body(received(large), max_bytes=len(large), share=first) == large
        with pytest.raises(BudgetSpent), budget.share() as second:
            await read_body(received(large), max_bytes=len(large), share=second)
    assert budget.held_bytes == 0


async def test_empty_parts_are_left_out() -> None:
    assert [part async for part in body_parts(received(b"", b"a", b"", b"b"))] == [b"a", b"b"]


async def test_a_replayed_body_comes_first_and_then_what_the_client_does() -> None:
    receive = replay(b"body", received())
    message = await receive()
    assert (message["type"], message["body"], message["more_body"]) == ("http.request", b"body", False)
    assert await receive() == GONE
