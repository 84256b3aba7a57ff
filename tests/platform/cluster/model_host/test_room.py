"""Models that leave memory for another one."""

import pytest

from headrace.platform.cluster.model_host.room import ModelUse, Room, make_room


def use(name: str, memory_bytes: int = 10, last_used_s: float = 0.0, **more: bool) -> ModelUse:
    return ModelUse(name=name, memory_bytes=memory_bytes, last_used_s=last_used_s, **more)


OLD, NEW = use("old", last_used_s=1.0), use("new", last_used_s=2.0)


@pytest.mark.parametrize(
    ("models", "need_bytes", "room"),
    [
        ([], 100, Room(is_free=True)),
        ([OLD, NEW], 10, Room(is_free=True)),
        ([NEW, OLD], 11, Room(is_free=False, unload=("old",))),
        ([OLD, NEW], 21, Room(is_free=False, unload=("old", "new"))),
        ([OLD, NEW], 100, Room(is_free=False, unload=("old", "new"))),
        ([use("busy", is_busy=True), NEW], 20, Room(is_free=False, unload=("new",))),
        ([use("busy", is_busy=True), NEW], 30, Room(is_free=False, unload=("new", "busy"))),
        ([use("leaving", is_leaving=True), NEW], 20, Room(is_free=False)),
        ([use("leaving", is_leaving=True), NEW], 30, Room(is_free=False, unload=("new",))),
        ([use("loading", is_loading=True), NEW], 30, Room(is_free=False, unload=("new",))),
        ([use("loading", is_loading=True)], 30, Room(is_free=False)),
        ([use("pinned", is_pinned=True), NEW], 20, Room(is_free=False, unload=("new",))),
        ([use("pinned", is_pinned=True), NEW], 21, Room(is_free=False, unload=("new",), is_possible=False)),
    ],
)
def test_the_least_recently_used_idle_models_leave(models: list[ModelUse], need_bytes: int, room: Room) -> None:
    assert make_room(models, need_bytes, limit_bytes=30) == room


def test_the_number_of_models_is_limited_too() -> None:
    pinned = use("pinned", is_pinned=True)
    assert make_room([OLD], 1, limit_bytes=30, max_models=2) == Room(is_free=True)
    assert make_room([NEW, OLD], 1, limit_bytes=30, max_models=2) == Room(is_free=False, unload=("old",))
    leaving = use("leaving", is_leaving=True)
    assert make_room([leaving, NEW], 1, limit_bytes=30, max_models=2) == Room(is_free=False), "it waits for it"
    assert not make_room([pinned], 1, limit_bytes=30, max_models=1).is_possible
