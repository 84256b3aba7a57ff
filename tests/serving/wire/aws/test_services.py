"""The tables of services agree with botocore's models, which are read from botocore alone."""

import json
import os
import re
import subprocess
import sys

import pytest

from headrace.platform.host.operations import OPERATIONS
from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.served import SERVED
from headrace.tools.cli.up import up
from tests.pages import DOCS


def test_the_tables_agree_with_the_models():
    for service in services.MODELLED:
        metadata = services.model(service).metadata
        signing_name = metadata.get("signingName", metadata["endpointPrefix"])

        assert services.SERVICE_OF_SIGNING_NAME[signing_name] == service.removesuffix("-runtime")
        if "targetPrefix" in metadata:
            assert services.SERVICE_OF_TARGET[metadata["targetPrefix"]] == service
        if "query" in metadata["protocols"]:
            assert services.SERVICE_OF_QUERY_VERSION[metadata["apiVersion"]] == service


def test_the_help_and_the_documentation_name_every_service():
    served = {service for service, _ in OPERATIONS} | {"sagemaker-runtime", "s3"}
    assert {*SERVED} == served
    for text in (up.help, (DOCS / "platform.md").read_text().partition("## ")[0]):
        assert not [service for service in SERVED if not re.search(rf"\b{service}\b", text)]


def test_an_operation_is_found_by_name():
    assert services.operation("sagemaker", "CreateEndpoint").name == "CreateEndpoint"
    assert "InvokeEndpoint" in services.operation_names("sagemaker-runtime")
    assert services.operation_names("ec2") == frozenset()
    with pytest.raises(KeyError, match=r"sagemaker\.InvokeEndpoint"):
        services.operation("sagemaker", "InvokeEndpoint")


def test_models_in_the_home_folder_are_not_loaded(tmp_path):
    folder = tmp_path / ".aws" / "models" / "sts" / "2099-01-01"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps({"metadata": {}, "operations": {"Evil": {}}, "shapes": {}}))
    program = "from headrace.serving.wire.aws import services; print('Evil' in services.operation_names('sts'))"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "False"
