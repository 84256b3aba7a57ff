"""
Errors as AWS words them.

An operation's handler raises `AwsError`; `calls.render_error` writes it in the form of the protocol that was spoken.
The names and texts are read by SDKs (a waiter ends on `ValidationException`, sagemaker 2.x looks for "Could not find"),
so they are AWS's own. Source: botocore's service models, and answers of AWS that users have published.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.core.errors import HeadraceError

_STATUS_OF_CODE = MappingProxyType(
    {
        "InternalDependencyException": 530,
        "InternalFailure": 500,
        "InternalServerException": 500,
        "ModelError": 424,
        "ModelNotReadyException": 429,
        "ServiceUnavailable": 503,
        "ThrottlingException": 429,
    }
)
"""All others are 400. SDKs repeat 5xx and throttling by themselves, everything else not."""

_VALIDATION_CODES = MappingProxyType(
    {
        "application-autoscaling": "ValidationException",
        "logs": "InvalidParameterException",
        "sagemaker": "ValidationException",
    }
)
"""What a service calls a member that breaks its constraint; all others say `ValidationError`."""


class AwsError(HeadraceError):
    """
    An answer that is an error.

    Args:
        code: the name of the error, `ValidationException`.
        message: for people; safe to show to the client.
        status: of HTTP; left out, the one that AWS answers `code` with.
        members: more members of the error's shape, `OriginalStatusCode` of a `ModelError`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        members: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.http_status = _STATUS_OF_CODE.get(code, 400) if status is None else status
        self.retryable = self.http_status >= 500 or self.http_status == 429
        self.members = dict(members)

    def __repr__(self) -> str:
        return f"AwsError({self.code!r}, {self.message!r}, status={self.http_status})"


def validation_error(message: str) -> AwsError:
    """What was asked for breaks a rule."""
    return AwsError("ValidationException", message)


def constraint_error(service: str, message: str) -> AwsError:
    """A member of the request breaks a constraint of the service's model."""
    return AwsError(_VALIDATION_CODES.get(service, "ValidationError"), message)


def not_found(kind: str, arn: str) -> AwsError:
    """SageMaker's answer for a thing that is not there: `not_found("endpoint", arn)`."""
    return AwsError("ValidationException", f'Could not find {kind} "{arn}".')


def access_denied(message: str) -> AwsError:
    """The caller is known, and may not."""
    return AwsError("AccessDeniedException", message)


def throttled(message: str) -> AwsError:
    """Too much at once; SDKs wait and try again."""
    return AwsError("ThrottlingException", message)


def unknown_operation(service: str, operation: str | None, *, status: int = 400) -> AwsError:
    """No such service here, or no such operation in its model."""
    if operation is None:
        message = f"The request names no operation of {service} that is known here."
    else:
        message = f"{service}.{operation} is not an operation that is known here."
    return AwsError("UnknownOperationException", message, status=status)


def malformed(message: str) -> AwsError:
    """The bytes do not say what their protocol promises, or a value has another type than the model's."""
    return AwsError("SerializationException", message)
