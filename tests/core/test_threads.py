"""Priorities of threads."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.threads import lower_thread_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own elsewhere")


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_calling_thread_gets_a_lower_priority() -> None:
    before = priority()
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as lowered, ThreadPoolExecutor(1) as other:
        assert lowered.submit(priority).result() == min(before + 10, 19)
        assert other.submit(priority).result() == before
    assert priority() == before
