"""Pages of AWS's list operations. Pure."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.wire.aws.errors import AwsError

_T = TypeVar("_T")

Key = tuple[str | float, ...]


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

        The token holds the key of the page's last item, so that pages stay right while items come and go.

        Args:
            items: All items that fit the filters.
            params: The request's parameters.
            listing: Identifies the list and its order.
            key: Unique for each item.
            size: Number of items on a page.
            is_descending: Order by descending keys.

        Raises:
            AwsError: The token does not belong to this list.
        """
        ordered = sorted(items, key=key, reverse=is_descending)
        if (last := self._read(params, listing)) is not None and ordered:
            if not _is_comparable(last, key(ordered[0])):
                raise self.invalid_token()
            ordered = [item for item in ordered if (key(item) < last if is_descending else key(item) > last)]
        chosen = ordered[:size]
        return chosen, self._token(listing, key(chosen[-1])) if len(ordered) > size else {}

    def begin(self, params: Mapping[str, Any], *, listing: str) -> int:
        """
        Return the offset at which a page begins, for lists whose items have no key; see `token_at`.

        Raises:
            AwsError: The token does not belong to this list.
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
            case [str(name), *key] if name == listing and all(isinstance(value, str | int | float) for value in key):
                return tuple(key)
        raise self.invalid_token()


def _is_comparable(key: Key, other: Key) -> bool:
    return [isinstance(value, str) for value in key] == [isinstance(value, str) for value in other]
