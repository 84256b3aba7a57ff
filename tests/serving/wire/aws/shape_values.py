"""Hypothesis strategies for values of botocore's shapes: types are right, constraints are ignored."""

from hypothesis import strategies as st

MAX_MEMBERS = 4
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
xml_texts = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")) | st.sampled_from("\t\n\r<>&'\""), max_size=6)
header_texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
moments = st.integers(0, 4_000_000_000_000).map(lambda milliseconds: milliseconds / 1000)

SCALARS = {
    "blob": st.binary(max_size=8),
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "timestamp": moments,
}


def values(shape, *, text=texts, min_size=0):
    """
    Values of a shape.

    Args:
        shape: from the model.
        text: strategy for strings in the body.
        min_size: of lists, maps and structures; forms cannot say that one is empty.
    """
    kind = shape.type_name
    if kind == "structure":
        return _structures(shape, text, min_size)
    if kind == "list":
        return st.lists(
            st.deferred(lambda: values(shape.member, text=text, min_size=min_size)), min_size=min_size, max_size=2
        )
    if kind == "map":
        of_values = st.deferred(lambda: values(shape.value, text=text, min_size=min_size))
        return st.dictionaries(text, of_values, min_size=min_size, max_size=2)
    return SCALARS.get(kind, text)


def _structures(shape, text, min_size):
    required = [name for name in shape.required_members if shape.members[name].serialization.get("location") == "uri"]
    names = sorted(shape.members)
    least, most = (1, 1) if getattr(shape, "is_tagged_union", False) else (min(min_size, len(names)), MAX_MEMBERS)
    chosen = st.lists(st.sampled_from(names), unique=True, min_size=least, max_size=most)
    return (chosen if names else st.just([])).flatmap(
        lambda picked: st.fixed_dictionaries(
            {name: _member(shape.members[name], text, min_size) for name in {*picked, *required}}
        )
    )


def _member(shape, text, min_size):
    if shape.serialization.get("location") in ("header", "uri"):
        return values(shape, text=header_texts)
    return st.deferred(lambda: values(shape, text=text, min_size=min_size))
