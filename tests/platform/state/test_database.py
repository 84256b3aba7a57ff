"""Connections to database servers."""

import contextlib
from collections.abc import Callable

import pytest

from headrace.platform.state.database import engine_of, url_of


@pytest.mark.parametrize(("wait_s", "probe_s"), [(30, "5"), (1, "1")])
def test_the_kernel_probes_a_server_that_owes_an_answer(
    new_database: Callable[[], str], wait_s: int, probe_s: str
) -> None:
    """A query whose server lost its power would wait for two hours otherwise."""

    import psycopg

    engine = engine_of(url_of(new_database()), wait_s=wait_s)
    with contextlib.closing(engine.raw_connection()) as connection:
        session = connection.driver_connection
        assert isinstance(session, psycopg.Connection)
        given = session.info.get_parameters()
    engine.dispose()
    assert (given["keepalives_idle"], given["keepalives_interval"]) == (probe_s, probe_s)
    assert given["tcp_user_timeout"] == str(wait_s * 1000)
