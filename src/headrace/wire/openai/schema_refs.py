"""
Moving of a JSON schema into another one, so that each of its references leads to the same schema as before.

References are resolved as JSON Schema says (`$id`, `$anchor`, relative URIs, pointers) and written as pointers from the
root of the new document. Several schemas may therefore have the same ids and anchors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urldefrag, urljoin

_BASE: Final = "https://schema.invalid/"
"""The URI of a schema without an id."""
_LITERALS: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, in which nothing is a reference."""
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords with schemas by name; a name is no keyword."""


@dataclass(slots=True)
class _Places:
    """The pointers of the schemas that have names of their own."""

    draft: str
    """The value of `$schema`."""
    resources: dict[str, str] = field(default_factory=dict)
    """By URI, without a fragment."""
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    """By URI and name."""

    def add(self, schema: Mapping[str, Any], base: str, pointer: str) -> None:
        """Add the names of a schema, whose URI is `base`."""
        self.resources.setdefault(base, pointer)
        anchor = schema.get("$anchor")
        own_id = schema.get(self.id_key)
        if "draft-0" in self.draft and isinstance(own_id, str) and own_id.startswith("#"):
            anchor = own_id[1:]  # as drafts up to 7 write it
        if isinstance(anchor, str):
            self.anchors.setdefault((base, anchor), pointer)

    @property
    def id_key(self) -> str:
        """The keyword of ids."""
        return "id" if "draft-04" in self.draft else "$id"

    def base_of(self, schema: Mapping[str, Any], base: str) -> str:
        """Return the URI to which the references in a schema are relative."""
        name = schema.get(self.id_key)
        return urldefrag(_resolved(name, base))[0] if isinstance(name, str) else base

    def pointer(self, reference: str, base: str) -> str | None:
        """Return the pointer to which a reference leads; None: out of the schema, or to nothing."""
        uri, fragment = urldefrag(_resolved(reference, base))
        if fragment and not fragment.startswith("/"):
            return self.anchors.get((uri, fragment))
        start = self.resources.get(uri)
        return None if start is None else start + fragment


def moved_schema(schema: Mapping[str, object], place: str) -> dict[str, Any]:
    """
    Return a schema as it must be written at a place of another document.

    Args:
        schema: a whole JSON schema.
        place: a pointer as a fragment, such as `#/$defs/name`.
    """
    places = _Places(draft=str(schema.get("$schema")))
    _find(schema, _BASE, place, places)
    moved: dict[str, Any] = _moved(schema, _BASE, places)
    return moved


def _find(value: Any, base: str, pointer: str, places: _Places, *, is_map: bool = False) -> None:
    """Collect the named schemas inside a value."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            _find(item, base, f"{pointer}/{number}", places)
    if not isinstance(value, dict):
        return
    if not is_map:
        base = places.base_of(value, base)
        places.add(value, base, pointer)
    for key, item in value.items():
        if is_map or key not in _LITERALS:
            step = quote(key.replace("~", "~0").replace("/", "~1"))
            _find(item, base, f"{pointer}/{step}", places, is_map=not is_map and key in _MAPS)


def _moved(value: Any, base: str, places: _Places, *, is_map: bool = False) -> Any:
    if isinstance(value, list):
        return [_moved(item, base, places) for item in value]
    if not isinstance(value, dict):
        return value
    if is_map:
        return {key: _moved(item, base, places) for key, item in value.items()}
    base = places.base_of(value, base)
    moved = {}
    for key, item in value.items():
        if key == "$ref" and isinstance(item, str):
            moved[key] = places.pointer(item, base) or item
        elif key in _LITERALS:
            moved[key] = item
        elif key != "$anchor" and not (key == places.id_key and isinstance(item, str)):
            moved[key] = _moved(item, base, places, is_map=key in _MAPS)
    return moved


def _resolved(reference: str, base: str) -> str:
    return base + reference if reference.startswith("#") else urljoin(base, reference)
