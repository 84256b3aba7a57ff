"""The table of operations in the documentation."""

import pytest

from headrace.serving.wire.aws import coverage, services

HANDLED = {("sagemaker", "CreateModel"), ("sagemaker", "DeleteModel"), ("sts", "GetCallerIdentity")}


def test_every_operation_of_every_model_is_named_once():
    page = coverage.markdown(HANDLED)

    for service in services.MODELLED:
        section = page.split(f"## {service} (")[1].split("\n## ")[0]
        for name in services.operation_names(service):
            assert section.count(f"`{name}`") == 1, name


def test_a_handled_operation_shows_its_request_and_response_members():
    page = coverage.markdown(HANDLED, documented=["sagemaker", "sts"])

    assert "| `DeleteModel` | **ModelName** | - |" in page
    assert "| `GetCallerIdentity` | - | UserId, Account, Arn |" in page
    assert f"| `sagemaker` | {len(services.operation_names('sagemaker'))} | 2 |" in page
    assert "## logs" not in page


def test_the_same_operations_give_the_same_page():
    assert coverage.markdown(sorted(HANDLED)) == coverage.markdown(sorted(HANDLED, reverse=True))


def test_a_handled_operation_that_no_model_has_is_a_mistake():
    with pytest.raises(ValueError, match=r"sagemaker\.CreateModle"):
        coverage.markdown({("sagemaker", "CreateModle")})
