"""
Blocks of calls in the forms of `core.answer_format.call_forms`: tags for each argument, headers, or other notations.

As for calls in JSON, a block is decided once, on its complete text: it is calls of known functions, or text.
"""

from collections.abc import Mapping
from typing import Final

from headrace.core.answer_format.call_forms import (
    CALL_STARTS,
    CDATA,
    FORMS,
    TEXT_KINDS,
    CallForm,
    EnclosedForm,
    HeadedForm,
    TaggedForm,
    marker_of,
)
from headrace.serving.wire.framing import to_json
from headrace.serving.wire.openai.literals import Malformed, Unfinished, read_calls
from headrace.serving.wire.openai.nested_tags import nested_calls
from headrace.serving.wire.openai.raw_values import Parameters, argument_json
from headrace.serving.wire.openai.text_reader import EndOfText, Reading, TextReader
from headrace.serving.wire.openai.tool_calls import BlockState, Call, JsonScan, read_arguments

_FORMS_OF: Final = {start: tuple(form for form in FORMS if marker_of(form) == start) for start in CALL_STARTS}
_BEGINS_ENTRY: Final = frozenset("<_.-")
"""Characters besides letters and digits with which such a form goes on after `<tool_call>`; JSON begins otherwise."""
_FENCED: Final = "function"
"""A header after which the name and the arguments, in a code block, follow."""
_FENCE: Final = "```json"
_FENCE_END: Final = "```"


def is_marked(start: str, next_character: str) -> bool:
    """Return whether a block is in one of these forms, by its marker and the next character that is no white space."""
    forms = _FORMS_OF[start]
    if len(forms) < 2:
        return bool(forms)
    return next_character.isalnum() or next_character in _BEGINS_ENTRY


class MarkedBlock:
    """A block of calls that begins with a marker; its outcome does not depend on how the text was split."""

    def __init__(self, start: str, names: frozenset[str], parameters: Parameters) -> None:
        """Begin in front of the marker `start`."""
        self.state = BlockState.OPEN
        self.calls: list[Call] = []
        self._names = names
        self._parameters = parameters
        self._reader = TextReader()
        self._steps = self._read(_FORMS_OF[start])

    @property
    def raw(self) -> str:
        """All text that the block has consumed."""
        return self._reader.taken

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Read as far as the text is determined; return the rest."""
        self._reader.rest = text
        self._reader.is_last = is_last
        try:
            next(self._steps)
        except StopIteration as end:
            self.calls = end.value
            self.state = BlockState.CALLS
        except (Malformed, EndOfText):
            self.state = BlockState.TEXT
        return self._reader.rest

    def _read(self, forms: tuple[CallForm, ...]) -> Reading[list[Call]]:
        form = forms[0]
        yield from self._reader.has(marker_of(form))
        if len(forms) > 1:  # they differ in what follows
            yield from self._reader.space()
            openings = {form.call: form for form in forms if isinstance(form, TaggedForm)}
            found = yield from self._reader.comes(*filter(None, openings))
            form = openings[found or ""]
        if isinstance(form, TaggedForm):
            calls = yield from _tagged(self._reader, form, self._parameters)
        elif isinstance(form, HeadedForm):
            calls = yield from _headed(self._reader, form)
        else:
            calls = yield from _enclosed(self._reader, form, self._parameters)
        if not all(call.name in self._names for call in calls):
            raise Malformed
        return calls


def _tagged(reader: TextReader, form: TaggedForm, parameters: Parameters) -> Reading[list[Call]]:
    """Read the calls of a block after its marker, which may be the beginning of the first call."""
    calls: list[Call] = []
    is_begun = not form.start
    while True:
        if not is_begun:
            yield from reader.space()
            yield from _expect(reader, form.call)
        calls.append((yield from _tagged_call(reader, form, parameters)))
        if not form.end:
            return calls
        found = yield from _next_in_block(reader, form.call, form.end, needs_end=bool(form.start))
        if found != form.call:
            return calls
        is_begun = False


def _next_in_block(reader: TextReader, call: str, end: str, *, needs_end: bool) -> Reading[str | None]:
    """Return the next call's beginning, which is not read; None: the block has ended, and its end is read."""
    if (yield from reader.comes(call, after_space=True)):
        return call
    found = yield from reader.comes(end, *CALL_STARTS, after_space=True)
    if found == end:
        yield from reader.space()
        yield from reader.has(end)
    elif found is None and needs_end and not _is_cut(reader, end):
        raise Malformed
    return None


def _is_cut(reader: TextReader, end: str) -> bool:
    """Return whether the answer ends before or within the end of a block, whose calls are complete."""
    return reader.is_last and end.startswith(reader.rest.strip())


def _tagged_call(reader: TextReader, form: TaggedForm, parameters: Parameters) -> Reading[Call]:
    name = yield from reader.word()
    yield from _expect(reader, form.name_end)
    yield from reader.space()
    if name and (yield from reader.comes("{")):
        return Call(name, (yield from _json_arguments(reader, form.call_end)))
    schema = parameters.get(name, {})
    values: dict[str, str] = {}
    while True:
        yield from reader.space()
        found = yield from reader.has(form.key, form.call_end)
        if not name or found is None:
            raise Malformed
        if found == form.call_end:
            return Call(name, _object(values))
        key = yield from reader.until(form.key_end)
        is_text = yield from _is_text(reader, form)
        if form.value:
            yield from reader.space()
            yield from _expect(reader, form.value)
        if key in values:
            raise Malformed
        text = yield from _value(reader, form)
        values[key] = to_json(text).decode() if is_text else argument_json(text, schema, key)


def _is_text(reader: TextReader, form: TaggedForm) -> Reading[bool]:
    """Read the attribute with the type of a value; return whether it makes the value a string."""
    if not form.kind or (yield from reader.has(form.kind)) is None:
        return False
    return (yield from reader.until('"')) in TEXT_KINDS


def _value(reader: TextReader, form: TaggedForm) -> Reading[str]:
    """Read a value up to the end that another argument or the end of the call follows; others are part of it."""
    pieces: list[str] = []
    while True:
        pieces.append((yield from reader.until(form.value_end)))
        if (yield from reader.comes(form.key, form.call_end, after_space=True)):
            break
        pieces.append(form.value_end)
    text = "".join(pieces)
    if text.startswith(CDATA[0]) and text.endswith(CDATA[1]):
        return text.removeprefix(CDATA[0]).removesuffix(CDATA[1])
    return text.removeprefix("\n").removesuffix("\n") if form.has_lines else text


def _object(values: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{to_json(name).decode()}: {value}' for name, value in values.items())}}}"


def _headed(reader: TextReader, form: HeadedForm) -> Reading[list[Call]]:
    calls: list[Call] = []
    is_begun = not form.start
    while True:
        if not is_begun:
            yield from reader.space()
            found = yield from reader.has(form.call)
            if found is None and calls:  # R1's distillations leave it out in front of the first call
                raise Malformed
        calls.append((yield from _headed_call(reader, form)))
        found = yield from _next_in_block(reader, form.call, form.end, needs_end=bool(form.start))
        if found != form.call:
            return calls
        is_begun = False


def _headed_call(reader: TextReader, form: HeadedForm) -> Reading[Call]:
    """Read the header, which is the name, `functions.NAME:NUMBER` (Kimi) or `function` (DeepSeek V3), and arguments."""
    if form.name:
        yield from reader.until(form.name)
    header = (yield from reader.until(form.arguments)).strip()
    name, _, number = header.removeprefix("functions.").rpartition(":")
    if not number.isdecimal():
        name = header
    yield from reader.space()
    if name != _FENCED or (yield from reader.comes("{")):
        return Call(name, (yield from _json_arguments(reader, form.call_end)))
    name = yield from reader.until(_FENCE)
    return Call(name.strip(), (yield from _json_arguments(reader, form.call_end)))


def _json_arguments(reader: TextReader, end: str) -> Reading[str]:
    """Read an object up to a marker, which may be in its strings, and over a code fence in front of that."""
    text = yield from reader.until(end)
    while not _is_whole(text):
        text += end + (yield from reader.until(end))
    arguments = read_arguments(text.rstrip().removesuffix(_FENCE_END))
    if arguments is None:
        raise Malformed
    return arguments


def _is_whole(text: str) -> bool:
    """Return whether JSON has ended or is broken, so that a marker after it is none of its text."""
    scan = JsonScan()
    scan.feed(text, 0)
    return scan.is_closed or scan.is_stopped or not text.strip()


def _enclosed(reader: TextReader, form: EnclosedForm, parameters: Parameters) -> Reading[list[Call]]:
    if form.notation == "nested":
        return nested_calls((yield from reader.until(form.end)), parameters)
    text = ""
    while True:
        try:
            text += yield from reader.until(form.end)
        except EndOfText as end:  # brackets tell whether the calls are complete
            return read_calls(text + end.text, form.notation)
        try:
            return read_calls(text, form.notation)
        except Unfinished:  # the marker is in a string
            text += form.end


def _expect(reader: TextReader, text: str) -> Reading[None]:
    if text and (yield from reader.has(text)) is None:
        raise Malformed
