"""The takeover of a platform's sockets, if the platform is killed meanwhile."""

import socket

from headrace.platform.host.start import Handover


def test_a_platform_that_is_killed_during_a_takeover_does_not_end_its_successor() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.close()
    Handover(ours, []).complete()
    assert ours.fileno() == -1
