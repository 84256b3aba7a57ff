"""Inputs that are too long are truncated on the side that the request names."""

import pytest

from headrace.inference.engine.service.pooled_inputs import Side, cut, encode_input
from tests.inference.engine.support import byte_tokenizer


@pytest.mark.parametrize(
    ("most", "side", "expected"),
    [
        (2, "right", (1, 2)),
        (2, "left", (2, 3)),
        (0, "right", ()),
        (0, "left", ()),
        (3, "left", (1, 2, 3)),
        (2, None, (1, 2, 3)),
    ],
)
def test_tokens_are_cut_on_one_side(most: int, side: Side | None, expected: tuple[int, ...]) -> None:
    assert cut((1, 2, 3), most, side) == expected


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_document_without_room_beside_its_query_is_left_out(side: Side) -> None:
    tokens = encode_input(byte_tokenizer(), "query", "document", "{query}: {document}.", most=8, side=side)
    assert bytes(tokens.ids) == b"query: ."
