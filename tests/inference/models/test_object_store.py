"""Models under an S3 prefix are copied once, go on after an interruption, and follow their objects."""

import json

import pytest

from headrace.core.errors import ModelNotFound, UnsupportedModel
from headrace.core.progress import no_progress
from headrace.inference.models import object_store
from headrace.inference.models.sources import locate
from headrace.inference.models.store import list_models, remove_model
from tests.serving.artifacts.object_server import ObjectServer

WEIGHTS = bytes(range(256)) * 4096
MODEL = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"second copy",
    "README.md": b"text",
    "onnx/model.safetensors": b"another format",
    "tokenizer.model": b"pieces",
}
URI = "s3://bucket/models/mine"


@pytest.fixture
def storage(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with ObjectServer() as objects:
        monkeypatch.setenv("AWS_ENDPOINT_URL", objects.url)
        objects.contents |= {f"/bucket/models/mine/{name}": content for name, content in MODEL.items()}
        yield objects


def fetch(home, uri=URI, progress=no_progress):
    return locate(uri, revision=None, home=home, progress=progress).path


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_files_of_a_model_are_copied_and_those_of_other_formats_are_not(storage, tmp_path):
    reports = []
    folder = fetch(tmp_path, progress=lambda *report: reports.append(report[:3]))

    assert names(folder) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    total = len(WEIGHTS) + len(b"{}pieces")
    assert reports[0] == (f"Downloading {URI}", 0, total)
    assert reports[-1] == (f"Downloading {URI}", total, total)


def test_a_bucket_of_aws_that_is_not_here_is_explained(storage, tmp_path):
    with pytest.raises(ModelNotFound, match=r"s3://djl-ai/opt .*NoSuchBucket\): djl-ai is a bucket of AWS"):
        fetch(tmp_path, "s3://djl-ai/opt")


def test_a_second_start_downloads_nothing_and_a_changed_object_again(storage, tmp_path):
    folder = fetch(tmp_path)
    del storage.gets[:]

    assert fetch(tmp_path, f"{URI}/") == folder
    assert storage.gets == []
    storage.contents["/bucket/models/mine/config.json"] = b"[]"
    del storage.contents["/bucket/models/mine/tokenizer.model"]
    fetch(tmp_path)
    assert storage.gets == ["/bucket/models/mine/config.json"]
    assert (folder / "config.json").read_bytes() == b"[]"
    assert names(folder) == ["config.json", "model.safetensors"]


def test_templates_modules_and_adapters_are_copied_from_their_folders_and_deleted_with_their_objects(storage, tmp_path):
    inner = {
        "additional_chat_templates/tool_use.jinja": b"tools",
        "1_Pooling/config.json": b"{}",
        "adapters/law/adapter_config.json": b"{}",
    }
    more = {"additional_chat_templates/._tool_use.jinja": b"twin", "additional_chat_templates/../../out.jinja": b"no"}
    storage.contents |= {f"/bucket/models/mine/{name}": content for name, content in (inner | more).items()}
    folder = fetch(tmp_path)

    assert {name: (folder / name).read_bytes() for name in inner} == inner
    assert not list(tmp_path.rglob("out.jinja"))
    assert not list(tmp_path.rglob("._*"))
    del storage.contents["/bucket/models/mine/additional_chat_templates/tool_use.jinja"]
    fetch(tmp_path)
    assert not (folder / "additional_chat_templates" / "tool_use.jinja").exists()
    assert (folder / "1_Pooling" / "config.json").exists()


def test_a_download_goes_on_where_it_stopped(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "_ATTEMPTS", 1)
    monkeypatch.setattr(object_store, "_PIECE_BYTES", 1000)
    storage.cut.add("/bucket/models/mine/model.safetensors")
    with pytest.raises(ModelNotFound, match="Check the network"):
        fetch(tmp_path)
    (partial,) = tmp_path.rglob("model.safetensors.*.partial")
    kept = partial.stat().st_size
    assert 0 < kept < len(WEIGHTS)

    storage.cut.clear()
    reports = []
    folder = fetch(tmp_path, progress=lambda *report: reports.append(report[1]))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert kept in reports
    assert not list(folder.glob("*.partial"))


def test_a_partial_file_that_is_too_long_is_written_from_its_start(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "_ATTEMPTS", 1)
    storage.cut.add("/bucket/models/mine/model.safetensors")
    with pytest.raises(ModelNotFound, match="Check the network"):
        fetch(tmp_path)
    (partial,) = tmp_path.rglob("model.safetensors.*.partial")
    partial.write_bytes(bytes(len(WEIGHTS) + 1))

    storage.cut.clear()
    assert (fetch(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_download_that_is_shorter_than_its_object_is_an_error(storage, tmp_path):
    storage.emptied.add("/bucket/models/mine/model.safetensors")
    for _ in range(2):  # the copy is not complete
        with pytest.raises(ModelNotFound, match=f"model.safetensors has 0 bytes; expected {len(WEIGHTS)}"):
            fetch(tmp_path)

    storage.emptied.clear()
    assert (fetch(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_snapshot_of_pickles_is_copied_with_them(storage, tmp_path):
    del storage.contents["/bucket/models/mine/model.safetensors"]
    assert names(fetch(tmp_path)) == ["config.json", "pytorch_model.bin", "tokenizer.model"]


def test_gguf_files_are_named_or_found(storage, tmp_path):
    storage.contents |= {f"/bucket/gguf/m-0000{part}-of-00002.gguf": b"GGUF" for part in (1, 2)}
    storage.contents |= {"/bucket/two/a.gguf": b"a", "/bucket/two/b.gguf": b"b"}

    found = fetch(tmp_path, "s3://bucket/gguf")
    assert found.name == "m-00001-of-00002.gguf"
    assert names(found.parent) == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    first = fetch(tmp_path, "s3://bucket/gguf/m-00001-of-00002.gguf")
    assert (first.name, len(names(first.parent))) == ("m-00001-of-00002.gguf", 2)
    assert fetch(tmp_path, "s3://bucket/two/b.gguf").read_bytes() == b"b"
    with pytest.raises(ModelNotFound, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        fetch(tmp_path, "s3://bucket/two")


def test_a_complete_copy_is_used_when_the_storage_cannot_be_reached(storage, tmp_path, monkeypatch):
    folder = fetch(tmp_path)
    monkeypatch.setattr(object_store, "_ATTEMPTS", 1)
    monkeypatch.setattr(object_store, "_client", unreachable_client(monkeypatch))

    assert fetch(tmp_path) == folder
    manifest = json.loads((folder / ".headrace.json").read_bytes())
    (folder / ".headrace.json").write_text(json.dumps(manifest | {"complete": False}))
    with pytest.raises(ModelNotFound, match="Check the network"):
        fetch(tmp_path)


def unreachable_client(monkeypatch):
    """The client as it is made for a port where nothing listens; the copy stays that of the first endpoint."""
    real = object_store._client

    def make(uri):
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
            return real(uri)

    return make


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://nothing/x", "no such bucket"),
        ("s3://bucket/other", "no object has a key under other/"),
        ("s3://bucket/models/mine/x.gguf", r"there is no s3://bucket/models/mine/x\.gguf"),
        ("s3://bucket/models/mine/onnx", "neither a config.json nor a .gguf"),
    ],
)
def test_what_is_not_there_is_named(storage, tmp_path, uri, message):
    with pytest.raises(ModelNotFound, match=message):
        fetch(tmp_path, uri)


def test_a_denied_object_is_named_and_nothing_is_served(storage, tmp_path):
    storage.denied.add("/bucket/models/mine/model.safetensors")
    with pytest.raises(ModelNotFound, match="access is denied"):
        fetch(tmp_path)


def test_keys_that_lead_out_of_the_folder_are_not_copied(storage, tmp_path):
    storage.contents |= {"/bucket/models/mine/..": b"x", "/bucket/models/mine/../evil.json": b"x"}
    fetch(tmp_path)
    assert not list(tmp_path.rglob("evil.json"))


def test_missing_credentials_are_explained(storage, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ModelNotFound, match="Set AWS_ACCESS_KEY_ID"):
        fetch(tmp_path)


def test_a_revision_is_refused(storage, tmp_path):
    with pytest.raises(UnsupportedModel, match="no revisions"):
        locate(URI, revision="main", home=tmp_path, progress=no_progress)


def test_copies_are_listed_by_their_address_and_removed(storage, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-hub"))
    folder = fetch(tmp_path)
    (stored,) = list_models(tmp_path)
    assert (stored.name, stored.kind, stored.path) == (URI, "s3", folder)
    assert remove_model(URI, home=tmp_path) > len(WEIGHTS)
    assert not folder.exists()
