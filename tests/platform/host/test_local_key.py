"""The access key that a platform generates for its own machine, and how programs of its user find it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from headrace.core.processes import this_process
from headrace.platform.host.access_keys import AccessKeys, update_local_key
from headrace.platform.host.folders import (
    GENERATED_KEY_ID,
    Address,
    DataFolder,
    LocalKey,
    local_key_for,
    read_local_key,
)
from headrace.platform.state.store import Store, open_store
from headrace.tools.cli.api_key import api_key_for
from headrace.tools.cli.platform_client import find_platform
from tests import plain_http

from .running import Running, up

URL = "http://127.0.0.1:7450"
FLAGS = ("--s3-endpoint", "http://127.0.0.1:9")
STORAGE = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
ROUTES = [
    ("POST", "/", {"X-Amz-Target": "SageMaker.ListModels"}),
    ("POST", "/", {"Content-Type": "application/x-www-form-urlencoded"}),
    ("POST", "/endpoints/x/invocations", {}),
    ("POST", "/endpoints/x/invocations-response-stream", {}),
    ("GET", "/v1/models", {}),
    ("POST", "/v1/chat/completions", {}),
    ("POST", "/v1/messages", {}),
    ("GET", "/bucket/key", {}),
    ("PUT", "/bucket", {}),
    ("GET", "/metrics", {}),
    ("GET", "/metrics/targets", {}),
    ("GET", "/console/api/home", {}),
    ("GET", "/console/api/keys", {}),
]
"""Something of every service on the port."""
PAGES = ["/health", "/ping", "/console", "/console/web/console.js", "/openapi.json"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "records.sqlite")
    yield store
    store.close()


def statuses(platform: Running, headers: dict[str, str]) -> list[int]:
    with plain_http.Client(base_url=platform.url, headers=headers, trust_env=False) as client:
        return [client.request(method, path, headers=more).status_code for method, path, more in ROUTES]


def test_a_platform_for_this_machine_needs_the_key_that_it_has_generated(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    platform = up(folder, *FLAGS, env=STORAGE)
    try:
        key = platform.key
        assert key.is_generated
        assert (folder.stat().st_mode & 0o777, (folder / "access-key.json").stat().st_mode & 0o777) == (0o700, 0o600)
        for headers in ({}, {"Authorization": "Bearer headrace"}, {"Authorization": f"Bearer {GENERATED_KEY_ID}"}):
            assert set(statuses(platform, headers)) <= {400, 401, 403}, headers
        assert not {401, 403} & set(statuses(platform, platform.bearer))
        for path in PAGES:
            assert plain_http.get(platform.url + path).status_code == 200
        assert platform.client("sagemaker").list_models()["Models"] == []
        assert platform.client("sts").get_caller_identity()["Account"] == "000000000000"
        for command in (("ls",), ("ls", "--url", platform.url), ("env",), ("keys", "ls")):
            done = platform.headrace(*command, env={"AWS_ACCESS_KEY_ID": "of", "AWS_SECRET_ACCESS_KEY": "aws"})
            assert done.returncode == 0, done.stderr
        assert f"{platform.url}/console#key={key.secret}" in platform.headrace("status").stdout
        assert key.secret not in platform.log()
    finally:
        assert platform.stop() == 0, platform.log()
    again = up(folder, "--processes", "2", *FLAGS, env=STORAGE)
    try:
        assert again.key == key
        assert {tuple(statuses(again, again.bearer)) for _ in range(4)} == {tuple(statuses(again, again.bearer))}
        assert again.client("sagemaker").list_models()["Models"] == []
    finally:
        assert again.stop() == 0, again.log()


def test_an_open_platform_admits_all_of_this_machine_and_warns(tmp_path: Path) -> None:
    platform = up(tmp_path / "data", "--open", *FLAGS, env=STORAGE)
    try:
        assert not {401, 403} & set(statuses(platform, {}))
        assert '"event": "platform.open"' in platform.log()
        assert read_local_key(DataFolder(platform.folder)) is None
        status = platform.headrace("status").stdout
        assert f"{platform.url}/console\n" in status
        assert "not required" in status
    finally:
        assert platform.stop() == 0, platform.log()


def test_where_a_key_exists_none_is_generated(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shell = Running("", folder, None, tmp_path)  # type: ignore[arg-type] -- only for its commands
    made = dict(line.split("=", 1) for line in shell.headrace("keys", "create").stdout.split())
    platform = up(folder, *FLAGS, env=STORAGE)
    try:
        assert [row["key"] for row in json.loads(platform.headrace("keys", "ls", "--json").stdout)] == [
            made["AWS_ACCESS_KEY_ID"]
        ]
        assert platform.headrace("ls").returncode == 0, "commands use the one that exists"
        assert made["AWS_SECRET_ACCESS_KEY"] not in platform.headrace("status").stdout, "it was shown when it was made"
    finally:
        assert platform.stop() == 0, platform.log()


def test_processes_that_start_at_once_generate_one_key(store: Store, tmp_path: Path) -> None:
    def start(number: int) -> LocalKey | None:
        folder = DataFolder(tmp_path / str(number))
        folder.make()
        keys = AccessKeys(store)
        keys.generate()
        return update_local_key(keys, folder)

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(start, range(8)))
    assert found == {LocalKey(key_id=GENERATED_KEY_ID, secret=AccessKeys(store).list()[0].secret)}


def test_the_local_key_is_one_that_is_valid(store: Store, tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    keys = AccessKeys(store, folder)
    assert update_local_key(keys, folder) is None
    first, second = keys.create(), keys.create()
    folder.access_key.write_bytes(msgspec.json.encode({"key_id": second.key_id, "secret": "an old one"}))
    folder.access_key.chmod(0o644)
    assert update_local_key(keys, folder) == LocalKey(key_id=second.key_id, secret=second.secret)
    assert folder.access_key.stat().st_mode & 0o777 == 0o600
    for removed, left in ((second, first), (first, None)):
        assert keys.remove(removed.key_id)
        expected = None if left is None else LocalKey(key_id=left.key_id, secret=left.secret)
        assert read_local_key(folder) == expected
    assert not folder.access_key.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key_id": 1}', b"\xff"])
def test_a_damaged_file_is_no_key_and_is_replaced(store: Store, tmp_path: Path, content: bytes) -> None:
    folder, keys = DataFolder(tmp_path), AccessKeys(store)
    folder.access_key.write_bytes(content)
    assert read_local_key(folder) is None
    made = keys.create()
    assert update_local_key(keys, folder) == read_local_key(folder) == LocalKey(key_id=made.key_id, secret=made.secret)


def test_only_the_platform_that_runs_on_the_folder_gets_its_key(tmp_path: Path) -> None:
    """A killed platform leaves its address behind, at which a program of another user may listen."""
    folder, key = DataFolder(tmp_path), LocalKey(key_id="HRAK", secret="s3cret")
    folder.access_key.write_bytes(msgspec.json.encode(key))
    env = {"HEADRACE_UP_DATA_DIR": str(tmp_path)}
    of_aws = {**env, "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "aws"}
    pointing = {**of_aws, "AWS_ENDPOINT_URL": f"{URL}/"}
    with folder.announced(Address(url=URL)):
        assert local_key_for(URL, folder) == local_key_for(f"{URL}/endpoints/x", folder) == key
        assert api_key_for(f"{URL}/v1", None, of_aws) == "s3cret"
        assert api_key_for(f"{URL}/v1", None, pointing) == "aws"
        assert api_key_for(f"{URL}/v1", "given", env) == "given"
        assert find_platform(None, of_aws).secret_key == find_platform(URL, of_aws).secret_key == "s3cret"
        assert find_platform(None, pointing).secret_key == "aws"
        for other in ("http://127.0.0.1:7451", "http://127.0.0.1", "http://localhost:7450", f"{URL}1", f"{URL}.evil"):
            assert local_key_for(other, folder) is None
            assert api_key_for(other, None, env) is None
        assert not find_platform("http://localhost:7450", env).has_credentials
        folder.running.write_text(json.dumps({"url": URL, "process": {**asdict(this_process()), "start_ticks": 1}}))
        assert local_key_for(URL, folder) is None
        assert not find_platform(URL, env).has_credentials


def test_the_secret_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(LocalKey(key_id="HRAK", secret="s3cret"))


def test_a_folder_that_others_could_read_is_made_private_before_the_key_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    platform = up(folder, *FLAGS, env=STORAGE)
    assert platform.stop() == 0, platform.log()
    assert folder.stat().st_mode & 0o777 == 0o700
