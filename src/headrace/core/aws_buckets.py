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


def is_of_aws(bucket: str) -> bool:
    """Return whether a bucket is one of AWS's."""
    return _OF_AWS.fullmatch(bucket) is not None


def region_of(bucket: str) -> str:
    """Return the region at the end of a bucket's name; empty if there is none."""
    found = re.search(rf"-({_REGION})$", bucket)
    return found[1] if found is not None else ""


def explain_missing_bucket(bucket: str) -> str | None:
    """Return what a bucket of AWS is and what to do, for an error that says that it is not here; None for any other."""
    if not is_of_aws(bucket):
        return None
    hub = (
        " `headrace jumpstart ls` lists the models of JumpStart that need no file of this bucket; deploy others that "
        "are on the Hugging Face Hub by HF_MODEL_ID."
    )
    return (
        f"{bucket} is a bucket of AWS, and there is no copy of it here. Start `headrace up` with `--public-buckets aws`"
        " to read it from AWS, or with a folder that contains a folder of this name. Or create a bucket of this name "
        "on the platform and upload the files that the code reads, under the same keys (where AWS can be reached: `aws "
        f"s3 cp --no-sign-request s3://{bucket}/KEY .`).{hub if _JUMPSTART.fullmatch(bucket) else ''}"
    )
