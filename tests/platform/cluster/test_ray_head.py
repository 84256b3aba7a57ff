"""
The Ray head node that the platform starts on this machine, without starting one.

`test_ray_platforms.py` has the life of a real one: to start Ray takes longer than all that is looked at.
"""

from pathlib import Path

import pytest

from headrace.platform.cluster.ray_head import HeadFailed, RayHead
from tests.waiting import WAIT_S

pytest.importorskip("ray")


def test_a_head_that_cannot_start_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ray").touch()
    with pytest.raises(HeadFailed, match=r"Ray cannot be started on this machine: .*exists"):
        RayHead(tmp_path / "ray", environment={}).start(timeout_s=WAIT_S)


def test_a_head_that_was_never_started_has_nothing_to_end(tmp_path: Path) -> None:
    head = RayHead(tmp_path / "ray", environment={})
    assert not head.is_alive()
    assert not head.end()
