"""LMI's whole answers, and the selection of a stream renderer."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.answers import Answer
from headrace.wire.dialect import StreamRenderer, Timings
from headrace.wire.framing import JSON_CONTENT_TYPE, JSONLINES_CONTENT_TYPE, SSE_CONTENT_TYPE
from headrace.wire.lmi.streams import FragmentStream, LineStream
from headrace.wire.lmi.tokens import LmiOptions, spaced_json

_CONTENT_TYPES = {"json": JSON_CONTENT_TYPE, "jsonlines": JSONLINES_CONTENT_TYPE, "sse": SSE_CONTENT_TYPE}


@dataclass(frozen=True, slots=True)
class LmiReply:
    """Renders one answer in LMI's format."""

    options: LmiOptions

    @property
    def content_type(self) -> str:
        """DJL's content type for the formatter."""
        return _CONTENT_TYPES[self.options.form] if self.options.stream else JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return no headers."""
        del timings
        return ()

    def stream(self) -> StreamRenderer:
        """Return a renderer of fragments of one JSON object (0.25, 0.26), or of one object per token."""
        return FragmentStream(self.options) if self.options.form == "json" else LineStream(self.options)

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body: an object, or a list of objects for a list of inputs."""
        objects = [self._object(answer, request) for request, answer in enumerate(answers)]
        is_list = self.options.is_batch or self.options.in_array
        body = spaced_json(objects if is_list else objects[0])
        return body + b"\n" if self.options.version == "17" else body

    def _object(self, answer: Answer, request: int) -> dict[str, object]:
        best, *others = answer.best_first()
        prefix = self.options.prefix(request)
        written: dict[str, object] = {"generated_text": prefix + best.text}
        if self.options.details or others:
            details = self.options.sequence_details(best, answer.prompt, request)
            if others:
                details["best_of_sequences"] = [
                    {
                        **self.options.sequence_details(other, answer.prompt, request),
                        "generated_text": prefix + other.text,
                    }
                    for other in others
                ]
            written["details"] = details
        return written
