"""
The bucket in which the machines of a platform share files, as clients of the platform see it: not at all.

It has other clients' files and prompts. The access keys of the platform do not reach it, whatever they may do.
"""

import posixpath
import re
from collections.abc import Mapping
from urllib.parse import unquote
from xml.sax.saxutils import escape

from headrace.serving.wire.aws.errors import AwsError

_COPY_SOURCE = "x-amz-copy-source"


def check_request(own_bucket: str | None, path: str, headers: Mapping[str, str]) -> None:
    """Raise `AwsError` if a request to S3 names the platform's own bucket, or copies from it."""
    if own_bucket in _buckets_of(path) | _buckets_of(headers.get(_COPY_SOURCE, "")):
        raise AwsError("AccessDenied", f"The bucket {own_bucket} is the platform's own. Use another one.", status=403)


def without_bucket(listing: bytes, own_bucket: str) -> bytes:
    """Return the answer to ListBuckets without the platform's own bucket."""
    name = re.escape(escape(own_bucket).encode())
    entry = rb"<Bucket>(?:(?!</Bucket>).)*<Name>" + name + rb"</Name>(?:(?!</Bucket>).)*</Bucket>"
    return re.sub(entry, b"", listing, flags=re.DOTALL)


def _buckets_of(path: str) -> set[str | None]:
    """Return the first part of a path, as servers find it that decode it or not, and resolve `.` and `..` or not."""
    forms = {path, unquote(path)}
    forms |= {posixpath.normpath(f"/{form}") for form in forms}
    return {form.lstrip("/").partition("/")[0] for form in forms}
