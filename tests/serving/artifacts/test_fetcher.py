"""Artifacts of all sources are fetched into the cache, or refused with one clear error."""

import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed, Guard
from headrace.serving.artifacts.fetcher import Fetcher, redacted
from headrace.serving.artifacts.object_grants import GrantedObjects, refusal
from headrace.serving.artifacts.sources import ArtifactSource, GrantedObject, ObjectLocation
from tests.serving.artifacts.archive_maker import archive, file
from tests.serving.artifacts.object_server import Objects, ObjectServer

PACKED = archive([file("model/serving.properties", b"p"), file("model/weights", b"w" * 3000)])


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.fixture
def objects() -> Iterator[Objects]:
    with ObjectServer() as served:
        yield served


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ContentCache]:
    made = ContentCache(tmp_path / "cache")
    yield made
    made.close()


def fetcher(cache: ContentCache, objects: Objects | None = None, *, timeout_s: float = 60, **bounds) -> Fetcher:
    deadline = Deadline(timeout_s)

    def make_guard(folder: Path) -> Guard:
        return Guard(folder=folder, deadline=deadline, **{"reserve_bytes": 0, **bounds})

    scratch = cache.folder.parent / "scratch"
    opened = partial(GrantedObjects, ()) if objects is None else partial(Granted, objects)
    return Fetcher(objects=opened, cache=cache, scratch=scratch, deadline=deadline, make_guard=make_guard)


class Granted(GrantedObjects):
    """All objects of a server, each granted when it is asked for, as the platform grants it."""

    def __init__(self, objects: Objects, deadline: Deadline) -> None:
        super().__init__((), deadline)
        self._objects, self._opened_at = objects, deadline
        self.endpoint = objects.url

    def head(self, location: ObjectLocation) -> GrantedObject:
        return self._with_grant(location, is_prefix=False).head(location)

    def list_prefix(self, location: ObjectLocation) -> Sequence[GrantedObject]:
        return self._with_grant(location, is_prefix=True).list_prefix(location)

    def _with_grant(self, location: ObjectLocation, *, is_prefix: bool) -> GrantedObjects:
        source = ArtifactSource(uri=str(location), is_prefix=is_prefix)
        grants = self._objects.granted(WorkerSpec(name="w", artifacts=(source,), command=("x",))).grants
        super().__init__(grants, self._opened_at)
        return super()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


UNPACKED = {"model/serving.properties": b"p", "model/weights": b"w" * 3000}


def test_an_archive_in_a_bucket_is_unpacked_into_a_folder_of_its_name(objects, cache) -> None:
    objects.contents["/b/models/my llama.tar.gz"] = PACKED
    folder = fetcher(cache, objects).fetch(ArtifactSource(uri="s3://b/models/my llama.tar.gz"))
    assert files_in(folder) == UNPACKED
    assert folder.name == "my-llama"


def test_twins_that_macos_uploaded_beside_the_files_of_a_prefix_are_not_fetched(objects, cache) -> None:
    names = ("model.gguf", "._model.gguf", "__MACOSX/._model.gguf", "code/.DS_Store", "code/.env")
    objects.contents |= {f"/b/m/{name}": b"x" for name in names}
    folder = fetcher(cache, objects).fetch(ArtifactSource(uri="s3://b/m/", is_prefix=True, is_archive=False))
    assert sorted(files_in(folder)) == ["code/.env", "model.gguf"]


def test_each_version_is_fetched_once(objects, cache) -> None:
    source = ArtifactSource(uri="s3://b/m.tar.gz")
    objects.contents["/b/m.tar.gz"] = PACKED
    first = fetcher(cache, objects).fetch(source)
    assert fetcher(cache, objects).fetch(source) == first
    assert objects.gets == ["/b/m.tar.gz"]
    objects.contents["/b/m.tar.gz"] = archive([file("other")])
    assert files_in(fetcher(cache, objects).fetch(source)) == {"other": b"x"}
    assert files_in(first) == UNPACKED


@pytest.mark.parametrize("prefix", ["llama/", "llama"])
def test_a_prefix_is_fetched_as_a_folder(objects, cache, prefix) -> None:
    objects.contents |= {
        "/b/llama/": b"",
        "/b/llama/config.json": b"{}",
        "/b/llama/deep/w.bin": b"w",
        "/b/llama2/config.json": b"other",
    }
    folder = fetcher(cache, objects).fetch(ArtifactSource(uri=f"s3://b/{prefix}", is_prefix=True))
    assert files_in(folder) == {"config.json": b"{}", "deep/w.bin": b"w"}
    assert folder.name == "llama"


def test_a_prefix_is_fetched_again_when_an_object_has_changed(objects, cache) -> None:
    source = ArtifactSource(uri="s3://b/", is_prefix=True)
    objects.contents |= {"/b/x": b"1", "/b/y": b"2"}
    assert files_in(fetcher(cache, objects).fetch(source)) == {"x": b"1", "y": b"2"}
    objects.contents["/b/y"] = b"3"
    assert files_in(fetcher(cache, objects).fetch(source)) == {"x": b"1", "y": b"3"}


def test_an_object_that_is_not_an_archive_is_put_into_a_folder(objects, cache) -> None:
    objects.contents["/b/x/model.gguf"] = b"GGUF"
    folder = fetcher(cache, objects).fetch(ArtifactSource(uri="s3://b/x/model.gguf", is_archive=False))
    assert files_in(folder) == {"model.gguf": b"GGUF"}


def test_channels_are_fetched_beside_the_model(objects, cache) -> None:
    objects.contents |= {"/b/m.tar.gz": PACKED, "/b/draft/w": b"d"}
    fetched = fetcher(cache, objects).fetch_all(
        [
            ArtifactSource(uri="s3://b/m.tar.gz"),
            ArtifactSource(uri="s3://b/draft/", is_prefix=True, channel="draft_model"),
        ]
    )
    assert fetched.model is not None
    assert files_in(fetched.model) == UNPACKED
    assert files_in(fetched.channels["draft_model"]) == {"w": b"d"}


def test_an_empty_prefix_is_accepted_only_for_the_model_and_only_if_allowed(objects, cache) -> None:
    objects.contents["/b/x"] = b"1"
    empty = ArtifactSource(uri="s3://b/empty/", is_prefix=True, is_archive=False)
    assert fetcher(cache, objects).fetch_all([empty], may_be_empty=True).model is None
    with pytest.raises(FetchFailed, match=r"no objects below s3://b/empty/\. .* or name a model in HF_MODEL_ID"):
        fetcher(cache, objects).fetch_all([empty])
    with pytest.raises(FetchFailed, match="no objects below"):
        fetcher(cache, objects).fetch_all([replace(empty, channel="draft")], may_be_empty=True)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (ArtifactSource(uri="s3://b/nothing.tar.gz"), "s3://b/nothing.tar.gz does not exist"),
        (ArtifactSource(uri="s3://djl-ai/a.tar.gz"), "s3://djl-ai/a.tar.gz does not exist. djl-ai is a bucket of AWS"),
        (ArtifactSource(uri="s3://djl-ai/a/", is_prefix=True), "djl-ai is a bucket of AWS"),
        (ArtifactSource(uri="s3://nobucket/x/", is_prefix=True), "no such bucket"),
        (ArtifactSource(uri="s3://b/empty/", is_prefix=True), "no objects below s3://b/empty/"),
        (ArtifactSource(uri="s3://b/denied.tar.gz"), "is denied"),
        (ArtifactSource(uri="s3://b/text.tar.gz"), "not a complete tar.gz"),
        (ArtifactSource(uri="s3://b/cut.tar.gz"), "s3://b/cut.tar.gz"),
        (ArtifactSource(uri="s3://b/evil/", is_prefix=True), "outside of the model's folder"),
        (ArtifactSource(uri="s3://b/clash/", is_prefix=True), "cannot be stored"),
        (ArtifactSource(uri="s3://b/twice/", is_prefix=True), "two objects for the file 'a/x'"),
        (ArtifactSource(uri="s3://"), "expected s3://BUCKET/KEY"),
        (ArtifactSource(uri="ftp://b/x"), "begins with ftp:"),
        (ArtifactSource(uri="http://[b/x"), "not a valid URI"),
    ],
)
def test_a_failed_fetch_is_one_clear_error_and_leaves_nothing(objects, cache, source, said) -> None:
    objects.contents |= {
        "/b/denied.tar.gz": PACKED,
        "/b/text.tar.gz": b"hello " * 500,
        "/b/cut.tar.gz": archive([file("w", os.urandom(50_000))]),
        "/b/evil/../x": b"1",
        "/b/clash/a": b"1",
        "/b/clash/a/b": b"1",
        "/b/twice/a/x": b"1",
        "/b/twice/a//x": b"2",
    }
    objects.denied.add("/b/denied.tar.gz")
    objects.cut.add("/b/cut.tar.gz")
    with pytest.raises(FetchFailed) as caught:
        fetcher(cache, objects).fetch(source)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not cache.folder.exists() or {path.suffix for path in cache.folder.iterdir()} <= {".lock"}


def test_an_unreachable_object_storage_is_one_clear_error(cache) -> None:
    gone = Objects(url="http://127.0.0.1:1")
    with pytest.raises(FetchFailed, match="cannot be read"):
        fetcher(cache, gone).fetch(ArtifactSource(uri="s3://b/x.tar.gz"))


def test_a_full_disk_during_a_fetch_is_one_clear_error(objects, cache) -> None:
    objects.contents |= {"/b/m.tar.gz": PACKED, "/b/p/w": b"w" * 4000}
    for source in (ArtifactSource(uri="s3://b/m.tar.gz"), ArtifactSource(uri="s3://b/p/", is_prefix=True)):
        with pytest.raises(FetchFailed, match=r"The disk of .* is full"):
            fetcher(cache, objects, free_bytes=lambda _: 100).fetch(source)


def test_an_expired_deadline_is_one_clear_error(objects, cache) -> None:
    objects.contents["/b/m.tar.gz"] = PACKED
    with pytest.raises(FetchFailed, match="ModelDataDownloadTimeoutInSeconds"):
        fetcher(cache, objects, timeout_s=0).fetch(ArtifactSource(uri="s3://b/m.tar.gz"))


def test_http_is_fetched_and_cached_by_its_etag(objects, cache) -> None:
    objects.contents |= {"/x/m.tar.gz": PACKED, "/x/m.gguf": b"GGUF"}
    source = ArtifactSource(uri=f"{objects.url}/x/m.tar.gz?key=secret")
    folder = fetcher(cache).fetch(source)
    assert files_in(folder) == UNPACKED
    assert fetcher(cache).fetch(source) == folder
    alone = fetcher(cache).fetch(ArtifactSource(uri=f"{objects.url}/x/m.gguf", is_archive=False))
    assert files_in(alone) == {"m.gguf": b"GGUF"}


@pytest.mark.parametrize("path", ["/x/nothing", "/x/cut"])
def test_a_failed_http_fetch_is_one_clear_error_without_secrets(objects, cache, path) -> None:
    objects.contents["/x/cut"] = archive([file("w", os.urandom(50_000))])
    objects.cut.add("/x/cut")
    with pytest.raises(FetchFailed) as caught:
        fetcher(cache).fetch(ArtifactSource(uri=f"{objects.url}{path}?key=secret"))
    assert path in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_body_is_not_decoded_on_its_way(objects, cache) -> None:
    # A server that was asked for none names any number of codings: 1.8 KB of `gzip, gzip` made 3 GB.
    objects.contents |= {"/x/m.tar.gz": PACKED, "/x/twice.tar.gz": gzip.compress(PACKED), "/x/m.gguf": b"GGUF"}
    objects.codings = {"/x/m.tar.gz": "x-gzip", "/x/twice.tar.gz": "gzip, gzip", "/x/m.gguf": "gzip"}
    assert files_in(fetcher(cache).fetch(ArtifactSource(uri=f"{objects.url}/x/m.tar.gz"))) == UNPACKED
    with pytest.raises(FetchFailed, match=r"is not a complete tar\.gz archive"):
        fetcher(cache).fetch(ArtifactSource(uri=f"{objects.url}/x/twice.tar.gz"))
    with pytest.raises(FetchFailed, match="Content-Encoding 'gzip'; expected the file as it is"):
        fetcher(cache).fetch(ArtifactSource(uri=f"{objects.url}/x/m.gguf", is_archive=False))


def test_a_local_folder_is_used_in_place(tmp_path, cache) -> None:
    (tmp_path / "model").mkdir()
    assert fetcher(cache).fetch(ArtifactSource(uri=str(tmp_path / "model"))) == tmp_path / "model"
    assert fetcher(cache).fetch(ArtifactSource(uri=f"file://{tmp_path}/model")) == tmp_path / "model"


def test_a_local_archive_is_unpacked_once_for_each_version(tmp_path, cache) -> None:
    path = tmp_path / "m.tar.gz"
    path.write_bytes(PACKED)
    first = fetcher(cache).fetch(ArtifactSource(uri=str(path)))
    assert files_in(first) == UNPACKED
    assert fetcher(cache).fetch(ArtifactSource(uri=str(path))) == first
    path.write_bytes(archive([file("new")]))
    assert files_in(fetcher(cache).fetch(ArtifactSource(uri=str(path)))) == {"new": b"x"}


def test_another_local_file_is_linked(tmp_path, cache) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    source = ArtifactSource(uri=str(tmp_path / "m.gguf"), is_archive=False)
    assert files_in(fetcher(cache).fetch(source)) == {"m.gguf": b"GGUF"}
    assert files_in(fetcher(cache).fetch(source)) == {"m.gguf": b"GGUF"}


def test_a_missing_local_file_is_one_clear_error(tmp_path, cache) -> None:
    with pytest.raises(FetchFailed, match="neither a file nor a folder"):
        fetcher(cache).fetch(ArtifactSource(uri=str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    ("uri", "harmless"),
    [
        ("https://user:pw@host:1/a/b.tar.gz?X-Amz-Signature=s#f", "https://host:1/a/b.tar.gz"),
        ("s3://b/k?x", "s3://b/k?x"),
        ("/a/b", "/a/b"),
    ],
)
def test_secrets_in_uris_are_redacted(uri, harmless) -> None:
    assert redacted(uri) == harmless


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("NoSuchBucket", "s3://jumpstart-cache-prod-us-east-2/k", "is a bucket of AWS"),
        ("NoSuchBucket", "s3://b/k", "there is no such bucket"),
        ("NoSuchKey", "s3://b/k", "Check ModelDataUrl or S3Uri, and that the file was uploaded"),
        ("AccessDenied", "s3://b/k", "Check the keys of the object storage"),
        ("PreconditionFailed", "s3://b/k", "has changed during the download"),
        ("SlowDown", "s3://b/k", "cannot be read: Reduce your rate (SlowDown)"),
    ],
)
def test_an_error_of_the_object_storage_says_what_to_check(code, name, said) -> None:
    assert said in refusal(code, "Reduce your rate.", name)
