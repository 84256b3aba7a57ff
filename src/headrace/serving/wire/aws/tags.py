"""Tags of resources, whose rules all services share."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import MAX_TAGS


def merge_tags(
    given: Iterable[Mapping[str, str]] | Mapping[str, str] | None,
    refuse: Callable[[str], AwsError],
    *,
    before: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """
    Return the tags of a resource with those of a call, which are a list of `Key` and `Value`, or a mapping.

    Raises `AwsError`, made by `refuse`: a key is given twice or begins with `aws:`, or there are too many tags.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [(tag["Key"], tag["Value"]) for tag in given or ()]
    added: dict[str, str] = {}
    for key, value in pairs:
        if key in added:
            raise refuse(f"Duplicate tag keys found: {key}. Tag keys are unique.")
        if key.lower().startswith("aws:"):
            raise refuse(f"The tag key {key} begins with aws:, which is reserved. Choose another one.")
        added[key] = value
    tags = {**before, **added}
    if len(tags) > MAX_TAGS:
        raise refuse(f"The resource would have {len(tags)} tags; expected at most {MAX_TAGS}.")
    return tags


def list_tags(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return tags as most services list them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
