"""The page of AWS's operations in the documentation."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from headrace.serving.wire.aws import services
from headrace.serving.wire.aws.members import MEMBERS

SPEC = spec_from_file_location("aws_operations", Path(__file__).parent.parent / "scripts" / "aws_operations.py")
aws_operations = sys.modules["aws_operations"] = module_from_spec(SPEC)
SPEC.loader.exec_module(aws_operations)

HANDLED = {("sagemaker", "CreateModel"), ("sagemaker", "DeleteModel"), ("sts", "GetCallerIdentity")}


def page(handled=HANDLED):
    return "\n".join(aws_operations.markdown(handled))


def test_each_service_has_a_row_with_its_handled_operations():
    assert "| `sagemaker` | `CreateModel`, `DeleteModel` |" in page()
    assert "| `sts` | `GetCallerIdentity` |" in page()
    assert all(f"| `{service}` |" in page() for service in services.MODELLED)


def test_an_operation_whose_members_all_fail_is_not_listed_as_one_that_works():
    handled = {("application-autoscaling", name) for name in ("GetPredictiveScalingForecast", "DeleteScalingPolicy")}
    assert "| `application-autoscaling` | `DeleteScalingPolicy` |" in page(handled)


def test_every_member_that_is_not_applied_is_named_with_its_effect():
    rows = [line for line in page().splitlines() if "| works, without effect |" in line or "| fails |" in line]
    for service in services.MODELLED:
        for structure, members in MEMBERS[service].items():
            if not members.applied and not members.kept:
                continue
            for member in members.kept | members.refused:
                effect = "works, without effect" if member in members.kept else "fails"
                name = f"`{structure.removesuffix('Input').removesuffix('Request')}.{member}`"
                assert [row for row in rows if name in row and f"| {effect} |" in row and f"| {service} |" in row], name


def test_the_same_operations_give_the_same_page():
    assert page(sorted(HANDLED)) == page(sorted(HANDLED, reverse=True))


def test_a_handled_operation_that_no_model_has_is_a_mistake():
    with pytest.raises(ValueError, match=r"sagemaker\.CreateModle"):
        page({("sagemaker", "CreateModle")})
