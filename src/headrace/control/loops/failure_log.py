"""What goes wrong in passes over the store: told once for as long as it is the same."""

from headrace.control.model.kinds import ENDPOINT, INFERENCE_COMPONENT
from headrace.control.model.reading import UnreadableRecord
from headrace.core.telemetry import get_logger
from headrace.state.records import RawRecord

WORDS = {ENDPOINT: "endpoint", INFERENCE_COMPONENT: "component"}
"""What the log calls them."""


class Faults:
    """Of endpoints and components, and of whole passes."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """By the uid of the endpoint or component; of a whole pass by an empty one."""
        self._log = get_logger()

    def note(self, record: RawRecord | None, error: Exception) -> None:
        """Log what went wrong with an endpoint or a component; None: with a whole pass."""
        uid = record.uid if record is not None else ""
        if self._known.get(uid) == repr(error):
            return
        self._known[uid] = repr(error)
        whose = {WORDS[record.kind]: record.name} if record is not None else {}
        if isinstance(error, UnreadableRecord):
            self._log.error("record.unreadable", **whose, reason=str(error))
        else:
            self._log.error("reconciler.failed", **whose, exc_info=error)

    def clear(self, record: RawRecord | None) -> None:
        """It went well."""
        self._known.pop(record.uid if record is not None else "", None)
