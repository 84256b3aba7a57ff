"""Buckets of AWS that its notebooks, SDKs and articles read from, and what to do where they are missing. Pure."""

import re
from typing import Final

_REGION = r"[a-z]{2}(?:-[a-z]+)+-\d"
_JUMPSTART: Final = re.compile(rf"jumpstart-(?:private-)?cache-[a-z]+-{_REGION}")
_OF_AWS: Final = re.compile(
    "|".join(
        (
            _JUMPSTART.pattern,
            r"sagemaker-sample-files",
            rf"sagemaker-(?:sample-data|example-files-[a-z]+|solutions-[a-z]+|sd-models-[a-z]+)-{_REGION}",
            rf"sagemaker-(?:servicecatalog-seedcode|studio-image-build)-{_REGION}",
            rf"aws-ml-blog(?:-samples|-artifacts|-{_REGION})?",
            r"djl-(?:ai|ai-staging|llm|misc)",
            r"amazon-reviews-pds",
            r"fast-ai-(?:coco|imageclas|imagelocal|nlp|sample)",
        )
    )
)
"""Sources: the SageMaker SDKs' constants and public notebooks. Buckets named by an account number are users' own."""


def explain_missing_bucket(bucket: str) -> str | None:
    """Return what a bucket of AWS is and what to do, for an error that says that it is not here; None for any other."""
    if _OF_AWS.fullmatch(bucket) is None:
        return None
    hub = " Models of JumpStart that are on the Hugging Face Hub need no file: deploy them by HF_MODEL_ID."
    return (
        f"{bucket} is a bucket of AWS, and there is no copy of it here. Create a bucket of this name on the platform "
        "and upload the files that the code reads, under the same keys (where AWS can be reached: `aws s3 cp "
        f"--no-sign-request s3://{bucket}/KEY .`), or let the code read from a bucket of your own."
        f"{hub if _JUMPSTART.fullmatch(bucket) else ''}"
    )
