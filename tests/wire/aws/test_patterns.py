"""Java's regular expressions of the models, in Python."""

import re
import warnings

import pytest

from headrace.wire.aws import services, validation


def all_patterns():
    found = set()
    for service in services.MODELLED:
        model = services.model(service)
        for name in model.shape_names:
            found.add(model.shape_for(name).metadata.get("pattern"))
    return sorted(found - {None})


def test_every_pattern_of_every_model_compiles_without_a_warning():
    found = all_patterns()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pattern in found:
            assert isinstance(validation.compiled(pattern), re.Pattern)
    assert len(found) > 300


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "Zoë 東京 ٣ a_b.c:d/e=f+g-h@i", True),
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "a;b", False),
        (r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*", "a\nb", False),
        (r"([\p{L}\p{Z}\p{N}_.:\/=+\-@]*)${1,128}", "a b", True),
        (r"[\p{L}\p{M}\p{Z}\p{S}\p{N}\p{P}]*", "a+b, é€ 🙂!", True),
        (r"[\p{L}\p{M}\p{Z}\p{S}\p{N}\p{P}]*", "a\x00", False),
        (r"\p{ASCII}*", "abc\n", True),
        (r"\p{ASCII}*", "é", False),
        (r"\A\S[\p{Print}]*\z", "a b", True),
        (r"\A\S[\p{Print}]*\z", " ab", False),
        (r"\A\S[\p{Print}]*\z", "ab\n", False),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*", "a\t🙂", True),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*", "\x01", False),
        (r"[\u0009\u000A\u000D\u0020-\u007E\u0085\u00A0-\uD7FF\uE000-\uFFFD\u10000-\u10FFFF]+", "a🙂", True),
        (r"[\w-_]*", "a-b_c", True),
        (r"\d{12}", "123456789012", True),
        (r"\d{12}", "١٢٣٤٥٦٧٨٩٠١٢", False),
        (r"[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?", "a-b--c", True),
        (r"[a-z0-9]([-a-z0-9]*[a-z0-9]){0,39}?", "a" * 60 + "!", False),
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", "a--b", True),
        (r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", "ab-", False),
    ],
)
def test_a_pattern_means_what_it_means_in_java(pattern, text, matches):
    assert bool(validation.compiled(pattern).fullmatch(text)) is matches


def test_a_pattern_that_only_java_supports_is_not_checked():
    assert validation.compiled(r"(?<name>x)") is None


NEARLY = ["a", "a-", "-", "1.", "a/", ":", " a", "arn:aws:"]


def test_texts_that_nearly_match_are_refused_fast():
    """A name must not keep a server busy: with catastrophic backtracking this test would not end."""
    for service in services.MODELLED:
        model = services.model(service)
        for shape in (model.shape_for(name) for name in model.shape_names):
            if "pattern" in shape.metadata:
                size = min(2 * shape.metadata.get("max", 5000), 10_000)
                for part in NEARLY:
                    text = "a" + (part * size)[: max(0, size - 2)] + "\x00"
                    validation.compiled(shape.metadata["pattern"]).fullmatch(text)
