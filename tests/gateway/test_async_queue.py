"""The queue of asynchronous invocations: order, limits, expiry and backlogs."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.async_queue import AsyncQueue, capacity_of

from .async_parts import OUTPUT, pending
from .routes import route, variant


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=20), st.integers(0, 3))
def test_a_backlog_counts_waiting_and_running_invocations(steps: list[tuple[str, bool]], num_replicas: int) -> None:
    replicas = [f"http://w{number}" for number in range(num_replicas)]
    routes = {name: route(variant("v", replicas), endpoint=name, async_output=OUTPUT) for name in "ab"}
    queue, expected, begun = AsyncQueue(), dict.fromkeys("ab", 0), []
    for number, (endpoint, ends) in enumerate(steps):
        queue.add(pending(number, endpoint=endpoint))
        expected[endpoint] += 1
        begun += queue.due(routes, 0.0).begin
        if ends and begun:
            expected[begun[0].endpoint] -= 1
            queue.ended(begun.pop(0))
        found = queue.backlogs()
        assert {name: found[name].size if name in found else 0 for name in "ab"} == expected


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(1, 50)),
            st.tuples(st.just("look"), st.just(""), st.integers(0, 60)),
            st.tuples(st.just("end"), st.just(""), st.integers(0, 9)),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_each_invocation_starts_or_expires_once_in_order_and_within_the_limit(steps, num_replicas):
    replicas = [f"http://w{number}" for number in range(num_replicas)]
    routes = {name: route(variant("v", replicas), endpoint=name, async_output=OUTPUT) for name in "ab"}
    queue, running_now, waiting, now_s = AsyncQueue(), [], {}, 0.0
    for number, (step, endpoint, value) in enumerate(steps):
        if step == "add":
            waiting[f"{number:05d}"] = made = pending(number, endpoint=endpoint, expires_s=now_s + value)
            queue.add(made)
        elif step == "end" and running_now:
            queue.ended(running_now.pop(value % len(running_now)))
        else:
            now_s = max(now_s, float(value))
            due = queue.due(routes, now_s)
            assert not due.orphaned
            for gone in due.expired:
                assert waiting.pop(gone.id).expires_s <= now_s
            for begun in due.begin:
                assert not any(other < begun.id and held.endpoint == begun.endpoint for other, held in waiting.items())
                running_now.append(waiting.pop(begun.id))
            assert due.next_s == min((held.expires_s for held in waiting.values()), default=None)
        assert len(queue) == len(waiting)
        for name in "ab":
            assert sum(begun.endpoint == name for begun in running_now) <= capacity_of(routes[name])


def test_started_invocations_leave_the_heap_of_expiries():
    waiting = route(variant("v", []), endpoint="a", async_output=OUTPUT)
    serving = route(variant("v", ["http://w"]), endpoint="b", async_output=OUTPUT)
    routes, queue = {"a": waiting, "b": serving}, AsyncQueue()
    queue.add(pending(0, endpoint="a", expires_s=1.0))
    for number in range(1, 5000):
        queue.add(pending(number, endpoint="b"))
        due = queue.due(routes, 0.0)
        assert [begun.id for begun in due.begin] == [f"{number:05d}"]
        assert due.next_s == 1.0
        queue.ended(due.begin[0])
        assert len(queue._expiries) < 1010
