"""Calls of operations in process: those of the platform's services, and those of S3 on buckets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.platform.gateway.objects import S3Objects
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError

Call = Callable[[str, str, Json], Json]
"""Calls an operation of a service, as a client does; blocks. Raises `AwsError`."""


class LeaderCall(Protocol):
    """A `Call` in the name of a leader, which raises `Fenced` if it writes after the leader's term."""

    def __call__(self, service: str, name: str, params: Json, /, *, term: int) -> Json: ...


S3: Final = "s3"
BUCKET_OPERATIONS: Final = tuple((S3, name) for name in ("CreateBucket", "HeadBucket", "DeleteBucket"))
"""Operations that stacks may call where there is an object storage."""
_DEFAULT_REGION: Final = "us-east-1"
"""The region that a bucket is in if its creation names none."""


@dataclass(frozen=True, slots=True)
class StackCalls:
    call: LeaderCall
    objects: S3Objects | None

    def __call__(self, service: str, name: str, params: Json, *, term: int) -> Json:
        return self.call(service, name, params, term=term) if service != S3 else self._call_s3(name, params)

    def _call_s3(self, name: str, params: Json) -> Json:
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError

        assert self.objects is not None, "templates with buckets are refused without an object storage"
        client: Any = self.objects.client()
        if name == "CreateBucket" and (region := client.meta.region_name) != _DEFAULT_REGION:
            params = {**params, "CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            answer: Json = getattr(client, xform_name(name))(**params)
        except ClientError as error:
            details, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
            raise AwsError(details["Code"], details.get("Message", details["Code"]), status=status) from error
        except BotoCoreError as error:
            raise AwsError("ServiceUnavailable", str(error)) from error
        return answer
