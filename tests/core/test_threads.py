"""The CPUs of a process, and the priorities of its threads."""

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.threads import (
    collect_seldom,
    keep_from_collector,
    lower_thread_priority,
    take_short_turns,
    usable_cpus,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems have neither affinity nor priorities of threads"
)


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_calling_thread_gets_a_lower_priority() -> None:
    before = priority()
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as lowered, ThreadPoolExecutor(1) as other:
        assert lowered.submit(priority).result() == min(before + 10, 19)
        assert other.submit(priority).result() == before
    assert priority() == before


def test_the_usable_cpus_are_those_of_the_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cpus() == allowed
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cpus() == {min(allowed)}
    finally:
        os.sched_setaffinity(0, allowed)


def test_turns_are_shorter_than_those_of_python() -> None:
    before_s = sys.getswitchinterval()
    try:
        take_short_turns()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before_s)


def test_present_objects_are_not_collected_again_and_later_ones_are() -> None:
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    gc.unfreeze()  # what `tests/conftest.py` froze
    those_of_tests = gc.get_threshold()
    try:
        collect_seldom()
        seldom = gc.get_threshold()
        keep_from_collector()
        assert gc.get_threshold()[0] < seldom[0] / 10
        assert gc.get_freeze_count() > 10_000
        Knot()
        assert gc.collect() > 0
    finally:
        gc.set_threshold(*those_of_tests)
        gc.unfreeze()
