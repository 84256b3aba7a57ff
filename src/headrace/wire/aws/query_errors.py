"""
Errors of a service that has moved from the query protocol to newer ones.

Such a service (CloudWatch) has two names for an error: that of the shape, which JSON and CBOR have in `__type`, and the
old code, which a header repeats, so that programs that compare codes keep working.
Source: Smithy, "awsQueryCompatible trait".
"""

from botocore.model import OperationModel

from headrace.wire.aws.errors import AwsError
from headrace.wire.aws.http import header_value


def type_of(code: str, operation: OperationModel | None) -> str:
    """Return the name of an error's shape, or the code itself if it has none."""
    if operation is None or not _is_query_compatible(operation):
        return code
    own = next((shape for shape in operation.error_shapes if shape.error_code == code), None)  # two may share a code
    shape = own or operation.service_model.shape_for_error_code(code)
    return code if shape is None else str(shape.name)


def query_error_headers(error: AwsError, operation: OperationModel | None) -> tuple[tuple[str, str], ...]:
    """Return the header `x-amzn-query-error: <code>;<blame>` for services that send it."""
    if operation is None or not _is_query_compatible(operation):
        return ()
    blame = "Receiver" if error.http_status >= 500 else "Sender"
    return (("x-amzn-query-error", f"{header_value(error.code).replace(';', ' ')};{blame}"),)


def _is_query_compatible(operation: OperationModel) -> bool:
    return "awsQueryCompatible" in operation.service_model.metadata
