"""Models of TorchServe's store: those of the start, and those that clients register by name or address."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError, SettingsError
from headrace.serving.handlers.torchserve_store import ModelStore, holds_models, is_model_store
from headrace.serving.wire.torchserve.management import ApiError, Registration
from tests.headrace_handler.torchserve_models import pack, write_model
from tests.serving.handlers.support import num_open_files

HANDLER = "def handle(data, context): return data and ['OK'] * len(data)"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two archives and a folder."""
    store = tmp_path / "store"
    write_model(store / "c_folder", HANDLER, modelName="c")
    pack(write_model(tmp_path / "a", HANDLER), store / "a.mar")
    pack(write_model(tmp_path / "b", HANDLER, modelVersion="2.0"), store / "b.mar")
    return store


def make_store(folder: Path | None, cache: Path, **env: str) -> ModelStore:
    return ModelStore(folder, env=env, cache_folder=cache)


def names(store: ModelStore) -> list[str]:
    return [model.plan.spec.model_name for model in store.startup_models() if model.plan.spec is not None]


def refusal(store: ModelStore, url: str) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as caught:
        store.find(Registration(url=url))
    return caught.value.status, caught.value.kind, caught.value.message


@pytest.mark.parametrize(
    ("load_models", "expected"),
    [
        ("", ["a", "b", "c"]),
        ("all", ["a", "b", "c"]),
        ("none", []),
        ("b.mar, first=a.mar", ["b", "first"]),
        ("c_folder", ["c"]),
    ],
)
def test_load_models_names_the_models_of_the_start(
    store: Path, tmp_path: Path, load_models: str, expected: list[str]
) -> None:
    assert names(make_store(store, tmp_path / "cache", TS_LOAD_MODELS=load_models)) == expected


def test_a_model_of_the_start_that_is_not_there_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"load_models names 'x\.mar': Model not found in model store: x\.mar\."):
        make_store(store, tmp_path / "cache", TS_LOAD_MODELS="x.mar").startup_models()


def test_a_folder_is_a_store_if_it_has_models_and_is_none(store: Path, tmp_path: Path) -> None:
    assert holds_models(store)
    assert is_model_store(store, {})
    assert not holds_models(store / "c_folder")
    single = tmp_path / "single"
    single.mkdir()
    assert not holds_models(single)
    (store / "a.mar").rename(single / "a.mar")
    assert holds_models(single)
    assert not is_model_store(single, {})
    assert is_model_store(single, {"TS_LOAD_MODELS": "all"})


def test_a_registration_sets_what_the_files_of_the_model_leave_open(store: Path, tmp_path: Path) -> None:
    (store / "c_folder" / "model-config.yaml").write_text("batchSize: 3\n")
    registration = Registration(
        url="c_folder", model_name="mine", handler="service.py:handle", batch_size=8, max_batch_delay_ms=7
    )

    spec = make_store(store, tmp_path / "cache").find(registration)

    assert (spec.model_name, spec.load.entry) == ("mine", "service.py:handle")
    assert (spec.batch_size, spec.max_batch_delay_ms) == (3, 7)


def test_the_key_models_sets_workers_and_the_default_version(store: Path, tmp_path: Path) -> None:
    entry = {"minWorkers": 2, "maxWorkers": 3, "responseTimeout": 9, "defaultVersion": True}
    given = json.dumps({"b": {"2.0": entry, "1.0": {"minWorkers": 9, "maxWorkers": 9}}})

    _, model, _ = make_store(store, tmp_path / "cache", TS_MODELS=given).startup_models()

    assert model.plan.spec is not None
    assert (model.plan.spec.min_workers, model.plan.spec.max_workers, model.plan.spec.call_timeout_s) == (2, 3, 9)
    assert model.is_default


def test_places_outside_of_the_store_are_not_found(store: Path, tmp_path: Path) -> None:
    (store / "link.mar").symlink_to(tmp_path / "a")
    models = make_store(store, tmp_path / "cache")

    for url in ("x.mar", "/etc/passwd", "link.mar", "s3://bucket/x.mar", "a\0b"):
        assert refusal(models, url) == (404, "ModelNotFoundException", f"Model not found in model store: {url}")
    status, _, message = refusal(make_store(None, tmp_path / "cache"), "a.mar")
    assert (status, message) == (404, "Model store has not been configured.")


def test_a_file_address_may_lead_to_any_archive_that_allowed_urls_name(store: Path, tmp_path: Path) -> None:
    url = f"file://{store}/a.mar"
    assert make_store(None, tmp_path / "cache").find(Registration(url=url)).model_name == "a"

    limited = make_store(None, tmp_path / "cache", TS_ALLOWED_URLS="https://models/.*")
    text = f"Given URL {url} does not match any allowed URL(s)"
    assert refusal(limited, url) == (404, "ModelNotFoundException", text)
    status, _, message = refusal(make_store(None, tmp_path / "cache"), "file:///etc/hostname")
    assert (status, message) == (400, "hostname is no archive; expected .mar, .tgz or .tar.gz.")
    assert refusal(make_store(None, tmp_path), "file:///no/where.mar")[2] == "Model not found at: file:///no/where.mar"


class _Files(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved.mar":
            self.send_response(302)
            self.send_header("Location", "/a.mar")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url(store: Path) -> Iterator[str]:
    """A server of the archives; `/moved.mar` leads to another one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(store))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_archive_is_downloaded(url: str, tmp_path: Path) -> None:
    models = make_store(None, tmp_path / "cache")

    assert models.find(Registration(url=f"{url}/b.mar")).model_name == "b"
    assert models.find(Registration(url=f"{url}/moved.mar")).model_name == "a"
    status, kind, message = refusal(models, f"{url}/none.mar")
    assert (status, kind) == (400, "DownloadArchiveException")
    assert message.startswith(f"Failed to download archive from: {url}/none.mar. ")


def test_a_redirect_does_not_lead_around_allowed_urls(url: str, tmp_path: Path) -> None:
    models = make_store(None, tmp_path / "cache", TS_ALLOWED_URLS=f"{url}/moved.mar")

    assert "returned status 302; expected 200" in refusal(models, f"{url}/moved.mar")[2]


def test_the_locks_of_a_model_are_released_with_it_and_when_it_cannot_be_served(url: str, tmp_path: Path) -> None:
    models = make_store(tmp_path / "store", tmp_path / "cache")
    folder = write_model(tmp_path / "broken", HANDLER)
    (folder / "model-config.yaml").write_text("batchSize: [")
    pack(folder, tmp_path / "store" / "broken.mar")
    num_before = num_open_files(tmp_path / "cache")
    spec = models.find(Registration(url=f"{url}/b.mar"))
    assert num_open_files(tmp_path / "cache") == num_before + 1
    spec.release()
    with pytest.raises(HeadraceError, match="model-config"):
        models.find(Registration(url="broken.mar"))
    assert num_open_files(tmp_path / "cache") == num_before


def test_packages_that_cannot_be_installed_fail_with_torchserves_text(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "store" / "m", HANDLER, requirementsFile="requirements.txt")
    (folder / "requirements.txt").write_text("no-such-package-of-these-tests\n")
    models = make_store(folder.parent, tmp_path / "cache", SERVING_OFFLINE="true", PATH="/usr/bin:/bin")

    assert refusal(models, "m") == (400, "ModelException", "Custom pip package installation failed for model m")
