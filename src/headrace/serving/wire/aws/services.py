"""
botocore's models of the supported services, loaded once each.

Only botocore's own data is read, never `~/.aws/models`: models installed there for a client must not change a server.
"""

import functools
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.loaders import JSONFileLoader, Loader
from botocore.model import OperationModel, ServiceModel, Shape

from headrace.serving.wire.aws.served import SERVED

SERVICE_OF_TARGET: Mapping[str, str] = {
    "AmazonEC2ContainerRegistry_V20150921": "ecr",
    "AmazonSSM": "ssm",
    "AnyScaleFrontendService": "application-autoscaling",
    "GraniteServiceVersion20100801": "cloudwatch",
    "Logs_20140328": "logs",
    "SageMaker": "sagemaker",
}
"""Services by the prefix in `X-Amz-Target`."""

SERVICE_OF_SIGNING_NAME: Mapping[str, str] = {
    "application-autoscaling": "application-autoscaling",
    "cloudformation": "cloudformation",
    "ecr": "ecr",
    "iam": "iam",
    "logs": "logs",
    "monitoring": "cloudwatch",
    "s3": "s3",
    "s3express": "s3",
    "sagemaker": "sagemaker",
    "sns": "sns",
    "ssm": "ssm",
    "sts": "sts",
}
"""Services by the name in a signature's credential scope; `sagemaker` includes its runtime."""

SERVICE_OF_QUERY_VERSION: Mapping[str, str] = {
    "2010-03-31": "sns",
    "2010-05-08": "iam",
    "2010-05-15": "cloudformation",
    "2010-08-01": "cloudwatch",
    "2011-06-15": "sts",
}
"""Services by the `Version` of a form."""

WARMED = ("application-autoscaling", "cloudwatch", "iam", "logs", "sagemaker", "sagemaker-runtime", "sts")
"""The services whose models are loaded when a platform starts; those of the others, with their first call."""
MODELLED = tuple(sorted({*SERVED} - {"s3"}))
"""The services whose models are used."""


class _ModelFiles(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Files of botocore, whose equal texts and references to shapes are one object each, for a third less memory."""

    def __init__(self) -> None:
        self._references: dict[str, dict[str, str]] = {}

    def load_file(self, file_path: str) -> Any:
        with suppress(FileNotFoundError):
            return self._parsed(gzip.decompress(Path(f"{file_path}.json.gz").read_bytes()))
        with suppress(FileNotFoundError):
            return self._parsed(Path(f"{file_path}.json").read_bytes())
        return None

    def _parsed(self, text: bytes) -> Any:
        return json.loads(text, object_pairs_hook=self._shared)

    def _shared(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = {sys.intern(name): sys.intern(value) if type(value) is str else value for name, value in pairs}
        if len(found) != 1 or "shape" not in found:
            return found
        return self._references.setdefault(found["shape"], found)


_FILES = _ModelFiles()


@functools.cache
def model(service: str) -> ServiceModel:
    """Return the newest model of one of `MODELLED`. The first call reads a file (sagemaker: about 40 ms)."""
    loader = Loader([Loader.BUILTIN_DATA_PATH], file_loader=_FILES, include_default_search_paths=False)
    return ServiceModel(loader.load_service_model(service, "service-2"), service)


@functools.cache
def shape(service: str, name: str) -> Shape:
    """Return a shape of a service; the same one each time, as botocore resolves its members again for each."""
    return model(service).shape_for(name)


@functools.cache
def operation_names(service: str) -> frozenset[str]:
    """Return all operations of a service; empty for a service without a model."""
    return frozenset(model(service).operation_names) if service in MODELLED else frozenset()


def operation(service: str, name: str) -> OperationModel:
    """Return the model of one operation. Raises `KeyError`: the service has no operation of that name."""
    if name not in operation_names(service):
        raise KeyError(f"{service}.{name}")
    return model(service).operation_model(name)
