"""ARNs, and the lookup of records by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL, DefinitionSpec
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.control.model.names import arn_of, parse_arn
from headrace.platform.state.records import Kind
from headrace.platform.state.store import open_store
from headrace.serving.wire.aws.scope import AwsScope

AWS_SCOPE = AwsScope(account="123456789012", region="us-east-1")


@given(
    kind=st.sampled_from([MODEL, ENDPOINT_CONFIG, ENDPOINT]),
    name=st.from_regex(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", fullmatch=True),
)
def test_an_arn_leads_back_to_its_name(kind: Kind, name: str) -> None:
    assert parse_arn(arn_of(AWS_SCOPE, kind, name)) == (kind, name.lower())


@pytest.mark.parametrize(
    ("region", "partition"), [("eu-west-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_the_partition_is_that_of_the_region(region: str, partition: str) -> None:
    arn = arn_of(AwsScope(account="123456789012", region=region), ENDPOINT, "e")
    assert arn == f"arn:{partition}:sagemaker:{region}:123456789012:endpoint/e"


@pytest.mark.parametrize(
    "arn", ["", "arn:aws:s3:::bucket", "arn:aws:sagemaker:us-east-1:1:training-job/t", "endpoint/e"]
)
def test_other_arns_have_no_resource(arn: str) -> None:
    assert parse_arn(arn) is None


def test_names_are_found_ignoring_case_and_exact_matches_come_first() -> None:
    store = open_store("sqlite://")
    store.create(MODEL, "My-Model", spec=DefinitionSpec(members={}))
    exact = store.create(MODEL, "my-model", spec=DefinitionSpec(members={}))
    found = store.find(MODEL, "my-model")
    other = store.find(MODEL, "MY-model")
    store.close()
    assert found == exact
    assert other is not None
    assert other.name == "My-Model"
