"""Real boto3 clients of CloudWatch, in each protocol that it has."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore
import botocore.session
import pytest
from botocore.config import Config

from tests.platform.control.support import AWS_SCOPE, Platform, running_platform
from tests.service_models import parsed_service_models

__all__ = ["parsed_service_models"]

PROTOCOLS = ("json", "smithy-rpc-v2-cbor", "query")
_MODEL = Path("cloudwatch", "2010-08-01", "service-2.json")


@pytest.fixture(scope="package")
def cloud() -> Iterator[Platform]:
    """A friendly control plane; tests use names of their own."""
    with running_platform(reconciles=False) as running:
        yield running


@pytest.fixture(scope="package", params=PROTOCOLS)
def client(request: Any, cloud: Platform, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client that knows one protocol only, as those of other languages and times do."""
    return client_of(cloud, request.param, tmp_path_factory.mktemp("models"))


def client_of(platform: Platform, protocol: str, folder: Path, **options: Any) -> Any:
    """A client by a model in which the service has one protocol."""
    packed = (Path(botocore.__file__).parent / "data" / _MODEL).with_suffix(".json.gz")
    model = json.loads(gzip.decompress(packed.read_bytes()))
    model["metadata"] |= {"protocol": protocol, "protocols": [protocol]}
    (folder / _MODEL).parent.mkdir(parents=True)
    (folder / _MODEL).write_text(json.dumps(model))
    session = botocore.session.get_session()
    session.get_component("data_loader").search_paths.insert(0, str(folder))
    made = boto3.Session(botocore_session=session).client(
        "cloudwatch",
        endpoint_url=platform.url,
        region_name=AWS_SCOPE.region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, proxies={}, **options),
    )
    platform.clients.append(made)
    assert made.meta.service_model.resolved_protocol == protocol
    return made
