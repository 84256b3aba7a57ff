"""The interpreter of a process that sends tokens: the turns of the GIL, and what the garbage collector visits."""

import gc
import sys

from headrace.core.interpreter import keep_from_collector, take_short_turns


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

    try:
        keep_from_collector()
        assert gc.get_freeze_count() > 10_000
        Knot()
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
