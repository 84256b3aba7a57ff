"""The table of operations in the documentation."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from headrace.serving.wire.aws import services

SPEC = spec_from_file_location("aws_operations", Path(__file__).parent.parent / "scripts" / "aws_operations.py")
aws_operations = sys.modules["aws_operations"] = module_from_spec(SPEC)
SPEC.loader.exec_module(aws_operations)

HANDLED = {("sagemaker", "CreateModel"), ("sagemaker", "DeleteModel"), ("sts", "GetCallerIdentity")}


def test_every_operation_of_every_model_is_named_once():
    page = aws_operations.markdown(HANDLED)

    for service in services.MODELLED:
        section = page.split(f"## {service} (")[1].split("\n## ")[0]
        for name in services.operation_names(service):
            assert section.count(f"`{name}`") == 1, name


def test_a_handled_operation_shows_its_request_and_response_members():
    page = aws_operations.markdown(HANDLED, documented=["sagemaker", "sts"])

    assert "| `DeleteModel` | **ModelName** | - |" in page
    assert "| `GetCallerIdentity` | - | UserId, Account, Arn |" in page
    assert f"| `sagemaker` | {len(services.operation_names('sagemaker'))} | 2 |" in page
    assert "## logs" not in page


def test_the_same_operations_give_the_same_page():
    assert aws_operations.markdown(sorted(HANDLED)) == aws_operations.markdown(sorted(HANDLED, reverse=True))


def test_a_handled_operation_that_no_model_has_is_a_mistake():
    with pytest.raises(ValueError, match=r"sagemaker\.CreateModle"):
        aws_operations.markdown({("sagemaker", "CreateModle")})
