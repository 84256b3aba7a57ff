"""Parsers of what clients of ECR and SNS send: manifests, paths of the registry, messages and addresses."""

import json
from urllib.parse import urlsplit

from headrace.platform.account.image_store import BadImage, Manifest
from headrace.platform.account.sns import check_endpoint, message_texts
from headrace.platform.host.registry import route_of
from headrace.serving.wire.aws.errors import AwsError
from tests.fuzz.target import Malformed, Target

_DIGEST = f"sha256:{'0' * 64}"
_PART = {"mediaType": "a", "size": 5, "digest": _DIGEST}


def _manifest(data):
    """A manifest has a size, or is refused."""
    assert isinstance(Manifest(media_type="m", body=data, pushed_s=0.0).num_bytes, int)


def _path(data):
    """The parts of a path are names that no file system reads as another folder."""
    found = route_of(data.decode("latin-1"))
    if found is None:
        raise Malformed("no route")
    parts, _ = found
    repository = parts["repository"].split("/")
    assert not {"", ".", ".."} & {*repository}, parts
    assert all("/" not in value for name, value in parts.items() if name != "repository"), parts


def _message(data):
    """Each protocol gets a text."""
    texts = message_texts({"Message": data.decode("utf-8", "replace"), "MessageStructure": "json"})
    assert isinstance(texts["default"], str)


def _endpoint(data):
    """A message can be sent to an address that was accepted."""
    endpoint = data.decode("latin-1")
    check_endpoint("http", endpoint)
    url = urlsplit(endpoint)
    assert url.hostname
    assert url.port is None or 0 < url.port < 65536


TARGETS = (
    Target(
        "image-manifest",
        _manifest,
        (BadImage,),
        lambda: {
            "image": json.dumps({"config": _PART, "layers": [_PART, _PART]}).encode(),
            "index": json.dumps({"manifests": [_PART]}).encode(),
        },
        is_json=True,
        suite_cases=400,
    ),
    Target(
        "registry-path",
        _path,
        (),
        lambda: {
            "manifest": f"/v2/a/b-c/manifests/{_DIGEST}".encode(),
            "upload": f"/v2/a/blobs/uploads/{'0' * 32}".encode(),
        },
        words=(b"/../", b"%2F", b"//", b"/tags/list", b"/blobs/uploads/", b"a" * 300),
        suite_cases=400,
    ),
    Target(
        "sns-message",
        _message,
        (AwsError,),
        lambda: {"texts": b'{"default": "a", "http": "b", "https": "c"}'},
        is_json=True,
        suite_cases=400,
    ),
    Target(
        "sns-endpoint",
        _endpoint,
        (AwsError,),
        lambda: {"port": b"http://a.b:80/c?d=e", "address": b"http://[::1]:8080/", "user": b"http://u:p@h/"},
        words=(b"[", b"]", b":99999", b"@", b"\\", b"%00", b":0"),
        suite_cases=400,
    ),
)
