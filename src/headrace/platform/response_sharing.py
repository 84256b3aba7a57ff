"""
Stored responses of the other processes of this platform: each process keeps those that it has made.

A conversation goes on at any process. The one that has the response before is asked over its Unix socket.
"""

import time
from typing import Any, Final

import msgspec

from headrace.core.telemetry import get_logger
from headrace.gateway.stored_responses import StoredResponses
from headrace.platform.siblings import Answer, Siblings
from headrace.wire.openai.stored_responses import ResponseKey, StoredResponse

QUESTION: Final = "stored response"
"""The question for a response: its owner, its id, and whether it is deleted."""
_MAX_ID_CHARACTERS: Final = 256
"""Longest id to ask for: longer ones are not ours, and a question is a short line."""


def _answer_of(responses: StoredResponses) -> Answer:
    """Return the function that answers the question from this process's own responses."""

    def answer(argument: list[Any]) -> StoredResponse | None:
        owner, response_id, is_deleted = argument
        key, now_s = ResponseKey(owner, response_id), time.time()
        found = responses.store.get(key, now_s=now_s)
        if is_deleted:
            responses.store.delete(key, now_s=now_s)
        return found

    return answer


def share(responses: StoredResponses, siblings: Siblings) -> None:
    """Give a gateway access to the responses of the other processes, and these to its own."""

    async def find(key: ResponseKey, *, is_deleted: bool) -> StoredResponse | None:
        if len(key.response_id) > _MAX_ID_CHARACTERS:
            return None
        for found in await siblings.ask(QUESTION, [key.owner, key.response_id, is_deleted]):
            try:
                return msgspec.convert(found, StoredResponse)
            except msgspec.ValidationError as error:  # a process of another version
                get_logger().warning("sibling.unreadable_response", reason=str(error))
        return None

    responses.find_elsewhere = find
    siblings.answers[QUESTION] = _answer_of(responses)
