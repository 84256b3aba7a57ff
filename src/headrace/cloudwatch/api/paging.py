"""Tokens of CloudWatch's lists: text that means something to the list that gave it."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.cloudwatch.errors import invalid_token

_T = TypeVar("_T")
_V = TypeVar("_V", str, int)


def page(
    things: Sequence[_T], token: str | None, *, key: Callable[[_T], str], size: int
) -> tuple[list[_T], dict[str, str]]:
    """
    The things after a token, and the answer's `NextToken` if there is another page.

    Args:
        things: all, in the order of `key`, so that pages stay right while things come and go.
        token: of the call.
        key: unique.
        size: of a page.

    Raises:
        AwsError: the token is none.
    """
    after = None if token is None else read_token(token, str)
    found = [one for one in things if after is None or key(one) > after]
    chosen = list(found[:size])
    return chosen, {"NextToken": make_token(key(chosen[-1]))} if len(found) > size else {}


def make_token(value: str | int) -> str:
    """A token that holds a value."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def read_token(token: str, kind: type[_V]) -> _V:
    """The value in a token. Raises `AwsError`."""
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError) as error:
        raise invalid_token() from error
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise invalid_token()
    return value
