"""Running inputs through targets: the property, the bounds of time, and the minimisation of a finding."""

import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.fuzz.target import Malformed, Target

STOP_FACTOR = 10
"""An input is stopped after this many times its limit, so that a parser that never ends is found and not waited for."""
MAX_GROWTH_BYTES = 1 << 30
"""Growth of the process's memory over a whole run, beyond what the seeds need."""
_MAX_ATTEMPTS = 3000


class TooSlow(BaseException):
    """An input took more than its limit; not an `Exception`, so that no parser catches it."""


class Finding(Exception):
    """An input that broke the property."""

    def __init__(self, target: Target, data: bytes, cause: BaseException) -> None:
        shown = data if len(data) <= 300 else data[:300] + b"..."
        super().__init__(f"{target.name}: {type(cause).__name__}: {str(cause)[:300]}\ninput: {shown!r}")
        self.target, self.data, self.cause = target, data, cause


@dataclass
class Report:
    """Counts of a run, and its cost."""

    num_cases: int = 0
    num_accepted: int = 0
    """Inputs that the parser took; about half is a sign that mutations reach deep."""
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    growth_bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)


def run(target: Target, inputs: Iterable[bytes], *, before: Callable[[int], None] = lambda _number: None) -> Report:
    """
    Run inputs; `before` is called with the number of each, for a parent that must know it after a crash.

    Raises:
        Finding: an input broke the property.
    """
    report = Report()
    with stopped_by_signal():
        for data in target.seeds:
            outcome(target, data, is_timed=False)  # imports, caches and tables are no growth and no time of a case
        first_bytes = _peak_bytes()
        for number, data in enumerate(inputs):
            before(number)
            started_s = time.process_time()
            refusal = outcome(target, data)
            taken_s = time.process_time() - started_s
            report.num_cases += 1
            report.num_accepted += refusal is None
            report.refusals[refusal or ""] += 1
            report.cpu_s += taken_s
            report.slowest_s = max(report.slowest_s, taken_s)
    report.growth_bytes = _peak_bytes() - first_bytes
    assert report.growth_bytes < MAX_GROWTH_BYTES, f"{target.name} grew by {report.growth_bytes >> 20} MiB"
    return report


def minimised(finding: Finding) -> bytes:
    """Return a smaller input with the same kind of failure."""
    kind = type(finding.cause)
    with stopped_by_signal():
        return smallest(finding.data, lambda data: isinstance(failure(finding.target, data), kind))


def smallest(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Return a smaller input that still fails: cut out ever smaller pieces."""
    size, attempts = max(1, len(data) // 2), 0
    while attempts < _MAX_ATTEMPTS:
        at, is_smaller = 0, False
        while at < len(data) and attempts < _MAX_ATTEMPTS:
            attempts += 1
            shorter = data[:at] + data[at + size :]
            if fails(shorter):
                data, is_smaller = shorter, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(1, size // 2)
    return data


def failure(target: Target, data: bytes) -> BaseException | None:
    """Return the error that an input ends in, or None if the property holds for it."""
    try:
        outcome(target, data)
    except Finding as finding:
        return finding.cause
    return None


def outcome(target: Target, data: bytes, *, is_timed: bool = True) -> str | None:
    """
    Run one input; return the name of the refusal, or None if it is accepted.

    Raises:
        Finding: the input broke the property.
    """
    started_s = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, STOP_FACTOR * target.limit_s)
    try:
        target.check(data)
    except (*target.refusals, Malformed) as refusal:
        return type(refusal).__name__
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of Rust code are no `Exception`
        raise Finding(target, data, error) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if is_timed:
            _check_time(target, data, time.process_time() - started_s)
    return None


def _check_time(target: Target, data: bytes, taken_s: float) -> None:
    if taken_s > target.limit_s:
        limit = TooSlow(f"it took {taken_s:.2f} s of CPU; expected at most {target.limit_s:g} s")
        raise Finding(target, data, limit)


@contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Stop inputs that take many times their limit."""

    def stop(_number: int, _frame: object) -> None:
        raise TooSlow("it was stopped")

    previous = signal.signal(signal.SIGPROF, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
