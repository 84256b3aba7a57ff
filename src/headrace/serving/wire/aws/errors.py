"""
Errors with AWS's codes and texts.

An operation's handler raises `AwsError`; `calls.render_error` renders it in the protocol of the request. SDKs parse
codes and texts (a waiter ends on `ValidationException`, sagemaker 2.x looks for "Could not find"), so they are AWS's
own. Source: botocore's service models, and responses of AWS that users have published.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.core.errors import HeadraceError

_STATUS_OF_CODE: Mapping[str, int] = {
    "InternalDependencyException": 530,
    "InternalFailure": 500,
    "InternalServerException": 500,
    "ModelError": 424,
    "ModelNotReadyException": 429,
    "ServiceUnavailable": 503,
    "ThrottlingException": 429,
}
"""All other codes are 400. SDKs retry only 5xx and throttling."""

_VALIDATION_CODES: Mapping[str, str] = {
    "application-autoscaling": "ValidationException",
    "logs": "InvalidParameterException",
    "sagemaker": "ValidationException",
}
"""A service's code for a member that violates a constraint; all other services use `ValidationError`."""


class AwsError(HeadraceError):
    """
    An error response of an AWS operation.

    Args:
        code: the name of the error, `ValidationException`.
        message: a sentence for people, safe to show to the client.
        status: the HTTP status; by default the one that AWS uses for `code`.
        members: additional members of the error's shape, such as `OriginalStatusCode` of a `ModelError`.
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
    return AwsError("ValidationException", message)


def constraint_error(service: str, message: str) -> AwsError:
    """Return the error for a member that violates a constraint of the service's model."""
    return AwsError(_VALIDATION_CODES.get(service, "ValidationError"), message)


def not_found(kind: str, arn: str) -> AwsError:
    """Return SageMaker's error for a resource that does not exist: `not_found("endpoint", arn)`."""
    return AwsError("ValidationException", f'Could not find {kind} "{arn}".')


def throttled(message: str) -> AwsError:
    """Return the error for too many requests, which SDKs retry after a wait."""
    return AwsError("ThrottlingException", message)


def too_many_values(message: str) -> AwsError:
    """Return the error for a body with more values than are decoded."""
    return AwsError("RequestEntityTooLargeException", message, status=413)


def bodies_spent(max_bytes: int) -> AwsError:
    """Return the error for a body that no longer fits into the budget of all bodies."""
    return throttled(f"The platform holds {max_bytes} bytes of requests, which is all that it takes. Try again later.")


def unknown_service(service: str, operation: str | None, *, code: str, status: int = 400) -> AwsError:
    """Return the error for a service that the platform does not serve."""
    named = f"{service} {operation}" if operation else service
    message = f"{named} is not supported by Headrace: docs/coverage.md lists the services and what to use instead."
    return AwsError(code, message, status=status)


def unknown_operation(service: str, operation: str | None, *, status: int = 400) -> AwsError:
    """Return the error for an operation that is not in its service's model."""
    if operation is None:
        message = f"The request names no known operation of {service}."
    else:
        message = f"{service}.{operation} is not a known operation."
    return AwsError("UnknownOperationException", message, status=status)


def malformed(message: str) -> AwsError:
    """Return the error for a malformed body, or a value of another type than the model's."""
    return AwsError("SerializationException", message)
