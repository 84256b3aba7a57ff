"""Access keys over the console's API: by whom, and what is refused."""

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.platform.cluster.instance_types import Host
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.traffic_history import TrafficHistory
from headrace.platform.host.access import Authenticator
from headrace.platform.host.access_keys import AccessKey, AccessKeys, KeyRing
from headrace.platform.host.app import Apps, PlatformApp
from headrace.platform.host.console import MAX_NOTE_CHARACTERS, ConsoleSources, console_app
from headrace.platform.host.folders import DataFolder
from headrace.platform.host.machines import this_machine
from headrace.platform.state.store import Store, open_store
from headrace.serving.http.body import BodyBudget
from tests import plain_http
from tests.e2e.conftest import headrace_command
from tests.waiting import WAIT_S

from .broken_store import out_of_reach
from .serving import serving

PATH = "/console/api/keys"

MACHINE = partial(this_machine, Host(num_cores=1, memory_bytes=1, gpus=()), "local")


@contextmanager
def platform(*, is_open: bool) -> Iterator[tuple[httpx.Client, AccessKeys, AccessKey]]:
    """A platform with the real authenticator and console, and a key that its client sends."""
    store = open_store("sqlite://")
    keys = AccessKeys(store)
    key = keys.create(note="the first")
    sources = ConsoleSources(
        components=lambda _: {},
        counts=lambda _: {},
        home=dict,
        machine=MACHINE,
        models=dict,
        uses=dict,
        keys=None if is_open else keys,
    )

    async def none(_scope: Any, _receive: Any, send: Any) -> None:
        raise AssertionError("not of the console")

    apps = Apps(
        gateway=none,
        gateway_owns=Gateway.owns,
        control=none,
        s3=none,
        console=console_app(TrafficHistory(), sources),
        metrics=none,
        health=dict,
    )
    app = PlatformApp(apps, Authenticator(KeyRing(store), is_open=is_open), BodyBudget(1 << 24))
    with serving(app) as url, plain_http.Client(base_url=url, timeout=WAIT_S) as client:
        client.headers["authorization"] = f"Bearer {key.secret}"
        yield client, keys, key
    store.close()


@pytest.fixture(scope="module")
def closed() -> Iterator[tuple[httpx.Client, AccessKeys, AccessKey]]:
    with platform(is_open=False) as parts:
        yield parts


Closed = tuple[httpx.Client, AccessKeys, AccessKey]


def test_a_key_is_created_listed_without_its_secret_and_deleted(closed: Closed) -> None:
    client, keys, mine = closed
    made = client.post(PATH, json={"note": "CI"})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    secret = made.json()["secret"]
    assert secret in {key.secret for key in keys.list()}
    listed = client.get(PATH)
    assert secret not in listed.text
    assert mine.secret not in listed.text
    told = {key["id"]: (key["note"], key["is_yours"]) for key in listed.json()["keys"]}
    assert told == {mine.key_id: ("the first", True), made.json()["id"]: ("CI", False)}
    assert client.delete(f"{PATH}/{made.json()['id']}").status_code == 204
    assert [key.key_id for key in keys.list()] == [mine.key_id]


def test_a_console_whose_database_is_out_of_reach_says_so(closed: Closed) -> None:
    client, keys, _ = closed
    assert client.get(PATH).status_code == 200
    assert isinstance(keys._store, Store)
    with out_of_reach(keys._store):
        answer = client.get(PATH)
    assert answer.status_code == 503
    assert "headrace_records" in answer.json()["message"]


def test_the_last_key_is_not_deleted(closed: Closed) -> None:
    client, keys, mine = closed
    refused = client.delete(f"{PATH}/{mine.key_id}")
    assert refused.status_code == 409
    assert "Create another one first" in refused.json()["message"]
    assert client.delete(f"{PATH}/HRAKMISSING").status_code == 404
    assert len(keys.list()) == 1


@pytest.mark.parametrize("_turn", range(3))
def test_of_keys_that_are_deleted_at_once_the_last_one_stays(_turn: int) -> None:
    with platform(is_open=False) as (client, keys, mine):
        pair = [f"{PATH}/{key_id}" for key_id in (mine.key_id, keys.create().key_id)]
        with ThreadPoolExecutor(2) as threads:
            statuses = [answer.status_code for answer in threads.map(client.delete, pair)]
        assert len(keys.list()) == 1
        assert sorted(statuses) in ([204, 409], [204, 403])  # 403: the caller's own key was deleted first


def test_of_keys_that_commands_delete_at_once_the_last_one_stays(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.make()
    with closing(open_store(folder.database)) as store:
        pair = [AccessKeys(store).create().key_id for _ in range(2)]
        command = [headrace_command(), "keys", "rm", "--data-dir", str(folder.root)]
        removing = [subprocess.Popen([*command, key_id], stderr=subprocess.PIPE, text=True) for key_id in pair]
        told = [process.communicate(timeout=WAIT_S)[1] for process in removing]
        (left,) = AccessKeys(store).list()
    assert {process.returncode: text for process, text in zip(removing, told, strict=True)}.keys() == {0, 2}
    assert f"{left.key_id} is the last key" in "".join(told)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("credentials", ["", "Bearer wrong"])
def test_nothing_is_told_or_done_without_a_key(closed: Closed, method: str, credentials: str) -> None:
    client, keys, mine = closed
    path = f"{PATH}/{mine.key_id}" if method == "DELETE" else PATH
    refused = client.request(method, path, headers={"authorization": credentials}, content=b"{}")
    assert refused.status_code == 403
    assert [key.key_id for key in keys.list()] == [mine.key_id]


def test_a_page_of_another_site_creates_none(closed: Closed) -> None:
    client, keys, _ = closed
    assert client.post(PATH, json={}, headers={"origin": "http://evil.example"}).status_code == 403
    assert len(keys.list()) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"note": 5}', b'{"name": "x"}', b"{" * 5000, b'{"note": "%s"}' % (b"x" * 201)]
)
def test_a_malformed_request_is_refused(closed: Closed, body: bytes) -> None:
    client, keys, _ = closed
    refused = client.post(PATH, content=body)
    assert refused.status_code == 400
    assert "xpected" in refused.json()["message"]
    assert len(keys.list()) == 1
    assert MAX_NOTE_CHARACTERS == 200


def test_an_open_platform_manages_no_keys_over_http() -> None:
    with platform(is_open=True) as (client, keys, _):
        told = client.get(PATH).json()
        assert (told["is_managed"], told["keys"]) == (False, [])
        for refused in (client.post(PATH, json={}), client.delete(f"{PATH}/{keys.list()[0].key_id}")):
            assert refused.status_code == 403
            assert "headrace keys" in refused.json()["message"]
        assert len(keys.list()) == 1


def test_a_deleted_key_is_refused_within_its_maximum_age(closed: Closed) -> None:
    client, keys, _ = closed
    made = client.post(PATH, json={}).json()
    theirs = {"authorization": f"Bearer {made['secret']}"}

    async def until(status: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while client.get(PATH, headers=theirs).status_code != status:
                await asyncio.sleep(0.05)

    asyncio.run(until(200))
    assert client.delete(f"{PATH}/{made['id']}").status_code == 204
    asyncio.run(until(403))
    assert len(keys.list()) == 1
