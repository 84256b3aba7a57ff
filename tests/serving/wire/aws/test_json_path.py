"""The JSONPath of batch transform's filters."""

from typing import Any

import pytest

from headrace.serving.wire.aws.json_path import JsonPathError, parse_json_path

RECORD = {"id": 7, "features": {"a b": [1, 2, 3], "c": [{"x": 1}, {"x": 2}]}}
ROW = ["1", "a", "2", "b", "3"]


@pytest.mark.parametrize(
    ("path", "value", "selected"),
    [
        ("$", RECORD, RECORD),
        ("$.id", RECORD, 7),
        ("$['id']", RECORD, 7),
        ('$.features["a b"]', RECORD, [1, 2, 3]),
        ("$.features.['a b', 'c'][0]", {"features": {"a b": 1, "c": 2}}, None),
        ("$['id','features']", RECORD, RECORD),
        ("$.features.c[*].x", RECORD, [1, 2]),
        ("$.features.c.*.x", RECORD, [1, 2]),
        ("$.features.c[0:].x", RECORD, [1, 2]),
        ("$[0]", ROW, "1"),
        ("$[-1]", ROW, "3"),
        ("$[1:]", ROW, ["a", "2", "b", "3"]),
        ("$[:-1]", ROW, ["1", "a", "2", "b"]),
        ("$[0,3:]", ROW, ["1", "b", "3"]),
        ("$[0, -1]", ROW, ["1", "3"]),
        ("$[9]", ROW, None),
        ("$.id", ROW, None),
        ("$[0]", RECORD, None),
    ],
)
def test_a_path_selects_as_the_guide_says_or_says_that_it_selects_nothing(path: str, value: Any, selected: Any) -> None:
    if selected is not None:
        assert parse_json_path(path).select(value) == selected
        return
    with pytest.raises(JsonPathError, match="selects nothing"):
        parse_json_path(path).select(value)


@pytest.mark.parametrize(
    "path", ["id", "$id", "$.", "$[", "$[]", "$[a]", "$[1:2:3]", "$['a' 'b']", "$..x", "$[?(@.x)]", "$[-]", "$.a b"]
)
def test_a_path_that_is_not_supported_is_refused(path: str) -> None:
    with pytest.raises(JsonPathError, match="is not a supported JSONPath"):
        parse_json_path(path)
