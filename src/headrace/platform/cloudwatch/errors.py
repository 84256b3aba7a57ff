"""CloudWatch's errors, with the codes of its query protocol. Source: botocore's model of cloudwatch, 2010-08-01."""

from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator


def invalid_value(message: str) -> AwsError:
    return AwsError("InvalidParameterValue", message)


def invalid_combination(message: str) -> AwsError:
    """Return the error for parameters that exclude each other."""
    return AwsError("InvalidParameterCombination", message)


def missing_parameter(name: str) -> AwsError:
    return AwsError("MissingParameter", f"The parameter {name} is required.")


def validation_error(message: str) -> AwsError:
    """Return the error of GetMetricData and of alarms, where other operations answer InvalidParameterValue."""
    return AwsError("ValidationError", message)


PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextToken", "The NextToken is not one of this list. Begin without it.")
)
