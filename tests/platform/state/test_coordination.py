"""Members, their leader and their bulletins, on both databases."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.core.errors import Unavailable
from headrace.platform.state import coordination
from headrace.platform.state.coordination import Coordination, Displaced, Home, Member

pytestmark = pytest.mark.usefixtures("long_leases")

Join = Callable[..., Coordination]


SHORTEST_WAIT_S, SHORTEST_LEASE_S = coordination._WAIT_S, coordination.LEASE_S


def member(name: str, host: str = "host") -> Member:
    return Member(id=name, url=f"http://{name}", host=host, data_dir=f"/data/{name}", version="1")


@pytest.fixture
def join(lasting_place: str) -> Iterator[Join]:
    """Opens the coordination of a member; the second argument is its host."""
    with contextlib.ExitStack() as stack:

        def open_one(name: str, host: str = "host", term: int = 7) -> Coordination:
            made = Coordination(lasting_place, member(name, host))
            stack.callback(made.close)
            made.open(term=term)
            return made

        yield open_one


@pytest.fixture(autouse=True)
def leases_outlast_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease expires because the machine is busy."""
    monkeypatch.setattr(coordination, "LEASE_S", 600.0)


def expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every lease that is given from now on expire at once."""
    monkeypatch.setattr(coordination, "LEASE_S", 0.0)


def test_the_first_member_leads_and_terms_go_on_from_the_store(join: Join) -> None:
    a, b = join("a"), join("b")
    first = a.heartbeat()
    assert (first.leader, first.term) == ("a", 8)
    assert [found.id for found in first.members] == ["a", "b"]
    second = b.heartbeat()
    assert (second.leader, second.term) == ("a", 8)
    assert a.heartbeat().term == 8


def test_an_expired_lease_passes_to_the_next_member(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = join("a"), join("b")
    with monkeypatch.context() as shortened:
        expire(shortened)
        a.heartbeat()
    standing = b.heartbeat()
    assert (standing.leader, standing.term) == ("b", 9)
    assert [found.id for found in standing.members] == ["b"]
    assert a.heartbeat().leader == "b"


def test_a_leader_whose_own_lease_expired_begins_a_new_term(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    a = join("a")
    with monkeypatch.context() as shortened:
        expire(shortened)
        assert a.heartbeat().term == 8
    assert a.heartbeat().term == 9


def test_a_member_that_does_not_lead_takes_its_own_lease_in_a_new_term(join: Join) -> None:
    """It has stopped leading because an answer was late; what it has sent before may still arrive."""
    a, b = join("a"), join("b")
    assert a.heartbeat(is_leading=False).term == 8
    assert a.heartbeat().term == 8
    again = a.heartbeat(is_leading=False)
    assert (again.leader, again.term) == ("a", 9)
    other = b.heartbeat(is_leading=False)
    assert (other.leader, other.term) == ("a", 9)


def test_a_lease_from_before_the_clock_went_back_is_over(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = join("a"), join("b")
    a.heartbeat()
    now_s = b._now_s
    monkeypatch.setattr(b, "_now_s", lambda connection: now_s(connection) - 3 * coordination.LEASE_S)
    standing = b.heartbeat()
    assert (standing.leader, [found.id for found in standing.members]) == ("b", ["b"])


def test_a_member_that_leaves_is_succeeded_at_once(join: Join) -> None:
    a, b = join("a"), join("b")
    a.heartbeat()
    a.leave()
    standing = b.heartbeat()
    assert (standing.leader, [found.id for found in standing.members]) == ("b", ["b"])


def test_a_member_that_is_buried_is_succeeded_at_once_in_a_new_term(join: Join) -> None:
    a, b = join("a"), join("b")
    term = a.heartbeat().term
    b.bury("a")
    standing = b.heartbeat()
    assert (standing.leader, [found.id for found in standing.members]) == ("b", ["b"])
    assert standing.term == term + 1
    b.bury("never there")
    assert b.heartbeat().leader == "b"


def test_a_member_that_is_no_candidate_gives_the_lease_up_and_takes_none(join: Join) -> None:
    a, b = join("a"), join("b")
    a.heartbeat()
    assert a.heartbeat(is_candidate=False).leader == ""
    assert a.heartbeat(is_candidate=False).leader == ""
    assert b.heartbeat().leader == "b"
    a.heartbeat(is_candidate=False)
    assert b.heartbeat().leader == "b"


def test_a_store_whose_term_is_newer_raises_the_term_of_the_members(join: Join) -> None:
    a = join("a")
    assert a.heartbeat().term == 8
    b = join("b", term=20)
    assert a.heartbeat().term == 21, "the store refuses writes of the earlier terms"
    assert b.heartbeat().leader == "a"
    join("c", term=3)
    assert a.heartbeat().term == 21


def test_a_process_that_cannot_read_the_records_of_a_live_member_does_not_join(lasting_place: str) -> None:
    with contextlib.ExitStack() as stack:

        def opened(name: str, forms: dict[str, int]) -> tuple[Coordination, Home]:
            made = Coordination(lasting_place, replace(member(name), forms=forms))
            stack.callback(made.close)
            return made, made.open(term=0)

        old, home = opened("old", {"endpoint": 1, "model": 2})
        assert home.newer is None
        new, home = opened("new", {"endpoint": 2, "model": 2})
        assert home.newer is None, "the older one steps back"
        members = old.heartbeat().members
        assert [found.id for found in members if old.member.is_outdated_by(found)] == ["new"]
        assert [found.id for found in members if new.member.is_outdated_by(found)] == []
        for forms in ({"endpoint": 1, "model": 2}, {"endpoint": 2}, {"endpoint": 1, "model": 3}):
            _, home = opened("late", forms)
            assert home.newer == new.member
        assert [found.id for found in new.heartbeat().members] == ["new", "old"]


def test_members_of_one_host_share_the_home_of_the_first(lasting_place: str) -> None:
    with contextlib.ExitStack() as stack:

        def home_of(name: str, host: str) -> Home:
            made = Coordination(lasting_place, member(name, host))
            stack.callback(made.close)
            return made.open(term=0)

        first = home_of("a", "host")
        assert first == Home(host="host", data_dir="/data/a", agreed="")
        assert home_of("b", "host") == first
        assert home_of("c", "other") == first, "the caller refuses to join"


def test_members_of_a_spread_platform_join_on_any_host_and_agree_on_what_the_first_made(lasting_place: str) -> None:
    with contextlib.ExitStack() as stack:

        def opened(name: str, host: str, *, is_spread: bool = True) -> tuple[Coordination, Home]:
            made = Coordination(lasting_place, member(name, host), agreed=str(is_spread), is_spread=is_spread)
            stack.callback(made.close)
            return made, made.open(term=0)

        (a, _), (b, home) = opened("a", "host"), opened("b", "other")
        assert home == Home(host="", data_dir="", agreed="True")
        assert [found.machine for found in a.heartbeat().members] == ["a", "b"]
        assert (a.agree("x", lambda: "first"), b.agree("x", lambda: "second")) == ("first", "first")
        for host, data_dir in (("third", "/data/a"), ("host", "/data/other")):
            rival = replace(member("rival", host), url="http://a", data_dir=data_dir)
            with contextlib.closing(Coordination(lasting_place, rival, agreed="True", is_spread=True)) as other:
                found = other.open(term=0).rival
                assert found is not None
                assert found.id == "a", "the caller refuses to join"
        _, home = opened("alone", "host", is_spread=False)
        assert home.agreed == "True", "the caller refuses to join"
        assert [found.id for found in a.leave()] == ["b"]
        assert [found.id for found in b.heartbeat().members] == ["b"]
        assert b.others() == ()


def test_a_new_host_is_the_home_when_no_member_is_left(join: Join, lasting_place: str) -> None:
    join("a").leave()
    with contextlib.closing(Coordination(lasting_place, member("b", "other"))) as other:
        assert other.open(term=0) == Home(host="other", data_dir="/data/b", agreed="")


def test_a_member_whose_platform_moved_while_it_was_away_is_displaced(
    join: Join, lasting_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, sibling = join("a"), join("sibling")
    with monkeypatch.context() as shortened:
        expire(shortened)
        a.heartbeat()
        sibling.heartbeat()
    assert a.heartbeat().leader == "a", "it was away, and no other platform has joined"
    a.leave()
    with contextlib.closing(Coordination(lasting_place, member("b", "other"))) as other:
        other.open(term=0)
        for old in (a, sibling):
            with pytest.raises(Displaced, match=r"/data/b on another machine"):
                old.heartbeat()
        assert [found.id for found in other.heartbeat().members] == ["b"]


def test_bulletins_reach_all_others_once_and_in_order(join: Join) -> None:
    a, b, c = join("a"), join("b"), join("c")
    a.post({"loads": b"1"})
    a.post({"loads": b"2", "held": b"x"})
    c.post({"loads": b"3"})
    assert [(found.member, found.topic, found.body) for found in b.read()] == [
        ("a", "loads", b"1"),
        ("a", "loads", b"2"),
        ("a", "held", b"x"),
        ("c", "loads", b"3"),
    ]
    assert b.read() == []
    a.post({"loads": b"4"})
    assert [found.body for found in b.read()] == [b"4"]
    assert [found.member for found in a.read()] == ["c"]


def test_old_bulletins_are_removed(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = join("a"), join("b")
    a.post({"loads": b"old"})
    monkeypatch.setattr(coordination, "BULLETIN_AGE_S", -1.0)
    a.post({"loads": b"new"})
    assert [found.body for found in b.read()] == [b"new"]


def test_a_heartbeat_that_waits_for_a_lock_fails_and_a_later_one_leads(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    place = new_database()
    with contextlib.closing(Coordination(place, member("a"))) as a, contextlib.closing(psycopg.connect(place)) as other:
        a.open(term=0)
        a.heartbeat()
        monkeypatch.setattr(coordination, "_WAIT_S", 1)
        with contextlib.closing(Coordination(place, member("a"))) as impatient:
            other.execute("LOCK TABLE headrace_leader")
            with pytest.raises(Unavailable, match="failed"):
                impatient.heartbeat()
        other.rollback()
        assert a.heartbeat().leader == "a"


def test_a_member_knows_before_its_lease_expires_that_it_cannot_renew_it() -> None:
    assert SHORTEST_WAIT_S < SHORTEST_LEASE_S


def test_the_error_for_an_unreachable_server_has_no_secrets() -> None:
    unreachable = Coordination("postgresql://user:secret@127.0.0.1:1/x", member("a"))
    with pytest.raises(Unavailable, match="failed") as caught:
        unreachable.open(term=0)
    assert "secret" not in caught.value.message
