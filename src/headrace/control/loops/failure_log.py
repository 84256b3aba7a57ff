"""The log of failures in passes over the store: each one is logged once, as long as it stays the same."""

from headrace.control.model.component import INFERENCE_COMPONENT
from headrace.control.model.endpoint import ENDPOINT
from headrace.control.model.names import unreadable_message
from headrace.core.telemetry import get_logger
from headrace.state.records import AnyKind, Record, Unreadable

LOG_NAMES: dict[AnyKind, str] = {ENDPOINT: "endpoint", INFERENCE_COMPONENT: "component"}
"""Names of the kinds in log events."""


class FailureLog:
    """The last failure of each endpoint and component, and of the whole pass."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """By the uid of the record; empty for a whole pass."""
        self._log = get_logger()

    def note(self, record: Record[object, object] | Unreadable | None, error: Exception) -> None:
        """Log a failure of an endpoint or a component, or with None of a whole pass."""
        if self._is_news(record, repr(error)):
            self._log.error("reconciler.failed", **_named(record), exc_info=error)

    def note_unreadable(self, record: Unreadable) -> None:
        """Log that a record cannot be decoded."""
        if self._is_news(record, record.reason):
            self._log.error("record.unreadable", **_named(record), reason=unreadable_message(record))

    def clear(self, record: Record[object, object] | Unreadable | None) -> None:
        """Forget the failure of a record that was reconciled without one."""
        self._known.pop(record.uid if record is not None else "", None)

    def _is_news(self, record: Record[object, object] | Unreadable | None, failure: str) -> bool:
        uid = record.uid if record is not None else ""
        is_news = self._known.get(uid) != failure
        self._known[uid] = failure
        return is_news


def _named(record: Record[object, object] | Unreadable | None) -> dict[str, str]:
    return {LOG_NAMES[record.kind]: record.name} if record is not None else {}
