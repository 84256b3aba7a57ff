"""Pages of AWS's list operations. Pure."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from headrace.serving.wire.aws.errors import AwsError

_T = TypeVar("_T")

Key = tuple[str | float, ...]

_MAX_NUMBER = 2**53
"""Larger than any time or offset; a database refuses numbers far beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paginator:
    """
    Splits the lists of one service into pages.

    A token is opaque to the client. It holds the list that it belongs to and where the next page begins.
    """

    invalid_token: Callable[[], AwsError]
    """The service's error for a token that it did not issue for this list."""
    member: str = "NextToken"
    """Name of the token in requests and responses."""

    def page(
        self,
        items: Sequence[_T],
        params: Mapping[str, Any],
        *,
        listing: str,
        key: Callable[[_T], Key],
        size: int,
        is_descending: bool = False,
    ) -> tuple[list[_T], dict[str, str]]:
        """
        Return one page of items, ordered by `key`, and the response's token member (empty on the last page).

        The token holds the key of the page's last item, so that pages stay right while items come and go: the key must
        be unique. `listing` identifies the list and its order.

        Raises:
            AwsError: the token does not belong to this list.
        """
        ordered = sorted(items, key=key, reverse=is_descending)
        last = self.last_key(params, listing=listing, like=key(ordered[0]) if ordered else None)
        if last is not None:
            ordered = [item for item in ordered if (key(item) < last if is_descending else key(item) > last)]
        return self.cut(ordered, listing=listing, key=key, size=size)

    def last_key(self, params: Mapping[str, Any], *, listing: str, like: Key | None) -> Key | None:
        """
        Return the key of the last item of the page before; None for the first page.

        `like` is a key of this list, for the types; None if the list is empty.

        Raises:
            AwsError: the token does not belong to this list.
        """
        last = self._read(params, listing)
        if last is not None and like is not None:
            texts, expected = ([isinstance(part, str) for part in key] for key in (last, like))
            if texts != expected:
                raise self.invalid_token()
        return last

    def cut(
        self, items: Iterable[_T], *, listing: str, key: Callable[[_T], Key], size: int
    ) -> tuple[list[_T], dict[str, str]]:
        """Return the first page of ordered items and the response's token member, as `page`; read one item more."""
        chosen = list(islice(items, size + 1))
        if len(chosen) <= size:
            return chosen, {}
        return chosen[:size], self._token(listing, key(chosen[size - 1]))

    def begin(self, params: Mapping[str, Any], *, listing: str) -> int:
        """
        Return the offset at which a page begins, for lists whose items have no key; see `token_at`.

        Raises:
            AwsError: the token does not belong to this list.
        """
        match self._read(params, listing):
            case None:
                return 0
            case (int(offset),) if offset >= 0:
                return offset
        raise self.invalid_token()

    def token_at(self, offset: int, *, listing: str) -> dict[str, str]:
        """Return the token member for a next page that begins at `offset`."""
        return self._token(listing, (offset,))

    def _token(self, listing: str, key: Key) -> dict[str, str]:
        return {self.member: base64.urlsafe_b64encode(json.dumps([listing, *key]).encode()).decode()}

    def _read(self, params: Mapping[str, Any], listing: str) -> Key | None:
        token = params.get(self.member)
        if not token:
            return None
        try:
            values = json.loads(base64.urlsafe_b64decode(token.encode()))
        except (ValueError, RecursionError):
            values = None
        match values:
            case [str(name), *key] if name == listing and all(map(_is_sortable, key)):
                return tuple(key)
        raise self.invalid_token()


def _is_sortable(value: object) -> bool:
    """Return whether a part of a token can be compared in Python and in a database."""
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, int | float) and abs(value) < _MAX_NUMBER
