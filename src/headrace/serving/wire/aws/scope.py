"""The account and region of a platform, as they appear in ARNs, and the limit on tags that all services share."""

from dataclasses import dataclass
from typing import Final


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


MAX_TAGS: Final = 50
"""Tags of one resource. Source: AWS General Reference, "Tagging AWS resources"."""
