"""Pages of the Describe operations of Application Auto Scaling. Pure."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from headrace.state.records import Record
from headrace.wire.aws.errors import AwsError, validation_error

MAX_RESULTS = 50


def page(
    records: Sequence[Record],
    params: dict[str, Any],
    *,
    member: str,
    shown: Callable[[Record], dict[str, Any]],
    is_newest_first: bool = False,
    largest: int = MAX_RESULTS,
) -> dict[str, Any]:
    """
    One page of an answer.

    A token names the last record of its page, so that pages stay right while records come and go.

    Args:
        records: all that fit the filters.
        params: of the call.
        member: what the list is called in the answer.
        shown: a record as the answer has it.
        is_newest_first: order by time of creation, downwards.
        largest: how many fit on a page; also the default.

    Raises:
        AwsError: the token is not one of ours, or MaxResults is below 1.
    """
    number = params.get("MaxResults", largest)
    if number < 1:
        raise validation_error(f"MaxResults is {number}; wanted: 1 to {largest}.")
    number = min(number, largest)
    found = sorted(records, key=_key, reverse=is_newest_first)
    if token := params.get("NextToken"):
        after = _read_token(token, member)
        found = [one for one in found if (_key(one) < after if is_newest_first else _key(one) > after)]
    answer: dict[str, Any] = {member: [shown(one) for one in found[:number]]}
    if len(found) > number:
        answer["NextToken"] = _token(member, found[number - 1])
    return answer


def _key(record: Record) -> tuple[float, str]:
    return record.created_s, record.name


def _token(member: str, record: Record) -> str:
    return base64.urlsafe_b64encode(json.dumps([member, *_key(record)]).encode()).decode()


def _read_token(token: str, member: str) -> tuple[float, str]:
    try:
        read = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError):
        read = None
    match read:
        case [str(of), int() | float() as created_s, str(name)] if of == member:
            return float(created_s), name
    raise AwsError("InvalidNextTokenException", "The next token is invalid: begin without it.")
