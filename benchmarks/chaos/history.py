"""The model of what must hold: checks the history of a run and returns what was violated. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

DEADLINE_S: Final = 90.0
"""Seconds in which a request is answered or refused, retries of its client included."""
ATTEMPT_S: Final = 75.0
"""Longest attempt: the model's 60 seconds and the time to notice."""
GRACE_S: Final = 10.0
"""Seconds after a fault, when all platforms are healthy again, in which its consequences may show."""
START_S: Final = 10.0
"""
Seconds in which the replacement of a killed worker serves, from its start on; more on a machine on which the slowest
start of a platform took longer.
"""
NODE_S: Final = 30.0
"""Seconds in which the workers of a lost Ray node serve again on others: Ray notices, and starts an actor for each."""
_MAX_BACKOFF_S: Final = 60.0
_CRASH_WINDOW_S: Final = 600.0
"""The replacement of a worker waits 1 s after the second crash within this time, twice as long after each further."""
METRICS_S: Final = 8.0
"""Seconds of measurements that a killed platform may lose: the flush of 5 s, and bulletins between processes."""
CLEAR_ERRORS: Final = frozenset(
    {
        "ModelError", "ModelNotReadyException", "ModelStreamError", "ServiceUnavailable", "ThrottlingException",
        "InternalStreamFailure", "server_error", "model_error", "service_unavailable", "rate_limit_exceeded",
        "model_not_ready", "engine_failed", "unavailable",
    }
)  # fmt: skip
"""Codes of errors that tell a client what to do: retry, or wait."""
RIGHT: Final = "right"
WRONG: Final = "wrong"
UNREADABLE: Final = "unreadable"
"""The answer has not the form of the API."""
BROKEN: Final = "broken"
"""The connection ended: the client knows no more."""
_CUTS: Final = ("platform-", "process-", "client-", "machine-")
_SILENCES: Final = ("machine-cut", "machine-mute", "machine-deaf")
_LOSES_METRICS: Final = ("platform-kill", "process-kill", "disk-", "database-", "machine-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A request as it was sent once."""

    id: str
    api: str
    endpoint: str
    began_s: float
    ended_s: float
    outcome: str
    """`right`, `wrong`, `broken`, or the code of an error."""
    detail: str = ""
    through: int = 0
    """Index of the platform that it was sent to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a client that retries."""

    number: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A fault that was applied."""

    kind: str
    began_s: float
    undone_s: float
    """When the process was started or continued, or the disk had room again."""
    ended_s: float
    """When all platforms were healthy after that."""
    what: str
    """What it hit: the name of a worker begins with that of its endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """An endpoint: as it was asked for, or as it is described."""

    config: str
    count: int
    status: str = "InService"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A scaling activity as it is described at the end."""

    id: str
    status: str
    capacity: int
    """The number of instances that it has set."""
    message: str


@dataclass(slots=True, kw_only=True)
class History:
    """The events of a run, and the findings after it."""

    requests: list[Request] = field(default_factory=list)
    faults: list[Applied] = field(default_factory=list)
    answers: Mapping[str, int] = field(default_factory=dict)
    """Id of an attempt → how often a worker wrote its whole answer."""
    begun: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Id of an attempt → the hosts whose workers it reached; only if there are several hosts."""
    asynchronous: dict[str, str] = field(default_factory=dict)
    """Accepted asynchronous invocation → its outcome, `right`, `wrong`, `failed: …` or `missing`."""
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Record or object whose creation was acknowledged → its content."""
    found: dict[str, str] = field(default_factory=dict)
    """The same, as read at the end."""
    asked: dict[str, EndpointState] = field(default_factory=dict)
    previous: dict[str, str] = field(default_factory=dict)
    """Endpoint → its configuration before the last update, to which a failed update returns."""
    deleted: set[str] = field(default_factory=set)
    described: dict[str, EndpointState] = field(default_factory=dict)
    scaled: str = ""
    """The endpoint whose bounds are set by Application Auto Scaling."""
    bounds: list[int] = field(default_factory=list)
    """The numbers of instances that were asked for in this way, oldest first."""
    activities: Sequence[Activity] = ()
    """Its scaling activities, newest first."""
    num_workers: int = 0
    """Worker processes of this run at the end, before the platform stops."""
    leftovers: Sequence[str] = ()
    """Processes of this run after the platform stopped."""
    invocations: float | None = None
    """Sum of CloudWatch's `Invocations`; None if it was not read."""
    incidents: list[str] = field(default_factory=list)
    """Violations that were seen at once: a platform that ended, an operation that was never acknowledged."""


def violations(history: History) -> list[str]:
    """Return a sentence for each violation; empty if all that must hold holds."""
    return [
        *history.incidents,
        *(found for request in history.requests for found in _request(request, history.faults)),
        *_answers(history),
        *_records(history),
        *_states(history),
        *_activities(history),
        *(f"A process is left after the stop: {process}." for process in history.leftovers),
        *_metrics(history),
    ]


def _request(request: Request, faults: Sequence[Applied]) -> Iterator[str]:
    first, last = request.attempts[0], request.attempts[-1]
    if last.ended_s - first.began_s > DEADLINE_S + ATTEMPT_S:
        yield f"Request {request.number} took {last.ended_s - first.began_s:.0f} s; expected {DEADLINE_S:.0f}."
    if last.outcome == BROKEN:
        yield f"Request {request.number} ({last.api}) is lost: {last.detail}."
    for attempt in request.attempts:
        if (found := _attempt(attempt, faults)) is not None:
            yield f"Attempt {attempt.id} ({attempt.api}, at {attempt.began_s:.2f} s) {found}"


def _attempt(attempt: Attempt, faults: Sequence[Applied]) -> str | None:
    if attempt.ended_s - attempt.began_s > ATTEMPT_S:
        return f"took {attempt.ended_s - attempt.began_s:.0f} s; expected at most {ATTEMPT_S:.0f}."
    if attempt.outcome in CLEAR_ERRORS | {RIGHT}:
        if attempt.outcome != RIGHT and not _is_near(attempt, faults, ("",)):
            return f"was refused without a fault: {attempt.outcome} {attempt.detail}"
        return None
    if attempt.outcome == BROKEN:
        return None if _is_near(attempt, faults, _CUTS) else f"broke without a fault: {attempt.detail}"
    if _is_near(attempt, faults, ("client-corrupt",)):  # bytes of the request or of the answer were changed
        return None
    return f"ended as {attempt.outcome}: {attempt.detail}"


def _is_near(attempt: Attempt, faults: Sequence[Applied], prefixes: tuple[str, ...]) -> bool:
    """Return whether a fault of these kinds was active during the attempt, or shortly before."""
    return any(
        fault.kind.startswith(prefixes)
        and fault.began_s <= attempt.ended_s
        and attempt.began_s <= fault.ended_s + _aftermath_s(fault, faults)
        and _can_concern(fault, attempt)
        for fault in faults
    )


def _can_concern(fault: Applied, attempt: Attempt) -> bool:
    """Return whether a fault can break an attempt: that of a worker those to its endpoint only."""
    return not fault.kind.startswith("worker-") or fault.what.startswith(f"{attempt.endpoint}-")


def _aftermath_s(fault: Applied, faults: Sequence[Applied]) -> float:
    """Return the time after a fault in which clear errors may follow: after kills of workers, their backoff."""
    if fault.kind == "node-kill":
        return NODE_S
    if fault.kind != "worker-kill":
        return GRACE_S
    fleet = _fleet(fault)
    crashes = sum(
        other.kind == fault.kind
        and _fleet(other) == fleet
        and fault.began_s - _CRASH_WINDOW_S <= other.began_s <= fault.began_s
        for other in faults
    )
    slowest_start_s = max(other.ended_s - other.undone_s for other in faults)
    return max(START_S, slowest_start_s) + (min(_MAX_BACKOFF_S, 2.0 ** (crashes - 2)) if crashes > 1 else 0.0)


def _fleet(fault: Applied) -> str:
    """Return the name of a worker without its id: the workers of one endpoint share a backoff."""
    return fault.what.rpartition("-i-")[0]


def _answers(history: History) -> Iterator[str]:
    attempts = {attempt.id: attempt for request in history.requests for attempt in request.attempts}
    for id_, number in history.answers.items():
        if number > 1 and id_ not in history.asynchronous and not _may_repeat(attempts.get(id_), history.faults):
            yield f"Attempt {id_} was answered {number} times."
    for request in history.requests:
        for attempt in request.attempts:
            if attempt.outcome != RIGHT or _is_near(attempt, history.faults, ("client-corrupt",)):
                continue  # the id of a corrupted request may be another one
            if not history.answers.get(attempt.id):
                yield f"Attempt {attempt.id} has an answer that no worker gave."
    for id_, outcome in history.asynchronous.items():
        if outcome != RIGHT and not outcome.startswith("failed: "):
            yield f"The asynchronous invocation {id_} is {outcome}."


def _may_repeat(attempt: Attempt | None, faults: Sequence[Applied]) -> bool:
    """Return whether the answer of a worker may have been lost on its way, so that another one was asked."""
    return attempt is not None and _is_near(attempt, faults, _SILENCES)


def _records(history: History) -> Iterator[str]:
    for name, content in history.acknowledged.items():
        if name not in history.found:
            yield f"{name} was acknowledged and is lost."
        elif history.found[name] != content:
            yield f"{name} is {history.found[name]}; {content} was acknowledged."


def _states(history: History) -> Iterator[str]:
    for name, asked in history.asked.items():
        is_ = history.described.get(name)
        if is_ is None:
            yield f"Endpoint {name} is lost."
        elif not is_reached(asked, is_, history.previous.get(name)):
            yield f"Endpoint {name} is {is_}; asked for {asked}."
    for name in history.described.keys() - history.asked.keys():
        yield f"Endpoint {name} exists; it was {'deleted' if name in history.deleted else 'never asked for'}."
    expected = sum(state.count for state in history.described.values())
    if history.num_workers != expected:
        yield f"{history.num_workers} worker processes run; the endpoints have {expected} instances."


def is_reached(asked: EndpointState, described: EndpointState, previous: str | None) -> bool:
    """
    Return whether an endpoint is in the state that was asked for.

    Workers that are killed in a deployment make it fail, as on SageMaker: a creation that failed, and an update or a
    scaling that was rolled back, are reached if they say why.
    """
    if described.status == "Failed":
        return bool(described.reason)
    if described.status != "InService":
        return False
    if described.config == previous != asked.config:
        return bool(described.reason)
    if described.config == asked.config and described.reason:  # a scaling that was rolled back
        return True
    return (described.config, described.count) == (asked.config, asked.count)


def _activities(history: History) -> Iterator[str]:
    """Check that each scaling has one activity, which says how it ended."""
    for activity in history.activities:
        if activity.status in {"Pending", "InProgress"}:
            yield f"The activity {activity.id} is still {activity.status}."
        if activity.capacity not in history.bounds:
            yield f"The activity {activity.id} has set {activity.capacity}, which was never asked for."
        if not activity.message:
            yield f"The activity {activity.id} is {activity.status} and has no message."
    if repeated := [id_ for id_, number in Counter(each.id for each in history.activities).items() if number > 1]:
        yield f"Activities are listed twice: {', '.join(repeated)}."
    state = history.described.get(history.scaled)
    if state is None or state.reason:
        return
    fulfilled = [activity.capacity for activity in history.activities if activity.status == "Successful"]
    has_true_order = not any(fault.kind == "clock-jump" for fault in history.faults)
    expected = (fulfilled[:1] if has_true_order else fulfilled) or history.bounds[:1]
    if state.count not in expected:
        yield f"Endpoint {history.scaled} has {state.count} instances; its activities have set {fulfilled}."


def _metrics(history: History) -> Iterator[str]:
    if history.invocations is None:
        return
    attempts = [attempt for request in history.requests for attempt in request.attempts]
    right = [attempt for attempt in attempts if attempt.outcome == RIGHT]
    losing = [fault for fault in history.faults if fault.kind.startswith(_LOSES_METRICS)]
    safe = [
        attempt
        for attempt in right
        if not any(fault.began_s - METRICS_S <= attempt.ended_s <= fault.ended_s for fault in losing)
    ]
    if not len(safe) <= history.invocations <= len(attempts):
        yield (
            f"CloudWatch has {history.invocations:.0f} invocations; expected between {len(safe)} (answered and not "
            f"within {METRICS_S:.0f} s of a kill) and {len(attempts)} (sent)."
        )


def latest_errors_s(history: History) -> dict[str, float]:
    """
    Return the longest time from a fault's end to the begin of an attempt that failed, by the kind of the fault.

    An attempt that fails is counted for the fault that ended last before it began; 0 if one was active.
    """
    found: dict[str, float] = {}
    for attempt in (attempt for request in history.requests for attempt in request.attempts):
        before = [fault for fault in history.faults if fault.began_s <= attempt.ended_s]
        if attempt.outcome == RIGHT or not before:
            continue
        latest = max(before, key=lambda fault: fault.ended_s)
        delay_s = round(max(0.0, attempt.began_s - latest.ended_s), 2)
        found[latest.kind] = max(found.get(latest.kind, 0.0), delay_s)
    return dict(sorted(found.items()))


def summary(history: History) -> dict[str, object]:
    attempts = [attempt for request in history.requests for attempt in request.attempts]
    return {
        "requests": len(history.requests),
        "requests_answered_right": sum(request.attempts[-1].outcome == RIGHT for request in history.requests),
        "requests_refused": sum(request.attempts[-1].outcome in CLEAR_ERRORS for request in history.requests),
        "requests_lost": sum(request.attempts[-1].outcome == BROKEN for request in history.requests),
        "answers_wrong": sum(
            attempt.outcome == WRONG and not _is_near(attempt, history.faults, ("client-corrupt",))
            for attempt in attempts
        ),
        "slowest_request_s": max(
            (round(request.attempts[-1].ended_s - request.attempts[0].began_s, 1) for request in history.requests),
            default=0.0,
        ),
        "slowest_start_s": round(max((fault.ended_s - fault.undone_s for fault in history.faults), default=0.0), 1),
        "latest_errors_s": latest_errors_s(history),
        "orphans": len(history.leftovers),
        "attempts": dict(Counter(attempt.outcome for attempt in attempts).most_common()),
        "asynchronous": dict(Counter(outcome.partition(":")[0] for outcome in history.asynchronous.values())),
        "records_and_objects": len(history.acknowledged),
        "endpoints": len(history.asked),
        "endpoints_failed_with_reason": sum(state.status == "Failed" for state in history.described.values()),
        "endpoints_deleted": len(history.deleted),
        "scalings_asked": len(history.bounds),
        "activities": dict(Counter(activity.status for activity in history.activities).most_common()),
        "faults": dict(Counter(fault.kind for fault in history.faults).most_common()),
        "invocations_in_cloudwatch": history.invocations,
    }
