"""
Whether a worker's record can be understood. Pure.

Worker records are the reconciler's own. One that another version of Headrace wrote, or that somebody has edited, is
dropped: its process is then one that nobody knows, and is ended, and another worker takes its place.
"""

import msgspec

from headrace.control.model.worker_records import view_worker
from headrace.control.planning.placement import read_need
from headrace.state.records import RawRecord

_BROKEN = (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError)
"""What reading JSON of another form raises."""
_TEXTS = ("endpoint", "endpoint_uid", "variant", "log_group", "log_stream")
_TEXTS_OF_COPIES = ("component", "component_uid", "instance")


def unreadable_reason(record: RawRecord) -> str:
    """What is wrong with it, in a few words; empty: nothing."""
    spec = record.spec
    names = (*_TEXTS, *_TEXTS_OF_COPIES) if "component" in spec else _TEXTS
    try:
        odd = [name for name in names if not isinstance(spec[name], str)]
        if odd or not isinstance(spec["generation"], int):
            return f"not what it should be: {', '.join(odd) or 'generation'}"
        if "component" in spec:
            read_need({"ComputeResourceRequirements": spec["requirements"]})
        view = view_worker(record)
        times = (view.phase_since_s, view.ready_s, view.stopping_s, view.failed_s)
        if not all(one is None or isinstance(one, int | float) for one in times):
            return "a time that is no number"
    except _BROKEN as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""
