"""The account and region of a platform, as they appear in ARNs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsScope:
    """The AWS account and region of a platform."""

    account: str
    """The account number, 12 digits."""
    region: str


def partition_of(region: str) -> str:
    """Return the ARN partition of a region: `aws`, or that of China or the US government."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
