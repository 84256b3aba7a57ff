"""Workers in quarantine: for how long, and when they are forgotten."""

import asyncio

import pytest

from headrace.gateway.replica_state import FIRST_S, LONGEST_S, Quarantine
from headrace.state.routes import Replica

U, V = (Replica(worker=name, url="http://same") for name in "uv")


def test_a_quarantine_doubles_each_time_and_is_forgotten_when_it_is_lifted_or_the_replica_is_gone() -> None:
    ended: list[float] = []

    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        quarantine = Quarantine(on_end=lambda: ended.append(loop.time()))
        waits = []
        for _ in range(7):
            quarantine.add(U)
            quarantine.add(U)
            assert U in quarantine
            end = quarantine._entries[U].end
            assert end is not None
            waits.append(end.when() - loop.time())
            end.cancel()
            quarantine._ended(quarantine._entries[U])
            assert U not in quarantine
        quarantine.add(U)
        quarantine.lift(U)
        assert U not in quarantine
        quarantine.add(U)
        quarantine.add(V)
        quarantine.retain({V})
        assert (U in quarantine, V in quarantine) == (False, True)
        quarantine.retain(())
        assert not quarantine
        return waits

    waits = asyncio.run(scene())
    assert waits == pytest.approx([FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S], abs=0.1)
    assert len(ended) == 8
