"""
Settings of Python's interpreter for a process that sends tokens: short turns of the GIL, and short garbage collections.

The event loop shares the GIL with threads that parse, tokenise and render what clients sent.
"""

import gc
import sys
from typing import Final

_TURN_S: Final = 0.0005
"""
The longest turn of a thread that runs Python while another one waits for the GIL; Python's default is 5 ms.

The loop gives the GIL up at each system call and each of its callbacks, and waits for a turn of a busy thread each
time: a token to four clients costs five turns or more.
"""


def take_short_turns() -> None:
    """Shorten the turns in which threads hold the GIL, for the whole process."""
    sys.setswitchinterval(_TURN_S)


def keep_from_collector() -> None:
    """
    Exempt all present objects from garbage collection, after a last one: they live as long as the process.

    A collection visits all objects and holds the GIL meanwhile: 60 ms for those of a platform, and a request that
    makes many objects causes several.
    """
    gc.collect()
    gc.freeze()
