"""Buckets of AWS are told from those of users."""

import pytest

from headrace.core.aws_buckets import explain_missing_bucket

OF_AWS = [
    "jumpstart-cache-prod-us-east-1",
    "jumpstart-cache-prod-us-gov-west-1",
    "jumpstart-cache-beta-us-west-2",
    "jumpstart-private-cache-prod-eu-west-3",
    "sagemaker-sample-files",
    "sagemaker-sample-data-us-west-2",
    "sagemaker-example-files-prod-ap-northeast-1",
    "sagemaker-solutions-prod-us-east-2",
    "sagemaker-sd-models-prod-us-east-1",
    "sagemaker-servicecatalog-seedcode-us-east-1",
    "aws-ml-blog",
    "aws-ml-blog-us-east-1",
    "aws-ml-blog-samples",
    "djl-ai",
    "djl-llm",
    "amazon-reviews-pds",
    "fast-ai-nlp",
]
OF_USERS = [
    "sagemaker-us-east-1-000000000000",
    "sagemaker-eu-west-1-123456789012",
    "amazon-sagemaker-123456789012-us-east-1-abc",
    "my-jumpstart-cache-prod-us-east-1",
    "jumpstart-cache-prod-us-east-1-copy",
    "sagemaker-sample-files-of-mine",
    "aws-ml-blog-x",
    "models",
    "",
]


@pytest.mark.parametrize("bucket", OF_AWS)
def test_a_bucket_of_aws_is_explained(bucket: str) -> None:
    text = explain_missing_bucket(bucket)
    assert text is not None
    assert text.startswith(f"{bucket} is a bucket of AWS")
    assert f"s3://{bucket}/KEY" in text
    assert ("HF_MODEL_ID" in text) is bucket.startswith("jumpstart")


@pytest.mark.parametrize("bucket", OF_USERS)
def test_a_bucket_of_a_user_is_not(bucket: str) -> None:
    assert explain_missing_bucket(bucket) is None
