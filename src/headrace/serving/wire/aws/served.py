"""The services of AWS that a platform serves. Importing this module does not import botocore."""

from typing import Final

SERVED: Final = (
    *("sagemaker", "sagemaker-runtime", "application-autoscaling", "cloudwatch", "logs", "cloudformation"),
    *("iam", "sts", "sns", "ecr", "s3", "ssm"),
)
"""By boto3's names, in the order of help and documentation; of `ssm` only what the CDK asks for."""
