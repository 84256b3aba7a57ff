"""
The filters and the join of `DataProcessing`: the part of a record that is sent, and of its answer that is kept. Pure.

Lines of CSV are arrays of text to a filter. Source: SageMaker developer guide, "Associate Prediction Results with Input
Records".
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.platform.state.records import Json
from headrace.serving.wire.aws.json_path import JsonPath, JsonPathError, parse_json_path


class ProcessingFailed(Exception):
    """A record cannot be filtered or joined; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    input_filter: JsonPath
    output_filter: JsonPath
    joins: bool
    is_csv: bool
    is_by_line: bool
    """Each line of a request, and of its answer, is a record."""

    @classmethod
    def of(cls, members: Json, *, is_multi_record: bool) -> "Processing":
        """Read the members of CreateTransformJob. Raises `JsonPathError`."""
        processing, source = members.get("DataProcessing") or {}, members["TransformInput"]
        content_type = source.get("ContentType", "").partition(";")[0].strip().lower()
        is_lines = "jsonlines" in content_type or content_type.endswith("/csv")
        return cls(
            input_filter=parse_json_path(processing.get("InputFilter") or "$"),
            output_filter=parse_json_path(processing.get("OutputFilter") or "$"),
            joins=processing.get("JoinSource", "None") == "Input",
            is_csv=content_type.endswith("/csv"),
            is_by_line=is_lines or (is_multi_record and source.get("SplitType") == "Line"),
        )

    def request(self, body: bytes) -> bytes:
        """Return the body of a request without what the input filter leaves out. Raises `ProcessingFailed`."""
        if self.input_filter.is_root:
            return body
        return self._join([self._filtered(record, self.input_filter) for record in self._records(body, "input")])

    def result(self, body: bytes, answer: bytes) -> bytes:
        """Return what is kept of the answer to a request with a body. Raises `ProcessingFailed`."""
        if not self.joins and self.output_filter.is_root:
            return answer
        outputs = self._records(answer, "output")
        if self.joins:
            inputs = self._records(body, "input")
            if len(inputs) != len(outputs):
                raise ProcessingFailed(
                    "Fail to join data: mismatched line count between the input and the output "
                    f"({len(inputs)} and {len(outputs)})."
                )
            join = _with_columns if self.is_csv else _with_output
            outputs = [join(*pair) for pair in zip(inputs, outputs, strict=True)]
        return self._join([self._filtered(output, self.output_filter) for output in outputs])

    def _records(self, content: bytes, what: str) -> Sequence[Any]:
        try:
            text = content.decode()
            lines = [line for line in text.splitlines() if line.strip()] if self.is_by_line else [text]
            return list(csv.reader(lines)) if self.is_csv else [json.loads(line) for line in lines]
        except (ValueError, RecursionError, csv.Error) as error:
            kind = "CSV" if self.is_csv else "JSON"
            raise ProcessingFailed(f"Fail to read the {what} as {kind}: {error}.") from None

    def _filtered(self, record: Any, path: JsonPath) -> str:
        try:
            chosen = path.select(record)
        except JsonPathError as error:
            raise ProcessingFailed(f"Fail to filter a record: {error}.") from None
        if not self.is_csv:
            return json.dumps(chosen, ensure_ascii=False, separators=(",", ":"))
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(chosen if isinstance(chosen, list) else [chosen])
        return line.getvalue()

    def _join(self, lines: Sequence[str]) -> bytes:
        return "".join(f"{line}\n" for line in lines).encode() if self.is_by_line else "".join(lines).encode()


def _with_columns(record: list[str], output: list[str]) -> Any:
    return [*record, *output]


def _with_output(record: Any, output: Any) -> Any:
    """Return JSON with its output: as a member of an object, or else an object of both."""
    own = record if isinstance(record, dict) else {"SageMakerInput": record}
    return {**own, "SageMakerOutput": output}
