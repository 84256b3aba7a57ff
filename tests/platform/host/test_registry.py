"""The registry of images by the distribution specification, and ECR's view of what was pushed."""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.core.files import Files
from headrace.platform.account.image_store import ImageStore
from tests import plain_http
from tests.waiting import WAIT_S

from .named_apps import KEY, SECRET
from .test_sts import Clock, client, closed_platform

MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
LAYERS = (b"layer one" * 1000, b"layer two")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Docker:
    """A client that sends the requests of `docker push` and `docker pull`."""

    url: str
    user: str
    password: str

    def call(self, method: str, path: str, **sent: Any) -> httpx.Response:
        url = path if path.startswith("http") else self.url + path
        headers = {
            "authorization": f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}",
            **sent.pop("headers", {}),
        }
        return plain_http.request(method, url, headers=headers, timeout=WAIT_S, **sent)

    def push_blob(self, name: str, content: bytes, *, parts: int = 1) -> str:
        digest = digest_of(content)
        if self.call("HEAD", f"/v2/{name}/blobs/{digest}").status_code == 200:
            return digest
        place = self.call("POST", f"/v2/{name}/blobs/uploads/").headers["location"]
        step = -(-len(content) // parts)
        for start in range(0, len(content), step):
            sent = self.call("PATCH", place, content=content[start : start + step])
            assert (sent.status_code, sent.headers["range"]) == (202, f"0-{min(start + step, len(content)) - 1}")
        done = self.call("PUT", place, params={"digest": digest})
        assert (done.status_code, done.headers["docker-content-digest"]) == (201, digest)
        return digest

    def push(self, name: str, tag: str, layers: tuple[bytes, ...] = LAYERS) -> bytes:
        config = json.dumps({"architecture": "amd64", "tag": tag}).encode()
        digests = [self.push_blob(name, content, parts=2) for content in (config, *layers)]
        parts = [
            {"digest": digest, "size": len(content)} for digest, content in zip(digests, (config, *layers), strict=True)
        ]
        manifest = json.dumps({"schemaVersion": 2, "config": parts[0], "layers": parts[1:]}).encode()
        put = self.call("PUT", f"/v2/{name}/manifests/{tag}", content=manifest, headers={"content-type": MEDIA_TYPE})
        assert (put.status_code, put.headers["docker-content-digest"]) == (201, digest_of(manifest))
        return manifest

    def pull(self, name: str, reference: str) -> tuple[bytes, list[bytes]]:
        found = self.call("GET", f"/v2/{name}/manifests/{reference}")
        assert found.headers["content-type"] == MEDIA_TYPE
        layers = json.loads(found.content)["layers"]
        return found.content, [self.call("GET", f"/v2/{name}/blobs/{layer['digest']}").content for layer in layers]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Docker]]:
    images = ImageStore(Files(tmp_path_factory.mktemp("registry")))
    with closed_platform(Clock(), images) as (url, _):
        ecr = client("ecr", url)
        (data,) = ecr.get_authorization_token()["authorizationData"]
        user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        yield url, ecr, Docker(url, user, password)


def codes(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["errors"][0]["code"]


def test_an_image_is_pushed_pulled_listed_and_deleted(scene: tuple[str, Any, Docker]) -> None:
    _, ecr, docker = scene
    name = "team/server"
    made = ecr.create_repository(repositoryName=name, tags=[{"Key": "a", "Value": "1"}])["repository"]
    assert made["repositoryArn"] == f"arn:aws:ecr:us-east-1:123456789012:repository/{name}"
    assert made["repositoryUri"].endswith(f"/{name}")
    assert ecr.list_tags_for_resource(resourceArn=made["repositoryArn"])["tags"] == [{"Key": "a", "Value": "1"}]
    with pytest.raises(ecr.exceptions.RepositoryAlreadyExistsException):
        ecr.create_repository(repositoryName=name)
    first, second = docker.push(name, "v1"), docker.push(name, "v2")
    docker.push(name, "latest", LAYERS[:1])
    assert docker.pull(name, "v1") == (first, list(LAYERS))
    assert docker.pull(name, digest_of(second)) == (second, list(LAYERS))
    head = docker.call("HEAD", f"/v2/{name}/manifests/v1")
    assert (head.status_code, head.headers["docker-content-digest"]) == (200, digest_of(first))
    assert docker.call("GET", f"/v2/{name}/tags/list").json() == {"name": name, "tags": ["latest", "v1", "v2"]}
    mounted = docker.call("POST", f"/v2/{name}/blobs/uploads/", params={"mount": digest_of(LAYERS[0]), "from": "x"})
    assert mounted.status_code == 201
    assert {image["imageTag"] for image in ecr.list_images(repositoryName=name)["imageIds"]} == {"v1", "v2", "latest"}
    (detail,) = ecr.describe_images(repositoryName=name, imageIds=[{"imageTag": "v1"}])["imageDetails"]
    assert (detail["imageDigest"], detail["imageTags"]) == (digest_of(first), ["v1"])
    assert detail["imageSizeInBytes"] > sum(map(len, LAYERS))
    got = ecr.batch_get_image(repositoryName=name, imageIds=[{"imageTag": "v1"}, {"imageTag": "v9"}])
    assert got["images"][0]["imageManifest"].encode() == first
    assert [failure["failureCode"] for failure in got["failures"]] == ["ImageNotFound"]
    with pytest.raises(ecr.exceptions.ImageNotFoundException):
        ecr.describe_images(repositoryName=name, imageIds=[{"imageTag": "v9"}])
    ecr.batch_delete_image(repositoryName=name, imageIds=[{"imageTag": "v1"}])
    untagged = ecr.list_images(repositoryName=name, filter={"tagStatus": "UNTAGGED"})["imageIds"]
    assert untagged == [{"imageDigest": digest_of(first)}]
    with pytest.raises(ecr.exceptions.RepositoryNotEmptyException):
        ecr.delete_repository(repositoryName=name)
    assert name in {found["repositoryName"] for found in ecr.describe_repositories()["repositories"]}
    ecr.delete_repository(repositoryName=name, force=True)
    assert codes(docker.call("GET", f"/v2/{name}/manifests/v2")) == (404, "NAME_UNKNOWN")
    with pytest.raises(ecr.exceptions.RepositoryNotFoundException):
        ecr.describe_repositories(repositoryNames=[name])


def test_what_is_pushed_wrongly_is_refused(scene: tuple[str, Any, Docker]) -> None:
    _, ecr, docker = scene
    ecr.create_repository(repositoryName="strict")
    place = docker.call("POST", "/v2/strict/blobs/uploads/").headers["location"]
    absent = {"digest": digest_of(b"absent"), "size": 1}
    manifest = "/v2/strict/manifests/"
    refused = {
        "a repository that does not exist": docker.call("POST", "/v2/other/blobs/uploads/"),
        "another range": docker.call("PATCH", place, content=b"a", headers={"content-range": "5-5"}),
        "another digest": docker.call("PUT", place, content=b"a", params={"digest": digest_of(b"b")}),
        "an upload that has ended": docker.call("PUT", place, params={"digest": digest_of(b"a")}),
        "no digest": docker.call("POST", "/v2/strict/blobs/uploads/", params={"digest": "md5:1"}, content=b"a"),
        "a layer that was not pushed": docker.call("PUT", manifest + "v", json={"config": absent, "layers": []}),
        "no manifest": docker.call("PUT", manifest + "v", content=b"[]"),
        "a size that is no number": docker.call("PUT", manifest + "v", json={"config": {"size": "x"}}),
        "a reference of another manifest": docker.call("PUT", manifest + digest_of(b"b"), json={"layers": []}),
        "a manifest that does not exist": docker.call("GET", manifest + "none"),
        "a blob that does not exist": docker.call("GET", f"/v2/strict/blobs/{digest_of(b'none')}"),
        "a digest that is a path": docker.call("GET", "/v2/strict/blobs/sha256:..%5c..%5csecret"),
        "another method": docker.call("POST", manifest + "v"),
    }
    assert {name: codes(answer) for name, answer in refused.items()} == {
        "a repository that does not exist": (404, "NAME_UNKNOWN"),
        "another range": (416, "RANGE_INVALID"),
        "another digest": (400, "DIGEST_INVALID"),
        "an upload that has ended": (404, "BLOB_UPLOAD_UNKNOWN"),
        "no digest": (400, "DIGEST_INVALID"),
        "a layer that was not pushed": (400, "MANIFEST_BLOB_UNKNOWN"),
        "no manifest": (400, "MANIFEST_INVALID"),
        "a size that is no number": (400, "MANIFEST_INVALID"),
        "a reference of another manifest": (400, "DIGEST_INVALID"),
        "a manifest that does not exist": (404, "MANIFEST_UNKNOWN"),
        "a blob that does not exist": (404, "BLOB_UNKNOWN"),
        "a digest that is a path": (404, "BLOB_UNKNOWN"),
        "another method": (405, "UNSUPPORTED"),
    }


def test_only_passwords_of_the_registry_and_access_keys_open_it(scene: tuple[str, Any, Docker]) -> None:
    url, _, docker = scene
    session = client("sts", url).get_session_token()["Credentials"]
    statuses = {
        "password": docker.call("GET", "/v2/").status_code,
        "access key": Docker(url, KEY, SECRET).call("GET", "/v2/").status_code,
        "wrong secret": Docker(url, KEY, "guessed").call("GET", "/v2/").status_code,
        "token of a session": Docker(url, "AWS", session["SessionToken"]).call("GET", "/v2/").status_code,
        "changed password": Docker(url, "AWS", docker.password[::-1]).call("GET", "/v2/").status_code,
        "no Basic": docker.call("GET", "/v2/", headers={"authorization": "Basic !"}).status_code,
    }
    assert statuses == {name: 200 if name in ("password", "access key") else 401 for name in statuses}
    challenge = plain_http.get(f"{url}/v2/", timeout=WAIT_S)
    assert (challenge.status_code, challenge.headers["www-authenticate"]) == (401, 'Basic realm="Headrace"')


def test_blobs_without_an_image_are_removed_a_day_later(tmp_path: Path) -> None:
    now_s = [0.0]
    images = ImageStore(Files(tmp_path), now_s=lambda: now_s[0])

    def push(content: bytes) -> str:
        upload = images.begin_upload()
        images.append(upload, content)
        images.finish_upload(upload, digest_of(content))
        return digest_of(content)

    shared, own = push(b"shared"), push(b"own")
    now_s[0] = (tmp_path / "blobs" / own.partition(":")[2]).stat().st_mtime
    given_up = images.begin_upload()

    def put(name: str, *layers: str) -> str:
        parts = [{"digest": digest, "size": 1} for digest in layers]
        return images.put_manifest(name, "v", MEDIA_TYPE, json.dumps({"layers": parts}).encode())

    put("a", shared)
    digest = put("b", shared, own)
    assert images.delete("b", digest)
    assert images.blob(own) is not None
    now_s[0] += 2 * 86_400
    images.begin_upload()
    assert images.upload_size(given_up) is None
    put("b", shared)
    images.delete_repository("b")
    assert (images.blob(own), images.blob(shared) is not None) == (None, True)
