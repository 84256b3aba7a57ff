"""
The log, and the record of a request that is logged and counted (`core.metrics`).

Logging uses structlog: events are `noun.verb` in the past tense, facts are keys with units. Each request has one line
at its end (`log_request`); prompts are logged only if a setting says so.
"""

import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO, cast

# structlog imports rich for coloured tracebacks, which this log does not have: 4 MB and 0.1 s in each process.
_HAS_RICH = "rich" in sys.modules
if not _HAS_RICH:
    sys.modules["rich"] = cast("Any", None)
import structlog  # noqa: E402

if not _HAS_RICH:
    del sys.modules["rich"]

from headrace.core.client_text import escaped  # noqa: E402
from headrace.core.errors import Unavailable  # noqa: E402

_MAX_MESSAGE_CHARACTERS = 1000
_chosen = ("auto", "info")
"""Format and level of the last `setup_logging`; a process has one log."""
_SECRET_MARKS = ("api_key", "authorization", "token=", "password", "secret")


def setup_logging(*, format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:  # noqa: A002
    """
    Send events of Headrace and its libraries to `stream` (stderr by default).

    Args:
        format: `console` for people, `json` for machines (one object a line), `auto`: `console` on a terminal.
        level: the lowest level that is logged.
        stream: the output.
    """
    global _chosen  # noqa: PLW0603
    target = stream or sys.stderr
    is_console = format == "console" or (format == "auto" and target.isatty())
    _chosen = ("console" if is_console else "json", level)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_console else "iso", utc=not is_console),
        mask_secrets,
        shorten_outages,
    ]
    if is_console:
        shared.append(escape_control_characters)
    renderer: structlog.typing.Processor = (
        ConsoleRenderer(is_colored=target.isatty()) if is_console else structlog.processors.JSONRenderer()
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    tracebacks = [] if is_console else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, *tracebacks, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # one write for a line: several processes share the log
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _LossyOutput(target))),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=[*shared, *tracebacks])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


class _LossyOutput:
    """An output that drops lines which cannot be written: a full disk must not fail the requests they are about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def log_options() -> tuple[str, str]:
    """Return the format and the level of the log, for processes that this one starts."""
    return _chosen


def get_logger() -> Any:
    """Return the logger that `setup_logging` configured."""
    return structlog.get_logger()


def shorten_outages(_logger: object, _method: str, event: Any) -> Any:
    """Replace the traceback of what is unavailable now, such as a database that restarts, by its message."""
    raised = event.get("exc_info")
    error = raised if isinstance(raised, BaseException) else sys.exception() if raised else None
    if isinstance(error, Unavailable):
        del event["exc_info"]
        event.setdefault("message", error.message)
    return event


def mask_secrets(_logger: object, _method: str, event: Any) -> Any:
    """Replace the values of keys that name a secret."""
    for key in event:
        if any(mark in key.lower() for mark in _SECRET_MARKS):
            event[key] = "***"
    return event


def escape_control_characters(_logger: object, _method: str, event: Any) -> Any:
    """Escape line ends and other control characters, so that a client's text cannot forge a log line."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            event[key] = escaped(value)
    return event


class ConsoleRenderer:
    """structlog's format, but what another program has printed (`line`) is shown as that program printed it."""

    def __init__(self, *, is_colored: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(
            colors=is_colored, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
        )

    def __call__(self, logger: Any, method: str, event: Any) -> str:
        if "line" not in event:
            return str(self._render(logger, method, event))
        source = " ".join(str(event[key]) for key in ("timestamp", "model", "pid") if event.get(key))
        return f"{source} | {event['line']}"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The facts of one request, logged and counted at its end. Times are seconds of a monotonic clock."""

    request_id: str
    route: str
    dialect: str
    started_s: float
    stream: bool = False
    status: int = 0
    """The HTTP status; 499 when the client went away before the first byte."""
    parsed_s: float | None = None
    """Time at which the body had been parsed."""
    queue_s: float | None = None
    """Longest time that a choice waited for its first step."""
    first_s: float | None = None
    """Time of the first chunk."""
    last_s: float = 0.0
    """Time of the last chunk."""
    ended_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    max_new_tokens: int | None = None
    finish: str | None = None
    """The last finish reason, or `disconnected` or `error`."""
    finish_reasons: tuple[str, ...] = ()
    """The finish reasons of all choices, as they ended."""
    error: str | None = None
    """The code of the error in the response, if any."""
    message: str | None = None
    ignored: tuple[str, ...] = ()
    prompts: tuple[str, ...] | None = None
    """None unless prompts are logged."""
    answer: str | None = None
    """None unless prompts are logged."""

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def total_s(self) -> float:
        """Time from the request's head to the last byte of the response."""
        return self.ended_s - self.started_s


def log_request(logger: Any, record: RequestRecord) -> None:
    """Log a request in one line: an error if the server failed, a warning if the caller did."""
    facts: dict[str, object] = {
        "request_id": record.request_id,
        "route": record.route,
        "dialect": record.dialect,
        "status": record.status,
        "stream": record.stream,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "ttft_ms": None if record.ttft_s is None else round(record.ttft_s * 1e3, 1),
        "total_ms": round(record.total_s * 1e3, 1),
        "finish": record.finish,
    }
    optional = {
        "error": record.error,
        "message": record.message and record.message[:_MAX_MESSAGE_CHARACTERS],
        "ignored_fields": record.ignored,
        "prompts": record.prompts,
        "answer": record.answer,
    }
    facts |= {name: value for name, value in optional.items() if value}
    level = logger.error if record.status >= 500 else logger.warning if record.error else logger.info
    level("request.finished", **facts)
