"""The error tree has one root, and its docstring shows it as it is."""

import re

from headrace.core import errors
from headrace.core.errors import HeadraceError
from headrace.serving.wire.aws.errors import AwsError


def _drawn() -> list[tuple[int, str]]:
    """Depth and name of each class in the module's drawing."""
    rows = re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    return [(len(indent) // 4, name) for indent, name in rows]


def _defined() -> dict[str, int]:
    classes = [*vars(errors).values(), AwsError]
    kinds = [kind for kind in classes if isinstance(kind, type) and issubclass(kind, HeadraceError)]
    return {kind.__name__: kind.__mro__.index(HeadraceError) for kind in kinds}


def test_the_class_tree_in_the_docstring_matches_the_classes():
    assert sorted(_drawn(), key=str) == sorted(((depth, name) for name, depth in _defined().items()), key=str)


def test_an_aws_error_is_caught_as_one_of_ours():
    error = AwsError("ValidationException", "Could not find endpoint.")

    assert isinstance(error, HeadraceError)
    assert (error.code, error.http_status, str(error)) == ("ValidationException", 400, "Could not find endpoint.")
