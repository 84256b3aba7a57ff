"""
The log streams of a platform, and the filter patterns that select lines.

Filter patterns consist of words, "quoted words", ?alternatives and -exclusions, or are for JSON (`{ ... }`). Patterns
for columns (`[ ... ]`) and regular expressions (`%...%`) are refused by name rather than misinterpreted.
Source: CloudWatch Logs user guide, "Filter pattern syntax".
"""

import re
from dataclasses import dataclass

from headrace.platform.cluster.log_streams import LogStream
from headrace.platform.control.api.context import CallContext
from headrace.platform.control.api.json_patterns import BadPattern, JsonFilter, read_json_pattern
from headrace.platform.control.model.worker import WORKER
from headrace.platform.state.records import Record
from headrace.serving.wire.aws.errors import AwsError

_TERM = re.compile(r'(?P<sign>[?-]?)(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))')


def all_streams(context: CallContext) -> list[LogStream]:
    """Return the streams of all running and ended workers, oldest first."""
    found = {
        log: LogStream(
            worker=log,
            group=record.spec.log_group,
            name=stream,
            created_ms=int(record.created_s * 1000),
        )
        for record in context.store.each(WORKER)
        if isinstance(record, Record)
        for log, stream in record.spec.logs(record.name).items()
    }
    for ended in context.logs.ended():  # after the records: else a worker that ends in between is in neither
        found.setdefault(
            ended.worker,
            LogStream(
                worker=ended.worker,
                group=ended.log_group,
                name=ended.log_stream,
                created_ms=ended.created_ms,
                is_ended=not ended.is_open,
                is_open=ended.is_open,
                times_ms=None if ended.is_open else (ended.first_ms, ended.last_ms),
                ended_ms=ended.ended_ms,
            ),
        )
    return sorted(found.values(), key=lambda stream: stream.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def fits(self, line: str) -> bool:
        """Return whether a line matches; case matters."""
        if any(term in line for term in self.none_of) or not all(term in line for term in self.all_of):
            return False
        return not self.any_of or bool(self.all_of) or any(term in line for term in self.any_of)


def read_pattern(pattern: str) -> LineFilter | JsonFilter:
    """Parse a `filterPattern`. Raises `AwsError`: InvalidParameterException, for an unsupported kind of pattern."""
    text = pattern.strip()
    if text.startswith("{"):
        try:
            return read_json_pattern(text)
        except BadPattern as error:
            raise _invalid(pattern, str(error)) from None
    if text[:1] in ("[", "%"):
        kinds = 'words, "quoted words", ?alternatives, -exclusions and { patterns for JSON }'
        raise _invalid(pattern, f"only {kinds} are supported by Headrace")
    terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
    for found in _TERM.finditer(text):
        quoted = found["quoted"]
        word = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else found["plain"]
        if word:
            terms[found["sign"]].append(word)
    return LineFilter(all_of=tuple(terms[""]), any_of=tuple(terms["?"]), none_of=tuple(terms["-"]))


def _invalid(pattern: str, why: str) -> AwsError:
    return AwsError("InvalidParameterException", f"Invalid filter pattern {pattern!r}: {why}.")
